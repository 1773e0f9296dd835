//! A volume that is open over its replicas, or a set of objects over the groups of nodes that share it.

use super::address::Address;
use super::driver::{Counts, Driver, Outcome, Terms};
use super::error::{OpenError, ReadError};
use super::home::Home;
use super::link::LinkState;
use super::options::Options;
use super::stream::Stream;
use super::timers;
use super::tls::Reading;
use plimsoll_base::Span;
use plimsoll_nbd::client::Opened;
use plimsoll_nbd::wire::MetaContext;
use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};
use tokio::sync::oneshot;
use tokio::task::AbortHandle;

/// Most replicas of a volume.
const REPLICAS_MAX: usize = 64;
/// Most groups of a set.
const GROUPS_MAX: usize = 1024;
/// Interval at which nodes are asked for their state and links are maintained.
const TEND_EVERY: Duration = Duration::from_secs(1);
/// The same of one that isn't read though it's connected.
const TEND_YOUNG: Duration = Duration::from_millis(50);
/// A link that fails is tried again after this, then after twice as long, ...
const RETRY_FIRST: Duration = Duration::from_millis(50);
/// ... and this at most.
const RETRY_MAX: Duration = Duration::from_secs(2);
/// Bytes taken from a socket at once.
const RECV_BYTES: usize = 256 << 10;

/// A replica as it is now.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ReplicaStatus {
    /// Address.
    pub address: String,
    /// Readability.
    pub state: LinkState,
    /// Number of changes that it has acknowledged, as last reported; 0 from servers that don't report it.
    pub generation: u64,
}

/// A volume over its replicas, or a set of objects ([`Volume::open_set`]). Clones share everything; when the last is dropped,
/// the connections close. In a child that was forked, reads fail, and dropping the last clone does nothing.
#[derive(Clone)]
pub struct Volume {
    inner: Arc<Inner>,
}

struct Inner {
    home: Home,
    groups: Vec<Group>,
    /// Of each object; of a volume that is none's set, all of it.
    object_bytes: u64,
    size_bytes: u64,
    limit: Duration,
    /// The policy has deadlines.
    refuses: bool,
}

/// A read's own terms. All of them by default: the policy's deadline, the volume's limit, and no refusal.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Ask {
    /// Of the policies with deadlines (`mitt`, `mitt+wait`, `mitt+budget`): nodes are asked to refuse at once a read that would take longer.
    /// `hedged` and `timeout` ask another replica after it. The other policies ignore it. `None`: the policy's own.
    pub deadline: Option<Duration>,
    /// The read fails after this long; `None`: [`Options::limit`].
    pub limit: Option<Duration>,
    /// If all replicas refuse, the read ends with [`ReadError::Busy`] at once instead of waiting at one of them. Only for policies
    /// with deadlines: `mitt`, `mitt+wait`, `mitt+budget`.
    pub refusable: bool,
}

/// Replicas of the same data, and the connections to them.
struct Group {
    driver: Arc<Mutex<Driver>>,
    tasks: Vec<AbortHandle>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        if self.home.is_left() {
            // Closing the copies of the sockets here would end them in the parent's event loop.
            std::mem::forget(std::mem::take(&mut self.groups));
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.tasks.iter().for_each(AbortHandle::abort);
    }
}

/// Withdraws a read whose caller has gone. A child that was forked leaves its parent's reads alone.
struct Asked<'a> {
    home: Home,
    driver: &'a Mutex<Driver>,
    get: (usize, u64),
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        if !self.home.is_left() {
            lock(self.driver).left(self.get);
        }
    }
}

fn lock(driver: &Mutex<Driver>) -> MutexGuard<'_, Driver> {
    driver.lock().expect("no panic while held")
}

impl Group {
    /// A group whose replicas are being connected to.
    fn new(replicas: &[Address], options: Options) -> Result<Group, OpenError> {
        if replicas.is_empty() || replicas.len() > REPLICAS_MAX {
            return Err(OpenError::Replicas(replicas.len()));
        }
        if let Some(address) = replicas.iter().find(|a| !options.foreign && a.has_deadline()) {
            return Err(OpenError::Deadline(address.to_string()));
        }
        let policy = options.policy.build(&options.settings)?;
        let addresses = replicas.iter().map(Address::to_string).collect();
        let driver = Arc::new(Mutex::new(Driver::new(addresses, policy, options.clone())));
        let mut tasks = vec![tokio::spawn(timers::run(driver.clone())).abort_handle()];
        for (link, address) in replicas.iter().enumerate() {
            tasks.push(tokio::spawn(keep(driver.clone(), link, address.clone(), options.clone())).abort_handle());
        }
        Ok(Group { driver, tasks })
    }

    /// Its size in bytes, once all of its replicas that can be reached are known.
    async fn size_bytes(&self, options: &Options) -> Result<u64, OpenError> {
        settled(&self.driver, options.connect).await
    }
}

impl Volume {
    /// Opens a volume over its replicas, in the order of the data's placement. Those that can't be reached now are tried
    /// again in the background; one that can be read is enough. Needs a tokio runtime with time and I/O, which must go on
    /// running as long as the volume is read: when it ends, all reads fail.
    ///
    /// # Errors
    /// If no replica can be read within [`Options::connect`], if they aren't of one size, or the options make no sense.
    pub async fn open(replicas: &[Address], options: &Options) -> Result<Volume, OpenError> {
        check(options)?;
        let group = Group::new(replicas, options.clone())?;
        let size_bytes = group.size_bytes(options).await?;
        let inner = Inner {
            home: Home::here(),
            groups: vec![group],
            object_bytes: size_bytes,
            size_bytes,
            limit: options.limit,
            refuses: options.policy.has_deadline(),
        };
        Ok(Volume { inner: Arc::new(inner) })
    }

    /// Opens a set of objects of `object_bytes` each that lie on more nodes than one volume's replicas: each of `groups` is a
    /// volume of its own with its replicas, object `i` is in group `i` modulo their number, and at `i * object_bytes` of what
    /// is opened. Policies learn, and connections are, by group. All groups are connected to at once.
    ///
    /// # Errors
    /// As [`Volume::open`] for each of the groups; if there is none or more than 1024; if an object is empty, larger than a group, or
    /// no multiple of what the nodes read.
    pub async fn open_set(groups: &[Vec<Address>], object_bytes: u64, options: &Options) -> Result<Volume, OpenError> {
        check(options)?;
        if groups.is_empty() || groups.len() > GROUPS_MAX {
            return Err(OpenError::Set(format!("{} groups: name 1 to {GROUPS_MAX}", groups.len())));
        }
        let group = |(i, replicas): (usize, &Vec<Address>)| {
            Group::new(replicas, Options { seed: options.seed.wrapping_add(i as u64), ..options.clone() })
        };
        let groups: Vec<Group> = groups.iter().enumerate().map(group).collect::<Result<_, _>>()?;
        let (mut least, mut largest_block) = (u64::MAX, 1);
        for group in &groups {
            least = least.min(group.size_bytes(options).await?);
            largest_block = largest_block.max(lock(&group.driver).shape().map_or(1, |(_, block, _)| block));
        }
        if object_bytes == 0 || object_bytes > least {
            let what = format!("objects of {object_bytes} bytes in groups of {least}: not one has room");
            return Err(OpenError::Set(what));
        }
        if !object_bytes.is_multiple_of(u64::from(largest_block)) {
            let what = format!("objects of {object_bytes} bytes: the nodes read multiples of {largest_block}");
            return Err(OpenError::Set(what));
        }
        let size_bytes = (least / object_bytes * object_bytes).checked_mul(groups.len() as u64);
        let size_bytes = size_bytes.ok_or_else(|| OpenError::Set("together they have more than 2^64 bytes".into()))?;
        let (limit, refuses) = (options.limit, options.policy.has_deadline());
        Ok(Volume { inner: Arc::new(Inner { home: Home::here(), groups, object_bytes, size_bytes, limit, refuses }) })
    }

    /// Its size in bytes.
    pub fn size_bytes(&self) -> u64 {
        self.inner.size_bytes
    }

    /// Reads a range, of a set one within an object. With a policy with deadlines, nodes are asked to refuse it at once if it would take longer
    /// than `deadline` (`None`: the policy's own), and then it goes to the next. For the other policies see [`Ask::deadline`].
    ///
    /// # Errors
    /// If the range or the deadline makes no sense, no replica brings the data, or [`Options::limit`] has come; in a child that was
    /// forked; after the end of the runtime that opened the volume.
    pub async fn read(&self, range: Range<u64>, deadline: Option<Duration>) -> Outcome {
        self.ask(range, Ask { deadline, ..Ask::default() }).await
    }

    /// Reads a range on terms of its own.
    ///
    /// # Errors
    /// As [`Volume::read`]; [`ReadError::Busy`] if it is refusable and every replica that answered has refused it.
    pub async fn ask(&self, range: Range<u64>, ask: Ask) -> Outcome {
        if self.inner.home.is_left() {
            return Err(ReadError::Forked);
        }
        let deadline = ask.deadline.map(checked).transpose()?;
        let limit = ask.limit.unwrap_or(self.inner.limit);
        if ask.refusable && !self.inner.refuses {
            let what = "a read that may be refused needs a policy with deadlines: mitt, mitt+wait or mitt+budget";
            return Err(ReadError::Deadline(what.into()));
        }
        if limit.is_zero() {
            return Err(ReadError::Deadline("a limit of nothing: there would be no time to ask anybody".into()));
        }
        let (group, start) = self.place(&range)?;
        let (send, answer) = oneshot::channel();
        let asked = {
            let mut driver = lock(&group.driver);
            let (_, block, most) = driver.shape().unwrap_or((0, 1, u32::MAX));
            check_shape(&range, start, block, most)?;
            let terms = Terms { deadline, limit, refusable: ask.refusable };
            let get = driver.begin(start, range.end - range.start, terms, send);
            Asked { home: self.inner.home, driver: &group.driver, get }
        };
        let outcome = answer.await;
        drop(asked);
        outcome.unwrap_or_else(|_| Err(ReadError::Failed(vec!["the client's tasks have ended".into()])))
    }

    /// Returns the group that holds a range, and the range's offset there.
    fn place(&self, range: &Range<u64>) -> Result<(&Group, u64), ReadError> {
        let Inner { groups, object_bytes, size_bytes, .. } = &*self.inner;
        if range.end <= range.start {
            return Err(bad_range(range, "the range is empty"));
        }
        if range.end > *size_bytes {
            return Err(bad_range(range, format!("the volume has {size_bytes} bytes")));
        }
        let object = range.start / object_bytes;
        if (range.end - 1) / object_bytes != object {
            return Err(bad_range(range, format!("it has parts of two objects, of {object_bytes} bytes each")));
        }
        let count = groups.len() as u64;
        Ok((&groups[(object % count) as usize], object / count * object_bytes + range.start % object_bytes))
    }

    /// Returns the state of the replicas, group by group; none in a child that was forked.
    pub fn replicas(&self) -> Vec<ReplicaStatus> {
        if self.inner.home.is_left() {
            return Vec::new(); // another thread may have held a lock when it was forked
        }
        let status = |l: &super::link::Link| ReplicaStatus {
            address: l.address.clone(),
            state: l.state.clone(),
            generation: l.generation,
        };
        let of_group = |g: &Group| lock(&g.driver).links.iter().map(status).collect::<Vec<_>>();
        self.inner.groups.iter().flat_map(of_group).collect()
    }

    /// Returns the counters, summed over all groups; zeroes in a child that was forked.
    pub fn counts(&self) -> Counts {
        if self.inner.home.is_left() {
            return Counts::default();
        }
        self.inner.groups.iter().fold(Counts::default(), |sum, g| sum + lock(&g.driver).counts)
    }
}

/// Checks the options: times must be long enough to be kept.
fn check(options: &Options) -> Result<(), OpenError> {
    if options.stall < 2 * TEND_EVERY {
        return Err(OpenError::Time("a stall of less than two seconds: nodes are asked every second how they are"));
    }
    if options.limit.is_zero() || options.connect.is_zero() {
        return Err(OpenError::Time("a limit of nothing, or no time to connect: nothing can be kept to it"));
    }
    Ok(())
}

fn bad_range(range: &Range<u64>, what: impl std::fmt::Display) -> ReadError {
    ReadError::Range(format!("{}..{}: {what}", range.start, range.end))
}

/// Checks that the nodes can read `range` in one request: it is aligned to `block` bytes and has at most `most` bytes. `start` is
/// its place on the nodes.
fn check_shape(range: &Range<u64>, start: u64, block: u32, most: u32) -> Result<(), ReadError> {
    let len = range.end - range.start;
    if len > u64::from(most) {
        return Err(bad_range(range, format!("the nodes send at most {most} bytes at once")));
    }
    if !start.is_multiple_of(u64::from(block)) || !len.is_multiple_of(u64::from(block)) {
        return Err(bad_range(range, format!("the nodes read multiples of {block} bytes")));
    }
    Ok(())
}

fn checked(deadline: Duration) -> Result<Span, ReadError> {
    let said = (1..u128::from(u32::MAX)).contains(&deadline.as_micros());
    let what = || format!("a deadline of {deadline:?}: no node can keep to it; use 1 us to 71 minutes");
    if said { Ok(Span::from(deadline)) } else { Err(ReadError::Deadline(what())) }
}

/// Waits until every link has found out how its replica is; the volume's size.
async fn settled(driver: &Mutex<Driver>, at_most: Duration) -> Result<u64, OpenError> {
    let until = Instant::now() + at_most;
    let changed = lock(driver).changed.clone();
    let opening = |d: &Driver| d.links.iter().any(|l| l.state == LinkState::Opening);
    // A second look tells who is behind from who was about to be told of a change.
    for look in 0..2 {
        loop {
            let waits = changed.notified();
            if !opening(&lock(driver)) || Instant::now() >= until {
                break;
            }
            let _ = tokio::time::timeout_at(until.into(), waits).await;
        }
        lock(driver).compare();
        if look == 0 && lock(driver).links.iter().any(|l| matches!(l.state, LinkState::Behind(_))) {
            // A change that was on its way to this replica looks like a missed one: it is asked again meanwhile.
            tokio::time::sleep(3 * TEND_YOUNG).await;
        }
    }
    let mut d = lock(driver);
    let sizes: Vec<(String, u64)> =
        d.links.iter().filter_map(|l| Some((l.address.clone(), l.open.as_ref()?.size_bytes))).collect();
    if sizes.windows(2).any(|w| w[0].1 != w[1].1) {
        return Err(OpenError::Sizes(sizes));
    }
    if !d.links.iter().any(|l| l.state == LinkState::Up) {
        let why = |l: &super::link::Link| match &l.state {
            LinkState::Down(why) | LinkState::Behind(why) => why.clone(),
            LinkState::Opening | LinkState::Up => format!("hangs: nothing came of it within {at_most:?}"),
        };
        return Err(OpenError::NoneOpen(d.links.iter().map(|l| (l.address.clone(), why(l))).collect()));
    }
    d.size_bytes = Some(sizes[0].1);
    Ok(sizes[0].1)
}

/// Keeps a link connected, for ever.
async fn keep(driver: Arc<Mutex<Driver>>, link: usize, address: Address, options: Options) {
    let (mut pause, reading) = (RETRY_FIRST, Reading::default());
    loop {
        let began = Instant::now();
        let why = match tokio::time::timeout(options.connect, connect(&address, options.foreign, &reading)).await {
            Err(_) => format!("doesn't answer within {:?}", options.connect),
            Ok(Err(e)) => e.to_string(),
            Ok(Ok((stream, opened, early))) => {
                let stream = Arc::new(stream);
                let attached = lock(&driver).attach(link, stream.clone(), &opened);
                match attached {
                    Ok(()) => serve(&driver, link, &stream, early).await,
                    Err(why) => why,
                }
            }
        };
        lock(&driver).lose(link, &why);
        if began.elapsed() > RETRY_MAX {
            pause = RETRY_FIRST;
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(RETRY_MAX);
    }
}

async fn connect(address: &Address, foreign: bool, reading: &Reading) -> io::Result<(Stream, Box<Opened>, Vec<u8>)> {
    let export = if foreign { address.export.clone() } else { address.export_with("replica=read") };
    let contexts = if foreign { Vec::new() } else { vec![MetaContext::Promise.name().to_string()] };
    super::connect::connect(&address.place, export, contexts, reading).await
}

/// Carries a link's bytes until its connection ends; why it did.
async fn serve(driver: &Mutex<Driver>, link: usize, stream: &Stream, early: Vec<u8>) -> String {
    let stuck = lock(driver).links[link].stuck.clone();
    let mut buffer = vec![0; RECV_BYTES];
    if let Err(why) = lock(driver).feed(link, &early) {
        return why;
    }
    let mut tend_at = Instant::now() + TEND_YOUNG;
    let mut full = false;
    loop {
        tokio::select! {
            ready = stream.readable() => {
                if let Err(e) = ready {
                    return e.to_string();
                }
                match stream.read_now(&mut buffer) {
                    Ok(None) => {}
                    Ok(Some(0)) => return "the node closed the connection".into(),
                    Ok(Some(n)) => if let Err(why) = lock(driver).feed(link, &buffer[..n]) {
                        return why;
                    },
                    Err(e) => return e.to_string(),
                }
            }
            () = stuck.notified() => full = true,
            // Beside the others: a node that takes nothing is still read from, and given up when it says nothing.
            written = stream.writable(), if full => {
                full = false;
                if written.is_err() || !lock(driver).links[link].flush() {
                    return "the connection broke".into();
                }
            }
            () = tokio::time::sleep_until(tend_at.into()) => {
                let mut d = lock(driver);
                if let Err(why) = d.tend(link) {
                    return why;
                }
                let young = d.links[link].state != LinkState::Up;
                tend_at = Instant::now() + if young { TEND_YOUNG } else { TEND_EVERY };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_of_fork_doesnt_withdraw_its_parents_read() {
        let policy = crate::PolicyKind::Base.build(&crate::PolicySettings::default()).unwrap();
        let driver = Arc::new(Mutex::new(Driver::new(vec!["one".into()], policy, Options::default())));
        // Another thread of the parent may have held the lock at the fork.
        let held = lock(&driver);
        let (send, dropped) = std::sync::mpsc::channel();
        let childs = driver.clone();
        std::thread::spawn(move || {
            drop(Asked { home: Home::elsewhere(), driver: &childs, get: (0, 1) });
            send.send(())
        });
        dropped.recv_timeout(Duration::from_secs(20)).expect("it takes no lock");
        drop(held);
    }
}
