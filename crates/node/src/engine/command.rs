//! Communication of other threads with a pool's thread: a queue of commands and a wake-up call.

use super::conn::{DeadlineFrom, ExportParams};
use super::device::Device;
use super::inject::{InjectTerms, InjectView};
use super::permits::PermitLimits;
use super::trace::Trace;
use crate::seats::Seat;
use crate::view::{ExportPromise, ExportView, History};
use plimsoll_base::{IoError, OnBusy, Span, TenantId, Time, VolumeKey};
use plimsoll_stack::{Addressed, Extent, FrontVolume, LayerState, NodeStats, Stack, Terms, VolumeTerms};
use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use tokio::sync::watch;

/// An answer that is sent once; where it's lost, the asker learns that the pool is gone.
pub type Reply<T> = tokio::sync::oneshot::Sender<T>;

/// A command to a pool's thread.
pub enum Command {
    /// Serve a client whose handshake is over; `early` is what it sent beyond it.
    Attach {
        /// The socket.
        fd: Arc<OwnedFd>,
        /// The result of its handshake.
        params: ExportParams,
        /// Bytes already received.
        early: Vec<u8>,
        /// Its seat, which it has until it ends.
        seat: Option<std::sync::Arc<Seat>>,
    },
    /// Make a volume known, or change it (growing).
    SetVolume {
        /// The volume.
        key: VolumeKey,
        /// Its size and mode.
        front: FrontVolume,
        /// Its pool.
        extents: Vec<Extent>,
        /// Further terms for the layers.
        terms: VolumeTerms,
        /// Answered when done.
        reply: Reply<()>,
    },
    /// Forget a volume: its connections are closed, its requests finish, then its extents are zeroed and flushed.
    DeleteVolume {
        /// The volume.
        key: VolumeKey,
        /// The extents to zero.
        extents: Vec<Extent>,
        /// Answered when the zeroes are durable.
        reply: Reply<Result<(), IoError>>,
    },
    /// Set a tenant's limits of requests in flight, and its promises, from now on.
    SetTenant {
        /// The tenant.
        tenant: TenantId,
        /// The bound.
        limits: PermitLimits,
        /// Message to the layers.
        terms: Terms,
    },
    /// A tenant was removed: forget what it counted and may have, unless it's still connected.
    ForgetTenant {
        /// The tenant.
        tenant: TenantId,
    },
    /// Look at the stack between two requests, at the pool's time. Requests wait meanwhile.
    Look(Look),
    /// A copy of the pool's own metrics.
    Snapshot {
        /// Takes the answer.
        reply: Reply<Box<PoolSnapshot>>,
    },
    /// A compact copy of one tenant's metrics on one volume. Each is asked for alone: requests must not wait while a pool of
    /// many volumes copies them all.
    SnapshotExport {
        /// The first at or after this place.
        at: usize,
        /// The place that was copied; `None` if there is none left.
        reply: Reply<Option<(usize, Box<ExportView>)>>,
    },
    /// The last minute by seconds, the last hour by minutes, and the last day by ten minutes.
    History {
        /// Of this volume only.
        volume: Option<VolumeKey>,
        /// Of this tenant only.
        tenant: Option<TenantId>,
        /// The sum.
        reply: Reply<History>,
    },
    /// Clients that are connected, [`CONNECTIONS_MAX`] at most.
    Connections {
        /// The clients that are meant.
        of: ClientFilter,
        /// Some of them, and their number.
        reply: Reply<(Vec<Connection>, usize)>,
    },
    /// Take no more from clients. Their requests finish and are answered, then their connections close.
    Disconnect {
        /// The clients that are meant.
        of: ClientFilter,
        /// Their number.
        reply: Reply<usize>,
    },
    /// A copy of the sampled traces, newest first.
    Traces {
        /// Takes the answer.
        reply: Reply<Vec<Trace>>,
    },
    /// Serve flushes again after a failed one: the operator has checked the loss.
    Recovered {
        /// Answered when done.
        reply: Reply<Recovered>,
    },
    /// Inject faults into a volume's requests from now on, or (`None`) no more.
    Inject {
        /// The volume.
        key: VolumeKey,
        /// The fault to inject.
        terms: Option<InjectTerms>,
        /// Answered when done; false if nothing was to be ended.
        reply: Reply<bool>,
    },
    /// Pass a message to the layer that it is addressed to.
    Tell {
        /// The message.
        to: Addressed,
        /// Answered when it was passed on; false if there is no such layer.
        reply: Reply<bool>,
    },
    /// Put a device into the place of an absent one.
    PutDevice {
        /// Its number.
        number: usize,
        /// The device.
        device: Device,
    },
    /// Take no more requests, finish what is inside, flush, end.
    Shutdown,
}

/// Connections of a pool that are shown at once.
pub const CONNECTIONS_MAX: usize = 1000;

/// Clients that match all that is named; without a name, all.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ClientFilter {
    /// Those of this volume.
    pub volume: Option<VolumeKey>,
    /// Those of this tenant.
    pub tenant: Option<TenantId>,
    /// The peer as [`Connection::peer`] shows it.
    pub peer: Option<Arc<str>>,
}

impl ClientFilter {
    /// Those of a volume.
    pub fn of_volume(key: VolumeKey) -> ClientFilter {
        ClientFilter { volume: Some(key), ..ClientFilter::default() }
    }

    /// True for a client that is meant.
    pub fn is_meant(&self, client: &ExportParams) -> bool {
        self.volume.is_none_or(|v| v == client.volume)
            && self.tenant.is_none_or(|t| t == client.tenant)
            && self.peer.as_ref().is_none_or(|p| *p == client.peer)
    }
}

/// A client that is connected.
#[derive(Clone, Debug)]
pub struct Connection {
    /// The client, for people.
    pub peer: Arc<str>,
    /// Its volume.
    pub volume: VolumeKey,
    /// Its tenant.
    pub tenant: TenantId,
    /// The deadline of its reads that don't ask for another, and its source.
    pub deadline: Option<(Span, DeadlineFrom)>,
    /// Answer to a read that would miss the deadline.
    pub on_busy: OnBusy,
    /// True if it speaks `x-plimsoll:promise`.
    pub promises: bool,
    /// Requests in flight.
    pub in_flight: u32,
    /// Time that its next request has waited for a permit, if it does.
    pub waits: Option<Span>,
    /// Time since it was attached.
    pub connected: Span,
}

/// A function that looks at a pool's stack. It can't change the stack.
pub type Look = Box<dyn FnOnce(&Stack, Time) + Send>;

/// A copy of a pool's metrics.
#[derive(Clone, Debug)]
pub struct PoolSnapshot {
    /// The time of the copy.
    pub now: Time,
    /// The stack's state.
    pub state: LayerState,
    /// True if a flush has failed.
    pub flush_failed: bool,
    /// Per layer, top first.
    pub layers: Vec<(&'static str, NodeStats)>,
    /// Per device.
    pub devices: Vec<NodeStats>,
    /// Requests and bytes that each tenant has inside.
    pub permits: BTreeMap<TenantId, (u32, u64)>,
    /// Requests in flight.
    pub inflight: usize,
    /// Requests that wait in the front for an overlapping one.
    pub overlap_waiting: usize,
    /// The oldest request's arrival, and where it waits.
    pub oldest: Option<(Time, &'static str)>,
    /// The same of those that don't wait for their client, and its volume.
    pub oldest_served: Option<(Time, &'static str, VolumeKey)>,
    /// Promises in the last minute, of exports with requests in it.
    pub promises: Vec<ExportPromise>,
    /// Connections by volume and tenant.
    pub connections: BTreeMap<(VolumeKey, TenantId), u32>,
    /// Connections that aren't read from until their tenant has a permit.
    pub permit_waiting: BTreeMap<TenantId, u32>,
    /// Requests accepted, refused and ended since the start.
    pub counts: (u64, u64, u64),
    /// Faults that are injected now.
    pub injections: Vec<InjectView>,
}

/// Result of an order to serve flushes again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Recovered {
    /// They are served again.
    Done,
    /// No flush has failed: nothing was changed.
    NothingFailed,
    /// A layer can't tell the loss without a restart.
    NeedsRestart,
}

/// The sending side of a pool's commands.
#[derive(Clone)]
pub struct PoolHandle {
    commands: Sender<Command>,
    wakeup: Arc<OwnedFd>,
    /// The pool's health, as of its thread's last turn.
    pub health: watch::Receiver<Health>,
}

/// A pool's health, for the listeners that accept clients.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Health {
    /// The worst of its layers; failed once its thread has ended.
    pub state: LayerState,
    /// A flush has failed, and no operator has recovered the pool since.
    pub flush_failed: bool,
}

impl Health {
    /// Of a pool whose thread hasn't begun.
    pub const NOT_STARTED: Health = Health { state: LayerState::Recovering, flush_failed: false };
}

/// The pool's side of its handles.
pub struct PoolReceiver {
    /// Commands of other threads.
    pub commands: Receiver<Command>,
    /// Becomes readable with each command.
    pub wakeup: Arc<OwnedFd>,
    /// The pool publishes its health here.
    pub health: watch::Sender<Health>,
}

impl Drop for PoolReceiver {
    /// However the thread ends, no client is let in after.
    fn drop(&mut self) {
        self.health.send_modify(|h| h.state = LayerState::Failed);
    }
}

/// The pool's thread has ended (the log has the reason).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolGone;

impl PoolHandle {
    /// A handle and the pool's side of it.
    pub fn new() -> std::io::Result<(PoolHandle, PoolReceiver)> {
        use rustix::event::{EventfdFlags, eventfd};
        let wakeup = Arc::new(eventfd(0, EventfdFlags::CLOEXEC)?);
        let (commands, queue) = channel();
        let (publisher, health) = watch::channel(Health::NOT_STARTED);
        let receiver = PoolReceiver { commands: queue, wakeup: wakeup.clone(), health: publisher };
        Ok((PoolHandle { commands, wakeup, health }, receiver))
    }

    /// Sends a command.
    pub fn send(&self, command: Command) -> Result<(), PoolGone> {
        self.commands.send(command).map_err(|_| PoolGone)?;
        // The counter can only overflow after 2^64 calls; any other failure means the pool has closed its end.
        rustix::io::write(self.wakeup.as_fd(), &1u64.to_ne_bytes()).map_err(|_| PoolGone)?;
        Ok(())
    }

    /// Sends a command made around a reply channel, and waits for the answer.
    pub async fn ask<T>(&self, make: impl FnOnce(Reply<T>) -> Command) -> Result<T, PoolGone> {
        let (reply, answer) = tokio::sync::oneshot::channel();
        self.send(make(reply))?;
        answer.await.map_err(|_| PoolGone)
    }

    /// Looks at the stack on the pool's thread.
    pub async fn look<T: Send + 'static>(
        &self,
        look: impl FnOnce(&Stack, Time) -> T + Send + 'static,
    ) -> Result<T, PoolGone> {
        self.ask(|reply| {
            Command::Look(Box::new(move |stack, now| {
                let _ = reply.send(look(stack, now)); // whoever asked may have gone
            }))
        })
        .await
    }
}

/// Names of a pool's devices, by number: its own first, then those of its layers.
const DEVICES: [&str; 12] = [
    "device",
    "device-2",
    "device-3",
    "device-4",
    "device-5",
    "device-6",
    "device-7",
    "device-8",
    "device-9",
    "device-10",
    "device-11",
    "device-12",
];

impl PoolSnapshot {
    /// Of a pool in which nothing has happened.
    #[cfg(test)]
    pub fn idle(now: Time, state: LayerState, flush_failed: bool) -> PoolSnapshot {
        PoolSnapshot {
            now,
            state,
            flush_failed,
            layers: Vec::new(),
            devices: Vec::new(),
            permits: BTreeMap::new(),
            inflight: 0,
            overlap_waiting: 0,
            oldest: None,
            oldest_served: None,
            promises: Vec::new(),
            connections: BTreeMap::new(),
            permit_waiting: BTreeMap::new(),
            counts: (0, 0, 0),
            injections: Vec::new(),
        }
    }

    /// The layers, top first, then the devices.
    pub fn places(&self) -> impl Iterator<Item = (&'static str, &NodeStats)> {
        let layers = self.layers.iter().map(|(name, stats)| (*name, stats));
        let name = |n: usize| DEVICES[n.min(DEVICES.len() - 1)];
        layers.chain(self.devices.iter().enumerate().map(move |(n, stats)| (name(n), stats)))
    }
}
