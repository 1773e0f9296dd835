//! Copies to a replica what a peer has and it hasn't.
//!
//! Pieces that differ are copied until a look at them finds no difference. The next look examines the pieces that were copied,
//! and those that the peer has changed since the look began. So it corrects a write that reached the replica first, and the
//! peer while its old data were on their way. Changes may go on meanwhile.
//!
//! Copies aren't counted as changes. So the two counts of changes, taken when both sides are still, show the peer's lead, and
//! whether a write has reached only one of them. If the difference isn't that of before the first look, a write is on its way,
//! and the copy waits for it.

use anyhow::{Context, Result, bail};
use indicatif::{ProgressBar, ProgressStyle};
use plimsoll_client::live::{Address, Health, Session};
use std::collections::BTreeSet;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

/// Compared and copied at once, in bytes.
const PIECE_BYTES: u64 = 1 << 20;
/// Looks until nothing differs, at most: more, and the writers are faster than this.
const LOOKS_MAX: u32 = 100;
/// Nothing must have changed for this long before the first look and after the last, ...
const STILL: Duration = Duration::from_millis(200);
/// ... for this long if one has got writes that the other hasn't: no write takes longer to come to all replicas, ...
const SURE: Duration = Duration::from_secs(5);
/// ... which is waited for this long.
const STILL_MAX: Duration = Duration::from_secs(60);
/// Time within which a node must answer each request.
const PATIENCE: Duration = Duration::from_secs(60);
/// [`Health::behind`] of a replica that is being caught up.
const BEING_CAUGHT_UP: u32 = 3;

/// Reason to refuse a `--replica` that isn't the volume of the control API; nothing was written.
#[derive(Debug)]
pub struct AnotherVolume(String);

impl std::fmt::Display for AnotherVolume {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} isn't the volume that --control and NAME say: it isn't being caught up", self.0)
    }
}

impl std::error::Error for AnotherVolume {}

/// Source and target of a copy.
pub struct Resync {
    /// To this replica ...
    pub replica: Address,
    /// ... from this one.
    pub from: Address,
    /// Even if the peer has seen fewer changes: the others are given up.
    pub discard: bool,
}

/// Two connections.
struct Pair<'a> {
    peer: Session,
    ours: Session,
    of: &'a Resync,
}

impl Resync {
    /// Copies what differs. Calls `begin` once all checks have passed: it notifies the replica's node that a copy begins. Calls `end` with
    /// the excess of the peer's generation, or with the error of the copy. The replica's node refuses other clients that may change it
    /// until after that.
    pub fn run<T>(&self, begin: impl FnOnce() -> Result<()>, end: impl FnOnce(Result<i64>) -> Result<T>) -> Result<T> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let mut pair = runtime.block_on(self.connect())?;
        begin()?;
        end(runtime.block_on(pair.catch_up()))
    }

    /// Connects to both and looks whether one may be copied to the other.
    async fn connect(&self) -> Result<Pair<'_>> {
        let (replica, from) = (&self.replica, &self.from);
        if replica == from {
            bail!("{from} can't be brought up to what it has itself: name another replica with --from");
        }
        // As one of several replicas, the peer isn't read if it may lack something itself.
        let opened = Session::open(from, from.export_with("replica=read"), PATIENCE).await;
        let peer = opened.with_context(|| from.to_string())?;
        let opened = Session::open(replica, replica.export_with("replica=copy"), PATIENCE).await;
        let ours = opened.with_context(|| replica.to_string())?;
        let (theirs, mine) = (peer.size_bytes(), ours.size_bytes());
        if theirs != mine {
            bail!("{from} has {theirs} bytes and {replica} has {mine}: they aren't replicas of one volume");
        }
        let mut pair = Pair { peer, ours, of: self };
        let (theirs, mine) = pair.checked().await?;
        let (theirs, mine) = (theirs.generation, mine.generation);
        if theirs < mine && !self.discard {
            bail!(
                "{from} has seen {theirs} changes, {replica} {mine}: is it the newer one? --discard gives up what the peer lacks"
            );
        }
        Ok(pair)
    }
}

impl Pair<'_> {
    /// State of both replicas; fails if a condition that must always hold doesn't.
    async fn checked(&mut self) -> Result<(Health, Health)> {
        let Resync { replica, from, .. } = self.of;
        let theirs = self.peer.health().await.with_context(|| from.to_string())?;
        let mine = self.ours.health().await.with_context(|| replica.to_string())?;
        if theirs.behind != 0 {
            bail!("{from} may lack acknowledged writes itself: choose another peer, or --trust it first");
        }
        if theirs.writers > 0 && mine.writers == 0 {
            bail!(
                "somebody writes to {from} and isn't connected to {replica}: let it connect, or what it writes is lacking here"
            );
        }
        if mine.writers > 0 && theirs.writers == 0 {
            bail!(
                "somebody writes to {replica} and isn't connected to {from}: let it connect, or what it writes is overwritten here"
            );
        }
        Ok((theirs, mine))
    }

    /// Fails if the attempt is void: whoever changed the volume keeps what it wrote.
    async fn must_go_on(&mut self) -> Result<()> {
        let mine = self.ours.health().await.with_context(|| self.of.replica.to_string())?;
        if mine.behind != BEING_CAUGHT_UP {
            bail!(
                "{} isn't being caught up any more: its writer was lost, it was trusted, or another attempt has begun. Begin anew",
                self.of.replica
            );
        }
        Ok(())
    }

    /// Looks and copies until nothing differs; by how much the peer's generation is larger.
    async fn catch_up(&mut self) -> Result<i64> {
        let before = self.ours.health().await.with_context(|| self.of.replica.to_string())?;
        if before.behind != BEING_CAUGHT_UP {
            return Err(AnotherVolume(self.of.replica.to_string()).into());
        }
        let mut ahead = ahead(self.still(STILL).await?);
        let size = self.ours.size_bytes();
        let first: BTreeSet<u64> = changed(&mut self.peer, before.generation as u32).await?;
        let rest = (0..size.div_ceil(PIECE_BYTES)).filter(|p| !first.contains(p));
        let mut pieces: Vec<u64> = first.iter().copied().chain(rest).collect();
        let mut copied_bytes = 0;
        for looks in 1..=LOOKS_MAX {
            let since = self.peer.health().await?.generation as u32;
            let our_since = self.ours.health().await?.generation as u32;
            let copied = self.look(&pieces, size).await?;
            copied_bytes += copied.len() as u64 * PIECE_BYTES;
            let mut again = changed(&mut self.peer, since).await?;
            again.append(&mut changed(&mut self.ours, our_since).await?);
            again.extend(&copied);
            if again.is_empty() {
                self.ours.flush().await.with_context(|| self.of.replica.to_string())?;
                let was = std::mem::replace(&mut ahead, self::ahead(self.still(STILL).await?));
                if ahead != was {
                    ahead = self::ahead(self.still(SURE).await?);
                }
                again = changed(&mut self.peer, since).await?;
                again.append(&mut changed(&mut self.ours, our_since).await?);
                if again.is_empty() {
                    eprintln!("copied {copied_bytes} of {size} bytes in {looks} looks");
                    return Ok(ahead);
                }
            }
            pieces = again.into_iter().collect();
        }
        bail!("after {LOOKS_MAX} looks something still changes: hold the writers for a moment");
    }

    /// State of both replicas once neither has changed for a while.
    async fn still(&mut self, quiet: Duration) -> Result<(Health, Health)> {
        let (until, mut since) = (Instant::now() + STILL_MAX, Instant::now());
        let mut seen = self.checked().await?;
        while since.elapsed() < quiet {
            if Instant::now() > until {
                bail!("something has changed all the time for {STILL_MAX:?}: hold the writers for {quiet:?}");
            }
            // Nobody tells of changes: the counts are asked for, often enough to see each quiet moment end.
            tokio::time::sleep(STILL / 20).await;
            let now = self.checked().await?;
            if (now.0.generation, now.1.generation) != (seen.0.generation, seen.1.generation) {
                since = Instant::now();
            }
            seen = now;
        }
        self.must_go_on().await?;
        Ok(seen)
    }

    /// Compares pieces and copies those that differ; which were copied.
    async fn look(&mut self, pieces: &[u64], size: u64) -> Result<Vec<u64>> {
        let style = ProgressStyle::with_template("{wide_bar} {pos}/{len} MiB compared, {msg} copied, {eta} left")?;
        let shown = ProgressBar::new(pieces.len() as u64).with_style(style);
        if !std::io::stderr().is_terminal() {
            shown.set_draw_target(indicatif::ProgressDrawTarget::hidden());
        }
        let mut copied = Vec::new();
        for &piece in pieces {
            let offset = piece * PIECE_BYTES;
            let length = (size - offset).min(PIECE_BYTES) as u32;
            let (theirs, mine) = tokio::join!(self.peer.read(offset, length), self.ours.read(offset, length));
            let (theirs, mine) = (theirs.context("reading from the peer")?, mine.context("reading the replica")?);
            if theirs != mine {
                self.must_go_on().await?;
                if let Err(e) = self.ours.write(offset, &theirs).await {
                    self.must_go_on().await?; // the node takes no copies of an attempt that is void
                    return Err(e).context("writing to the replica");
                }
                copied.push(piece);
                shown.set_message(copied.len().to_string());
            }
            shown.inc(1);
        }
        shown.finish_and_clear();
        Ok(copied)
    }
}

/// By how much the peer's generation is larger.
fn ahead((theirs, mine): (Health, Health)) -> i64 {
    theirs.generation.wrapping_sub(mine.generation) as i64
}

/// The pieces in which the peer was changed after generation `since` (its lower half).
async fn changed(peer: &mut Session, since: u32) -> Result<BTreeSet<u64>> {
    let (mut at, mut pieces) = (0, BTreeSet::new());
    for (len, generation) in peer.written().await? {
        if (generation.wrapping_sub(since) as i32) > 0 {
            pieces.extend(at / PIECE_BYTES..=(at + len - 1) / PIECE_BYTES);
        }
        at += len;
    }
    Ok(pieces)
}
