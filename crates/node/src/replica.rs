//! A volume as one of several replicas: the changes that it has acknowledged, their places, and whether it may lack some.
//!
//! Plimsoll replicates nothing: a writer writes to all replicas. A replica that has missed a write must not be read before it
//! was caught up, and the writer may not know that. QEMU's quorum takes a write for done when one replica has it. It reads from the
//! first replica again at once, whatever that replica then holds. So the node watches for writes that may have been missed:
//!
//! * **unclean**: the node ended without a record of it while the volume could be changed. The mark is durable before the first
//!   connection that can change the volume is served. An orderly end of the node removes the mark.
//! * **writer lost**: a connection opened with `replica=write` ended without NBD's DISC (a cut link, a killed client, the node's
//!   own end). Or a second such connection came while it lasted. Or one of its changes failed. Changes in flight may be in one
//!   replica and not in another, and the client may go on without this one. The same holds if the pool lost acknowledged changes: a
//!   flush failed, or dirty extents were given up.
//!
//! While either holds, and during a resync, connections with `replica=read` or `replica=write` in their export's name have their reads
//! refused. Other connections never have. Only an operator ends that state (`plimsoll volume resync`).
//!
//! A resync's copies overwrite the volume. So they exclude clients that may change the volume and know no other replicas ([`Claim`]).
//!
//! The generation is exact while the node runs and after an orderly end. After any other end it is the value at the node's
//! start. Places of changes are kept for up to 4,096 ranges and forgotten at the node's end: they only decide which ranges are copied
//! first.

mod claims;

pub use claims::{Claim, Excluded};

use crate::store::PoolStore;
use claims::Claims;
use plimsoll_base::VolumeKey;
use plimsoll_store::{MetaError, ReplicaRecord};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use tokio::sync::watch;

/// Use of a replica by a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReplicaUse {
    /// Its client reads from several replicas, and others write. The connection can't.
    Read,
    /// Its client writes to all replicas, and reads.
    Write,
    /// Its client brings it up to what a peer has: reads whatever it lacks, and what it writes while the replica is being
    /// caught up is no change of its own.
    Copy,
}

/// A word that is no use of a replica.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UnknownUse(String);

impl fmt::Display for UnknownUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "replica={}: write replica=read, replica=write or replica=copy", self.0)
    }
}

impl std::error::Error for UnknownUse {}

impl FromStr for ReplicaUse {
    type Err = UnknownUse;
    fn from_str(text: &str) -> Result<ReplicaUse, UnknownUse> {
        match text {
            "read" => Ok(ReplicaUse::Read),
            "write" => Ok(ReplicaUse::Write),
            "copy" => Ok(ReplicaUse::Copy),
            _ => Err(UnknownUse(text.into())),
        }
    }
}

/// Reason why a replica may lack acknowledged writes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub enum Behind {
    /// It doesn't.
    No = 0,
    /// The node ended without a word.
    Unclean = 1,
    /// A writer's end was not orderly, or writes that it had acknowledged were given up.
    WriterLost = ReplicaRecord::WRITES_LOST,
    /// It is being caught up.
    Resync = 3,
}

impl Behind {
    /// As stored and sent; what is unknown counts as lost.
    pub fn of(number: u8) -> Behind {
        match number {
            0 => Behind::No,
            1 => Behind::Unclean,
            3 => Behind::Resync,
            _ => Behind::WriterLost,
        }
    }

    /// The word for people and the API.
    pub const fn name(self) -> &'static str {
        match self {
            Behind::No => "no",
            Behind::Unclean => "unclean stop",
            Behind::WriterLost => "writer lost",
            Behind::Resync => "resync",
        }
    }
}

impl fmt::Display for Behind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Ranges that a volume is divided into, at most.
const RANGES_MAX: u64 = 4096;
/// No range is smaller.
const RANGE_BYTES_MIN: u64 = 64 << 10;

/// See the module's documentation. The pool's thread counts; others look.
pub struct Replica {
    /// Store that keeps it, and its key there: names change. A volatile volume has none.
    kept: Option<(Arc<PoolStore>, VolumeKey)>,
    generation: AtomicU64,
    /// Reason why it may lack changes. While it's being caught up, the bits above have the number of the attempt. Both are in
    /// one word, so that an attempt's end can't be taken for another's.
    behind: AtomicU64,
    /// The durable mark is set.
    open: AtomicBool,
    /// Connections with `replica=write`.
    writers: AtomicU32,
    /// Connections that exclude each other. A copy begins under its lock only.
    claims: watch::Sender<Claims>,
    /// Clients whose export with `replica=write` was granted, and that aren't attached yet.
    granted: AtomicU32,
    /// It failed reads lately: hosts with another copy should read from that.
    is_failing: AtomicBool,
    /// The next change of the generation is news.
    is_generation_awaited: AtomicBool,
    news: watch::Sender<()>,
    range_bytes: u64,
    /// The generation at which each range was last changed.
    ranges: Box<[AtomicU64]>,
}

impl fmt::Debug for Replica {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Replica").field("generation", &self.generation()).field("behind", &self.behind()).finish()
    }
}

impl Replica {
    /// Of a volume of `size_bytes` as it was stored.
    pub fn new(size_bytes: u64, record: ReplicaRecord, kept: Option<(Arc<PoolStore>, VolumeKey)>) -> Arc<Replica> {
        let range_bytes = size_bytes.div_ceil(RANGES_MAX).next_power_of_two().max(RANGE_BYTES_MIN);
        let behind = match Behind::of(record.behind) {
            Behind::No | Behind::Resync if record.open => Behind::Unclean,
            was => was,
        };
        Arc::new(Replica {
            kept,
            generation: AtomicU64::new(record.changes),
            behind: AtomicU64::new(behind as u64),
            open: AtomicBool::new(record.open),
            writers: AtomicU32::new(0),
            claims: watch::Sender::new(Claims::default()),
            granted: AtomicU32::new(0),
            is_failing: AtomicBool::new(false),
            is_generation_awaited: AtomicBool::new(false),
            news: watch::Sender::new(()),
            range_bytes,
            ranges: (0..size_bytes.div_ceil(range_bytes).max(1)).map(|_| AtomicU64::new(record.changes)).collect(),
        })
    }

    /// Changes that it has acknowledged since it was made.
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Returns the reason why it may lack some.
    pub fn behind(&self) -> Behind {
        Behind::of(self.behind.load(Ordering::Acquire) as u8)
    }

    /// True if it failed reads lately.
    pub fn is_failing(&self) -> bool {
        self.is_failing.load(Ordering::Acquire)
    }

    /// It failed a read, or hasn't for some time.
    pub fn set_failing(&self, is_failing: bool) {
        if self.is_failing.swap(is_failing, Ordering::AcqRel) != is_failing {
            self.news.send_replace(());
        }
    }

    /// Returns a receiver that is notified after each change of [`Replica::behind`] and [`Replica::is_failing`], and after an awaited change of the
    /// generation.
    pub fn news(&self) -> watch::Receiver<()> {
        self.news.subscribe()
    }

    /// Returns the generation. Its next change is news. Later ones aren't until this is called again: no write after the first pays for it.
    pub fn await_generation(&self) -> u64 {
        // In one order with `changed`: either the new generation is read here, or `changed` sees that it is awaited.
        self.is_generation_awaited.store(true, Ordering::SeqCst);
        self.generation.load(Ordering::SeqCst)
    }

    /// A change is about to be acknowledged.
    pub fn changed(&self, offset: u64, len: u64) {
        let generation = self.generation.fetch_add(1, Ordering::SeqCst) + 1;
        if self.is_generation_awaited.load(Ordering::SeqCst) {
            self.is_generation_awaited.store(false, Ordering::SeqCst);
            self.news.send_replace(());
        }
        let last = self.ranges.len() - 1;
        let range_of = |offset: u64| (offset / self.range_bytes).min(last as u64);
        // A volume that grew since has more bytes than ranges: the last one stands for all beyond it.
        for i in range_of(offset)..=range_of(offset + len.max(1) - 1) {
            self.ranges[i as usize].store(generation, Ordering::Release);
        }
    }

    /// Pieces of `offset`..`offset + len` and the generation at which each was last changed.
    pub fn written(&self, offset: u64, len: u64) -> Vec<(u64, u64)> {
        let (mut at, end, mut pieces) = (offset, offset + len, Vec::<(u64, u64)>::new());
        while at < end {
            let i = ((at / self.range_bytes) as usize).min(self.ranges.len() - 1);
            let to = if i + 1 == self.ranges.len() { end } else { (i as u64 + 1) * self.range_bytes }.min(end);
            let generation = self.ranges[i].load(Ordering::Acquire);
            match pieces.last_mut() {
                Some((len, g)) if *g == generation => *len += to - at,
                _ => pieces.push((to - at, generation)),
            }
            at = to;
        }
        pieces
    }

    /// Connections of clients that write to all replicas.
    pub fn writers(&self) -> u32 {
        self.writers.load(Ordering::Acquire)
    }

    /// Another one.
    pub fn writer_came(&self) {
        if self.writers.fetch_add(1, Ordering::AcqRel) > 0 {
            self.lost(); // the other one is this one before its link was cut, for all that is known
        }
    }

    /// A writer's connection has ended, in order or not.
    pub fn writer_left(&self, in_order: bool) {
        self.writers.fetch_sub(1, Ordering::AcqRel);
        if !in_order {
            self.lost();
        }
    }

    /// It may lack what its writer had acknowledged elsewhere.
    pub fn lost(&self) {
        // What is being caught up must begin anew; what was unclean stays so.
        let worse =
            |was| matches!(Behind::of(was as u8), Behind::No | Behind::Resync).then_some(Behind::WriterLost as u64);
        self.change_behind(worse);
    }

    /// Makes it durable that from now on only an orderly end is a clean one. Blocks; does nothing the second time.
    ///
    /// # Errors
    /// A failing storage.
    pub fn open(&self) -> Result<(), MetaError> {
        if !self.open.load(Ordering::Acquire) {
            self.keep(true)?;
            self.open.store(true, Ordering::Release);
        }
        Ok(())
    }

    /// As [`Replica::open`], for async tasks: a thread waits for the device.
    ///
    /// # Errors
    /// A failing storage.
    pub async fn open_for_client(self: Arc<Self>) -> Result<(), MetaError> {
        if self.open.load(Ordering::Acquire) {
            return Ok(());
        }
        let turn = match &self.kept {
            Some((store, _)) => Some(store.turn().await),
            None => None,
        };
        // The turn is the thread's: a client that leaves meanwhile lets no other thread wait beside it.
        let opened = tokio::task::spawn_blocking(move || {
            let opened = self.open();
            drop(turn);
            opened
        });
        opened.await.map_err(|e| MetaError::Io(e.into()))?
    }

    /// After an orderly end. Blocks; does nothing where nobody could have changed it.
    ///
    /// # Errors
    /// A failing storage.
    pub fn close(&self) -> Result<(), MetaError> {
        if !self.open.load(Ordering::Acquire) {
            return Ok(());
        }
        if self.granted.load(Ordering::Acquire) > 0 {
            self.lost(); // one who was told that the export is open finds it closed, and may have written elsewhere
        }
        self.keep(false)
    }

    /// Begins a resync with the attempt of that number, which supersedes any other. The replica reports it and isn't read meanwhile.
    /// `copies`: what a peer has overwrites the volume's content. Blocks.
    ///
    /// # Errors
    /// A failing storage. Within: connections that exclude it. Then nothing has begun.
    pub fn catch_up(&self, attempt: u32, copies: bool) -> Result<Result<(), Excluded>, MetaError> {
        let copied = if copies { COPIED } else { 0 };
        let began = self.unless_excluded(copies, || {
            self.change_behind(|_| Some(caught_up_by(attempt) | copied));
        });
        if let Err(excluded) = began {
            return Ok(Err(excluded));
        }
        self.keep(true)?;
        self.open.store(true, Ordering::Release);
        // The storage may take long. A client that came meanwhile, before the copier, has ended the attempt.
        Ok(if self.is_caught_up_by(attempt) { Ok(()) } else { Err(Excluded::Ended) })
    }

    /// True while that attempt is catching it up.
    pub fn is_caught_up_by(&self, attempt: u32) -> bool {
        self.behind.load(Ordering::Acquire) & !COPIED == caught_up_by(attempt)
    }

    /// It has all that a peer has, whose generation is larger by `add`, or smaller. False if that attempt isn't catching it up, as
    /// when a writer was lost meanwhile or another attempt has begun: then nothing is changed. Blocks.
    ///
    /// # Errors
    /// A failing storage.
    pub fn caught_up(&self, attempt: u32, add: i64) -> Result<bool, MetaError> {
        let (from, to) = (self.behind.load(Ordering::Acquire), Behind::No as u64);
        if from & !COPIED != caught_up_by(attempt) {
            return Ok(false);
        }
        // First, as whoever reads that it's caught up reads the generation, too.
        let generation = self.generation.fetch_add(add as u64, Ordering::AcqRel).wrapping_add_signed(add);
        // No range was changed later than all of it.
        for range in &self.ranges {
            range.fetch_min(generation, Ordering::AcqRel);
        }
        if !self.change_behind(|was| (was == from).then_some(to)) {
            self.generation.fetch_sub(add as u64, Ordering::AcqRel);
            return Ok(false);
        }
        self.keep(true)?;
        Ok(true)
    }

    /// False if `to` changes nothing. Watchers are notified at once: until then hosts of a path to the copy send it reads that it refuses.
    fn change_behind(&self, to: impl Fn(u64) -> Option<u64>) -> bool {
        let is_changed = self.behind.fetch_update(Ordering::AcqRel, Ordering::Acquire, to).is_ok();
        if is_changed {
            self.news.send_replace(());
        }
        is_changed
    }

    fn keep(&self, open: bool) -> Result<(), MetaError> {
        let Some((store, key)) = &self.kept else { return Ok(()) };
        let record = ReplicaRecord { changes: self.generation(), open, behind: self.behind() as u8 };
        store.change().set_replica(*key, record)
    }
}

/// The time between the grant of an export with `replica=write` and its client's attachment, until this is dropped.
pub struct Granted(Arc<Replica>);

impl Granted {
    /// Begins with the grant.
    pub fn of(replica: Arc<Replica>) -> Granted {
        replica.granted.fetch_add(1, Ordering::AcqRel);
        Granted(replica)
    }

    /// The client knows that its export is open, and can't be attached: it may write elsewhere.
    pub fn lost(self) {
        self.0.lost();
    }
}

impl Drop for Granted {
    fn drop(&mut self) {
        self.0.granted.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Bit of the word of a replica that is being caught up by copies. Without it, its content is declared complete as it is.
const COPIED: u64 = 1 << 40;

fn is_copied(word: u64) -> bool {
    Behind::of(word as u8) == Behind::Resync && word & COPIED != 0
}

/// The word of a replica that an attempt is catching up.
fn caught_up_by(attempt: u32) -> u64 {
    u64::from(attempt) << 8 | Behind::Resync as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Its volume may be withdrawn between the grant and the attachment.
    #[test]
    fn a_writer_that_was_told_and_is_not_attached_makes_no_end_a_clean_one() {
        for is_ended_first in [true, false] {
            let replica = Replica::new(1 << 20, ReplicaRecord::default(), None);
            replica.open().unwrap();
            drop(Granted::of(replica.clone()));
            replica.close().unwrap();
            assert_eq!(replica.behind(), Behind::No, "it has left without a word");
            let granted = Granted::of(replica.clone());
            if is_ended_first {
                replica.close().unwrap();
            } else {
                granted.lost();
            }
            assert_eq!(replica.behind(), Behind::WriterLost, "{is_ended_first}");
        }
    }

    #[test]
    fn a_replica_takes_over_its_peers_count_or_keeps_its_own() {
        let replica = Replica::new(1 << 20, ReplicaRecord::default(), None);
        (0..6).for_each(|i| replica.changed(i << 16, 512));
        assert!(!replica.caught_up(0, -1).unwrap(), "nobody has begun");
        assert_eq!(replica.generation(), 6);
        replica.catch_up(7, true).unwrap().unwrap();
        replica.catch_up(8, true).unwrap().unwrap();
        assert!(!replica.caught_up(7, -2).unwrap(), "another attempt has begun");
        assert!(replica.caught_up(8, -2).unwrap());
        assert_eq!((replica.generation(), replica.behind()), (4, Behind::No));
        let stamps: Vec<u64> = replica.written(0, 6 << 16).iter().map(|w| w.1).collect();
        assert_eq!(stamps, [1, 2, 3, 4], "no range was changed after all of it: {stamps:?}");
        replica.catch_up(9, true).unwrap().unwrap();
        replica.lost();
        assert!(!replica.caught_up(9, 3).unwrap());
        assert_eq!((replica.generation(), replica.behind()), (4, Behind::WriterLost));
    }
}
