//! Copies to a replica what a peer has and it hasn't.
//!
//! Pieces that differ are copied until a look at them finds no difference. A piece that was copied, or that the peer has changed
//! since the look began, is looked at again: so a write that came to the replica first, and to the peer while its old data were
//! on their way, is put right by the next look. Changes may go on meanwhile; at the end both must be still for a moment, as
//! only then their counts of changes can be compared.

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
/// Nothing must have changed for this long at the end, ...
const STILL: Duration = Duration::from_millis(200);
/// ... which is waited for this long.
const STILL_MAX: Duration = Duration::from_secs(60);
/// Whatever is asked of a node must be answered within this.
const PATIENCE: Duration = Duration::from_secs(60);

/// Copies what differs from `from` to `replica`; by how much the peer's generation is larger.
pub fn run(replica: &Address, from: &Address) -> Result<i64> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(copy(replica, from))
}

async fn copy(replica: &Address, from: &Address) -> Result<i64> {
    // As one of several replicas, the peer isn't read if it may lack something itself.
    let opened = Session::open(from, from.export_with("replica=read"), PATIENCE).await;
    let mut peer = opened.with_context(|| from.to_string())?;
    let mut ours =
        Session::open(replica, replica.export.clone(), PATIENCE).await.with_context(|| replica.to_string())?;
    let size = ours.size_bytes();
    if peer.size_bytes() != size {
        bail!("{from} has {} bytes and {replica} has {size}: they aren't replicas of one volume", peer.size_bytes());
    }
    let before = ours.health().await.with_context(|| replica.to_string())?.generation;
    let first: BTreeSet<u64> = changed(&mut peer, before as u32).await?;
    let rest = (0..size.div_ceil(PIECE_BYTES)).filter(|p| !first.contains(p));
    let mut pieces: Vec<u64> = first.iter().copied().chain(rest).collect();
    let (mut copied_bytes, mut looks) = (0, 0);
    let (theirs, mine) = loop {
        let since = peer.health().await?.generation as u32;
        let copied = look(&mut peer, &mut ours, &pieces, size).await?;
        copied_bytes += copied.len() as u64 * PIECE_BYTES;
        looks += 1;
        let mut again = changed(&mut peer, since).await?;
        again.extend(&copied);
        if again.is_empty() {
            ours.flush().await.with_context(|| replica.to_string())?;
            let still = still(&mut peer, &mut ours).await?;
            again = changed(&mut peer, since).await?;
            if again.is_empty() {
                break still;
            }
        }
        if looks == LOOKS_MAX {
            bail!("after {LOOKS_MAX} looks something still changes: hold the writers for a moment");
        }
        pieces = again.into_iter().collect();
    };
    if theirs.writers > 0 && mine.writers == 0 {
        bail!(
            "somebody writes to {from} and isn't connected to {replica}: let it connect, or what it writes is lacking here"
        );
    }
    eprintln!("copied {copied_bytes} of {size} bytes in {looks} looks");
    Ok(theirs.generation as i64 - mine.generation as i64)
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

/// Compares pieces and copies those that differ; which were copied.
async fn look(peer: &mut Session, ours: &mut Session, pieces: &[u64], size: u64) -> Result<Vec<u64>> {
    let style = ProgressStyle::with_template("{wide_bar} {pos}/{len} MiB compared, {msg} copied, {eta} left")?;
    let shown = ProgressBar::new(pieces.len() as u64).with_style(style);
    if !std::io::stderr().is_terminal() {
        shown.set_draw_target(indicatif::ProgressDrawTarget::hidden());
    }
    let mut copied = Vec::new();
    for &piece in pieces {
        let offset = piece * PIECE_BYTES;
        let length = (size - offset).min(PIECE_BYTES) as u32;
        let (theirs, mine) = tokio::join!(peer.read(offset, length), ours.read(offset, length));
        let (theirs, mine) = (theirs.context("reading from the peer")?, mine.context("reading the replica")?);
        if theirs != mine {
            ours.write(offset, &theirs).await.context("writing to the replica")?;
            copied.push(piece);
            shown.set_message(copied.len().to_string());
        }
        shown.inc(1);
    }
    shown.finish_and_clear();
    Ok(copied)
}

/// How both are when neither has changed for a while: only then do their generations tell by how much they differ.
async fn still(peer: &mut Session, ours: &mut Session) -> Result<(Health, Health)> {
    let (until, mut since) = (Instant::now() + STILL_MAX, Instant::now());
    let mut seen = (peer.health().await?, ours.health().await?);
    while since.elapsed() < STILL {
        if Instant::now() > until {
            bail!("something has changed all the time for {STILL_MAX:?}: hold the writers for a moment");
        }
        tokio::time::sleep(STILL / 20).await;
        let now = (peer.health().await?, ours.health().await?);
        if (now.0.generation, now.1.generation) != (seen.0.generation, seen.1.generation) {
            since = Instant::now();
        }
        seen = now;
    }
    Ok(seen)
}
