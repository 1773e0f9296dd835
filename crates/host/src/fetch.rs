//! Work that isn't done on a caller's thread: bringing in the pages of refused reads, and looking for the agent.
//!
//! One thread, started when it's first needed, again in a child of fork. It may block on a full device; what comes meanwhile waits, up
//! to a bound, beyond which pages are left to the next refusal.

use crate::resident::will_need;
use rustix::fs::{Advice, fadvise};
use std::num::NonZeroU64;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, RwLock};

/// Orders that wait at most.
const QUEUED: usize = 256;

/// An order.
pub enum Order {
    /// Bring pages of a file in.
    File(OwnedFd, u64, u64),
    /// Bring pages of mapped memory in.
    Memory(usize, usize),
    /// Look for the agent.
    Link,
}

/// Orders to the thread.
pub struct Fetcher {
    link: Arc<dyn Fn() + Send + Sync>,
    to: RwLock<Option<(u32, SyncSender<Order>)>>,
    dropped: AtomicU64,
}

impl Fetcher {
    /// `link` looks for the agent.
    pub fn new(link: Arc<dyn Fn() + Send + Sync>) -> Fetcher {
        Fetcher { link, to: RwLock::new(None), dropped: AtomicU64::new(0) }
    }

    /// Orders that found no room.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Relaxed)
    }

    /// Gives an order, and doesn't wait.
    pub fn order(&self, order: Order) {
        let pid = std::process::id();
        if let Ok(to) = self.to.try_read()
            && let Some((of, to)) = &*to
            && *of == pid
        {
            if to.try_send(order).is_err() {
                self.dropped.fetch_add(1, Relaxed);
            }
            return;
        }
        // Somebody else is starting it: this order is left out.
        let Ok(mut to) = self.to.try_write() else {
            self.dropped.fetch_add(1, Relaxed);
            return;
        };
        let (send, orders) = sync_channel(QUEUED);
        let _ = send.try_send(order);
        let link = self.link.clone();
        if std::thread::Builder::new().name("plimsoll-fetch".into()).spawn(move || serve(&orders, &*link)).is_ok() {
            *to = Some((pid, send));
        }
    }
}

fn serve(orders: &Receiver<Order>, link: &dyn Fn()) {
    while let Ok(order) = orders.recv() {
        match order {
            Order::File(fd, offset, len) => drop(fadvise(&fd, offset, NonZeroU64::new(len), Advice::WillNeed)),
            Order::Memory(addr, len) => will_need(addr, len),
            Order::Link => link(),
        }
    }
}
