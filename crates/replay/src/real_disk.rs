//! The systems' modelled disk in real time: who reads from it waits as long as the model says.

use crate::pool::BadPool;
use crate::storage::{Event, Storage};
use plimsoll_base::{Op, Span, Time};
use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Order for the disk's thread.
enum Asked {
    Read { queue: u16, offset: u64, len: u64, done: Box<dyn FnOnce() + Send> },
    IdleTime(Span),
}

/// A disk under CFQ, on a thread of its own that ends when this is dropped.
pub struct RealDisk {
    asked: Option<Sender<Asked>>,
    thread: Option<JoinHandle<()>>,
    size_bytes: u64,
}

/// Longest sleep of a thread that nobody asks anything.
const SLEEP_MAX: Duration = Duration::from_secs(1);

impl RealDisk {
    /// The disk `profile`; CFQ idles for `idle_time`.
    ///
    /// # Errors
    /// If there is no such profile, or no thread can be made.
    pub fn start(profile: &str, idle_time: Span, seed: u64) -> Result<RealDisk, BadPool> {
        let storage: Storage<()> = Storage::new(profile, idle_time, seed)?;
        let size_bytes = storage.size_bytes();
        let (asked, hears) = channel();
        let thread = std::thread::Builder::new().name("disk".into()).spawn(move || run(storage, &hears));
        let thread = thread.map_err(|e| BadPool(format!("no thread for the disk: {e}")))?;
        Ok(RealDisk { asked: Some(asked), thread: Some(thread), size_bytes })
    }

    /// Bytes on the disk.
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Reads as reader `queue`; `done` is called on the disk's thread when the model has them.
    pub fn read(&self, queue: u16, offset: u64, len: u64, done: impl FnOnce() + Send + 'static) {
        self.ask(Asked::Read { queue, offset, len, done: Box::new(done) });
    }

    /// Changes CFQ's `idle_time` from now on.
    pub fn set_idle_time(&self, idle_time: Span) {
        self.ask(Asked::IdleTime(idle_time));
    }

    fn ask(&self, what: Asked) {
        let sent = self.asked.as_ref().expect("set until dropped").send(what);
        assert!(sent.is_ok(), "the disk's thread has ended");
    }
}

impl Drop for RealDisk {
    fn drop(&mut self) {
        self.asked = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join(); // it has nothing to say
        }
    }
}

/// Callers that wait for reads, by read.
type Waiting = BTreeMap<u64, Box<dyn FnOnce() + Send>>;

/// Brings the model up to `now`, and tells those whose reads have ended.
fn catch_up(storage: &mut Storage<()>, waiting: &mut Waiting, now: Time) {
    while let Some(event) = storage.next(now) {
        if let Event::Disk(tag) = event {
            waiting.remove(&tag).expect("each read ends once")();
        }
    }
}

fn run(mut storage: Storage<()>, hears: &Receiver<Asked>) {
    let began = Instant::now();
    let now = || Time::ZERO + Span::from(began.elapsed());
    let mut waiting = Waiting::new();
    let mut next_tag = 0;
    loop {
        let left = storage.next_at().since(now());
        let heard = hears.recv_timeout(Duration::from_nanos(left.as_nanos()).min(SLEEP_MAX));
        // What is asked is asked now, not when this thread went to sleep.
        catch_up(&mut storage, &mut waiting, now());
        match heard {
            Ok(Asked::Read { queue, offset, len, done }) => {
                next_tag += 1;
                waiting.insert(next_tag, done);
                storage.send(Op::Read, queue, offset, len, next_tag);
            }
            Ok(Asked::IdleTime(span)) => storage.set_idle_time(span),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_take_as_long_as_the_model_says() {
        let disk = RealDisk::start("hdd-160g-7200", Span::from_millis(8), 1).unwrap();
        let (sender, receiver) = channel();
        let began = Instant::now();
        for i in 0..20u64 {
            let sender = sender.clone();
            disk.read(i as u16, (i * 7_919_000_000) % (disk.size_bytes() - 4096) / 4096 * 4096, 4096, move || {
                sender.send(i).unwrap();
            });
        }
        let mut ended: Vec<u64> = (0..20).map(|_| receiver.recv_timeout(Duration::from_secs(20)).unwrap()).collect();
        // Twenty far reads of a 7200 rpm disk: no less than half a rotation each, on the average.
        assert!(began.elapsed() > Duration::from_millis(60), "{:?}", began.elapsed());
        ended.sort_unstable();
        assert_eq!(ended, (0..20).collect::<Vec<_>>());
    }
}
