//! Writes to all replicas of a volume.

use super::address::Address;
use super::error::OpenError;
use super::home::{FORKED, Home};
use super::options::Options;
use super::session::{Health, Session};
use std::fmt;
use std::io;
use std::ops::Range;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::task::Poll;
use std::time::{Duration, Instant};
use tokio::runtime::Handle;
use tokio::sync::Mutex;

/// Longest range of one TRIM, in bytes.
const TRIM_BYTES_MAX: u64 = 1 << 30;

const CLOSED: &str = "the writer is closed";

/// Reason for a change's failure.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum WriteError {
    /// The range isn't the volume's. Nothing was sent.
    Range(String),
    /// Some replicas have the change and others may not: their answers. The writer takes no more changes: open another with the
    /// replicas that are left, and resync the others.
    Failed(Vec<String>),
    /// An earlier change had failed, the writer is closed, or this process was forked from the one that opened it. Nothing was sent.
    Closed(String),
}

impl fmt::Display for WriteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WriteError::Range(what) => f.write_str(what),
            WriteError::Failed(heard) => write!(f, "not all replicas have the change: {}", heard.join("; ")),
            WriteError::Closed(why) => write!(f, "no change is taken any more: {why}; open the volume again"),
        }
    }
}

impl std::error::Error for WriteError {}

/// A writer's sessions, with `replica=write`.
struct Sessions {
    all: Vec<(String, Session)>,
    /// The first failure.
    broken: Option<String>,
    /// A change is under way, or was given up half way: nothing can follow on these connections, not even a farewell. A flush is no change.
    adrift: bool,
}

/// One writer of a volume. A change has succeeded when every replica has acknowledged it. Changes are sent one after another, so
/// that a count of changes says which replica is newer.
///
/// A replica whose writer is lost without [`Writer::close`] is one that may lack writes, and isn't read until it is resynced; so
/// is one on which a change or a flush fails, and one that gets a second writer. In a child that was forked, changes fail, and closing or dropping
/// the writer does nothing.
pub struct Writer {
    home: Home,
    sessions: Mutex<Sessions>,
    /// Changes that wait for their turn fail.
    closing: AtomicBool,
    size_bytes: u64,
    /// Longest payload of a WRITE, and the unit of offsets and lengths, in bytes.
    payload_bytes_max: u32,
    block_bytes: u32,
}

impl Drop for Writer {
    fn drop(&mut self) {
        if self.home.is_left() {
            // Closing the copies of the sockets here would end them in the parent's event loop.
            std::mem::forget(std::mem::take(&mut self.sessions.get_mut().all));
        }
    }
}

impl Writer {
    /// Connects to all replicas. Each answer is waited for as long as [`Options::limit`] says.
    ///
    /// # Errors
    /// If a replica can't be connected to or has a writer, one is named twice, they aren't of one size, or no write fits all; and if they
    /// have seen different numbers of changes: one of them lacks some that another has. Replicas that are marked as such may have seen fewer: nobody reads them before a resync.
    /// One that is marked and has seen more may have acknowledged changes that the others lack. None of these has been written to.
    ///
    /// A future that is dropped leaves no replica marked: those that were connected get a farewell.
    ///
    /// Two writers that open at the same moment may mark the replicas. One of them at least gets [`OpenError::Writer`].
    pub async fn open(replicas: &[Address], options: &Options) -> Result<Writer, OpenError> {
        if replicas.is_empty() {
            return Err(OpenError::Replicas(0));
        }
        if let Some((_, twice)) = replicas.iter().enumerate().find(|(i, a)| replicas[..*i].contains(a)) {
            return Err(OpenError::Twice(twice.to_string()));
        }
        // As a reader first: whoever is refused must not have been the volume's second writer.
        let seen = sessions(replicas, options, &Role::Reads).await?;
        farewell(seen.all).await;
        // In a task of its own: a node takes a writer that goes without a farewell for one that was lost.
        let (replicas, options) = (replicas.to_vec(), options.clone());
        let opening = async move {
            let Opened { all, lengths, .. } =
                sessions(&replicas, &options, &Role::Writes { complete: seen.complete }).await?;
            Ok((Parting { all, runtime: Handle::current() }, lengths))
        };
        let (mut opened, lengths) = tokio::spawn(opening).await.unwrap_or_else(|_| Err(OpenError::Ended))?;
        let all = std::mem::take(&mut opened.all);
        let Lengths { size_bytes, payload_bytes_max, unit_bytes } = lengths;
        let sessions = Mutex::new(Sessions { all, broken: None, adrift: false });
        let home = Home::here();
        Ok(Writer {
            home,
            sessions,
            closing: AtomicBool::new(false),
            size_bytes,
            payload_bytes_max,
            block_bytes: unit_bytes,
        })
    }

    /// Writes. Longer data than a node takes at once are sent in pieces, with no other change between them: a failure may leave some of them
    /// written.
    ///
    /// # Errors
    /// If the range isn't the volume's, or a replica doesn't acknowledge the change.
    ///
    /// A future that is dropped leaves the writer broken: its replicas may differ.
    pub async fn write(&self, offset: u64, data: &[u8]) -> Result<(), WriteError> {
        let range = self.range(offset, data.len() as u64)?;
        let piece = self.payload_bytes_max as usize / self.block_bytes as usize * self.block_bytes as usize;
        let parts = data.chunks(piece).enumerate();
        self.change(parts.map(|(i, part)| Change::Write(range.start + (i * piece) as u64, part))).await
    }

    /// Gives up a range's content.
    ///
    /// # Errors
    /// As [`Writer::write`].
    pub async fn trim(&self, offset: u64, length: u64) -> Result<(), WriteError> {
        let range = self.range(offset, length)?;
        let parts = (range.start..range.end).step_by(TRIM_BYTES_MAX as usize);
        self.change(parts.map(|at| Change::Trim(at, (range.end - at).min(TRIM_BYTES_MAX) as u32))).await
    }

    /// Makes everything durable that was acknowledged before.
    ///
    /// # Errors
    /// As [`Writer::write`].
    pub async fn flush(&self) -> Result<(), WriteError> {
        self.change(std::iter::once(Change::Flush)).await
    }

    /// Ends the sessions in order, after a change that is under way: replicas that have acknowledged everything lack nothing. Changes
    /// that wait for their turn fail with [`WriteError::Closed`]. After a change that failed it only disconnects, and the replicas that failed
    /// stay marked. A flush that is late or was given up is no change: its replicas lack nothing, and get a farewell.
    ///
    /// A change under way, even a long one of many pieces, goes on to its end: half of it would be neither written nor not. Each piece
    /// takes [`Options::limit`] at most, and so do the farewells, which go to all replicas at once. They are sent even if this future is
    /// dropped meanwhile.
    pub async fn close(&self) {
        if self.home.is_left() {
            return;
        }
        self.closing.store(true, Relaxed); // the lock orders it
        let mut sessions = self.sessions.lock().await;
        sessions.broken.get_or_insert_with(|| CLOSED.into());
        if sessions.adrift {
            sessions.all.clear();
        }
        // In a task of its own: a caller that goes takes back no farewell.
        let _ = tokio::spawn(farewell(std::mem::take(&mut sessions.all))).await; // it fails only if the runtime ends
    }

    fn range(&self, offset: u64, length: u64) -> Result<Range<u64>, WriteError> {
        let bad = |what: String| Err(WriteError::Range(format!("{length} bytes at {offset}: {what}")));
        let block = u64::from(self.block_bytes);
        match offset.checked_add(length) {
            _ if length == 0 => bad("the range is empty".into()),
            Some(end) if end <= self.size_bytes => {
                if offset.is_multiple_of(block) && length.is_multiple_of(block) {
                    return Ok(offset..end);
                }
                bad(format!("the nodes write multiples of {block} bytes"))
            }
            _ => bad(format!("the volume has {} bytes", self.size_bytes)),
        }
    }

    /// Sends the parts of a change, one after another.
    async fn change<'a>(&self, parts: impl Iterator<Item = Change<'a>>) -> Result<(), WriteError> {
        if self.home.is_left() {
            return Err(WriteError::Closed(FORKED.into()));
        }
        let mut sessions = self.sessions.lock().await;
        if let Some(why) = &sessions.broken {
            return Err(WriteError::Closed(why.clone()));
        }
        if self.closing.load(Relaxed) {
            return Err(WriteError::Closed(CLOSED.into()));
        }
        for part in parts {
            Writer::send(&mut sessions, part).await?;
        }
        Ok(())
    }

    async fn send(sessions: &mut Sessions, change: Change<'_>) -> Result<(), WriteError> {
        // They stay so if this future is dropped half way.
        sessions.broken = Some("a change was given up before all replicas had acknowledged it".into());
        sessions.adrift = !matches!(change, Change::Flush);
        let ended = all(sessions.all.iter_mut().map(|(_, s)| change.send(s)).collect()).await;
        sessions.adrift = false;
        let mut heard = Vec::new();
        let failed = ended.iter().enumerate().rev().filter_map(|(i, end)| Some((i, end.as_ref().err()?)));
        for (i, e) in failed {
            heard.push(format!("{}: {e}", sessions.all[i].0));
            // Ends without NBD's farewell: the replica may lack the change. One whose flush is late lacks nothing.
            if !sessions.all[i].1.lacks_nothing() {
                sessions.all.remove(i);
            }
        }
        heard.reverse();
        sessions.broken = heard.first().cloned();
        if heard.is_empty() { Ok(()) } else { Err(WriteError::Failed(heard)) }
    }
}

struct Lengths {
    size_bytes: u64,
    payload_bytes_max: u32,
    unit_bytes: u32,
}

type Open = Vec<(String, Session)>;

/// Time for a former writer's farewell to arrive: it may have been sent just before.
const FAREWELL: Duration = Duration::from_secs(1);
/// Interval of asking for it.
const ASK_EVERY: Duration = Duration::from_millis(10);

/// Purpose of sessions.
enum Role {
    /// To look whether a writer may come.
    Reads,
    /// To write. `complete` weren't marked before.
    Writes { complete: Vec<(String, u64)> },
}

struct Opened {
    all: Open,
    lengths: Lengths,
    /// Replicas that aren't marked, and how many changes each has seen.
    complete: Vec<(String, u64)>,
}

/// Asks for a replica's state. A writer that has left may still be counted for a moment, for which it waits `until` then.
async fn health(session: &mut Session, role: &Role, until: Instant) -> io::Result<Health> {
    loop {
        let health = session.health().await?;
        if matches!(role, Role::Writes { .. }) || health.writers == 0 || Instant::now() >= until {
            return Ok(health);
        }
        // A node tells nobody that a writer has said farewell, so it is asked again.
        tokio::time::sleep(ASK_EVERY).await;
    }
}

/// Connects to all replicas, if a writer may add its changes to what they have.
async fn sessions(replicas: &[Address], options: &Options, role: &Role) -> Result<Opened, OpenError> {
    let (mut all, mut failed) = (Vec::new(), Vec::new());
    let (term, writers) = match role {
        Role::Reads => ("replica=read", 0),
        Role::Writes { .. } => ("replica=write", 1),
    };
    for address in replicas {
        match Session::open(address, address.export_with(term), options.limit).await {
            Ok(session) => all.push((address.to_string(), session)),
            Err(e) => failed.push((address.to_string(), e.to_string())),
        }
    }
    let (mut complete, mut marked, mut written) = (Vec::new(), Vec::new(), Vec::new());
    let until = Instant::now() + FAREWELL;
    for (address, session) in &mut all {
        match health(session, role, until).await {
            Ok(health) => {
                // A mark that came with this session is by another writer's.
                let was_complete =
                    matches!(role, Role::Writes { complete } if complete.iter().any(|(a, _)| a == address));
                if health.writers > writers || was_complete && health.behind != 0 {
                    written.push(address.clone());
                }
                let replicas = if health.behind == 0 { &mut complete } else { &mut marked };
                replicas.push((address.clone(), health.generation));
            }
            Err(e) => failed.push((address.clone(), e.to_string())),
        }
    }
    let sizes: Vec<(String, u64)> = all.iter().map(|(a, s)| (a.clone(), s.size_bytes())).collect();
    let differ = |of: &[(String, u64)]| of.windows(2).any(|w| w[0].1 != w[1].1);
    let limits = all.iter().map(|(_, s)| s.payload_bytes_max());
    let (payload_bytes_max, unit_bytes) = limits.fold((u32::MAX, 1), |a, b| (a.0.min(b.0), a.1.max(b.1)));
    let newer = |complete: &[(String, u64)]| complete.first().is_some_and(|c| marked.iter().any(|m| m.1 > c.1));
    let wrong = if !failed.is_empty() {
        OpenError::NotAll(failed)
    } else if !written.is_empty() {
        OpenError::Writer(written)
    } else if differ(&sizes) {
        OpenError::Sizes(sizes)
    } else if differ(&complete) {
        OpenError::Generations(complete)
    } else if newer(&complete) {
        OpenError::Newer { marked, complete }
    } else if payload_bytes_max < unit_bytes {
        OpenError::Lengths { unit_bytes, payload_bytes_max }
    } else {
        let lengths = Lengths { size_bytes: sizes[0].1, payload_bytes_max, unit_bytes };
        return Ok(Opened { all, lengths, complete });
    };
    farewell(all).await;
    Err(wrong)
}

/// Ends sessions in order, side by side. A replica that the farewell doesn't reach is one that lost its writer.
async fn farewell(sessions: Open) {
    all(sessions.into_iter().map(|(_, s)| Box::pin(s.close()) as Doing<'_>).collect()).await;
}

/// A writer's sessions on the way to the caller, who may have gone.
struct Parting {
    all: Open,
    runtime: Handle,
}

impl Drop for Parting {
    fn drop(&mut self) {
        if !self.all.is_empty() {
            self.runtime.spawn(farewell(std::mem::take(&mut self.all)));
        }
    }
}

#[derive(Clone, Copy)]
enum Change<'a> {
    Write(u64, &'a [u8]),
    Trim(u64, u32),
    Flush,
}

impl<'a> Change<'a> {
    fn send(self, session: &'a mut Session) -> Doing<'a> {
        match self {
            Change::Write(offset, data) => Box::pin(session.write(offset, data)),
            Change::Trim(offset, length) => Box::pin(session.trim(offset, length)),
            Change::Flush => Box::pin(session.flush()),
        }
    }
}

type Doing<'a> = Pin<Box<dyn Future<Output = std::io::Result<()>> + Send + 'a>>;

/// The outputs of all of them, side by side.
async fn all(mut doing: Vec<Doing<'_>>) -> Vec<std::io::Result<()>> {
    let mut ended: Vec<Option<std::io::Result<()>>> = doing.iter().map(|_| None).collect();
    std::future::poll_fn(|context| {
        for (one, end) in doing.iter_mut().zip(&mut ended) {
            if end.is_none()
                && let Poll::Ready(result) = one.as_mut().poll(context)
            {
                *end = Some(result);
            }
        }
        if ended.iter().all(Option::is_some) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    ended.into_iter().flatten().collect()
}
