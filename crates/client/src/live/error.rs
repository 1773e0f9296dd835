//! Errors of the live client, for people.

use super::home::FORKED;
use crate::choice::BadPolicy;
use std::fmt;
use std::time::Duration;

/// Reason why a volume wasn't opened.
#[derive(Debug)]
pub enum OpenError {
    /// No replica was named, or more than 64.
    Replicas(usize),
    /// A set of objects that can't be.
    Set(String),
    /// Settings that no policy can work with.
    Policy(BadPolicy),
    /// No thread, or no runtime on it.
    Thread(std::io::Error),
    /// A time that can't be kept to.
    Time(&'static str),
    /// Not one replica can be read: which, and why.
    NoneOpen(Vec<(String, String)>),
    /// A writer needs all replicas, and these can't be connected to: which, and why.
    NotAll(Vec<(String, String)>),
    /// A writer was to be opened, and these replicas have one: which.
    Writer(Vec<String>),
    /// An address that was given twice to a writer: its replica would have two writers.
    Twice(String),
    /// The runtime ended meanwhile.
    Ended,
    /// An address with a deadline, which no read of a volume would have: each has the policy's or its own.
    Deadline(String),
    /// Replicas that can't be of the same volume: which, and their sizes in bytes.
    Sizes(Vec<(String, u64)>),
    /// Replicas that aren't equal, though none is known to lack changes: which, and how many changes each has seen. A writer would add
    /// its changes to different data.
    Generations(Vec<(String, u64)>),
    /// Replicas that are marked as behind have seen more changes than the complete ones, which may lack those: which, and how many changes
    /// each has seen.
    Newer {
        /// The marked ones, by address.
        marked: Vec<(String, u64)>,
        /// The complete ones, by address.
        complete: Vec<(String, u64)>,
    },
    /// No write fits all replicas: the unit of one is longer than the longest write of another, both in bytes.
    Lengths {
        /// The largest unit of offsets and lengths.
        unit_bytes: u32,
        /// The smallest limit of a write.
        payload_bytes_max: u32,
    },
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OpenError::Replicas(n) => write!(f, "{n} replicas: name 1 to 64"),
            OpenError::Set(what) => f.write_str(what),
            OpenError::Policy(e) => e.fmt(f),
            OpenError::Thread(e) => write!(f, "no thread for the connections: {e}"),
            OpenError::Time(what) => f.write_str(what),
            OpenError::NoneOpen(all) => {
                f.write_str("no replica can be read")?;
                all.iter().try_for_each(|(address, why)| write!(f, "; {address}: {why}"))
            }
            OpenError::NotAll(all) => {
                f.write_str("a writer needs all replicas")?;
                all.iter().try_for_each(|(address, why)| write!(f, "; {address}: {why}"))
            }
            OpenError::Writer(all) => {
                f.write_str(
                    "the volume has a writer, and has one at a time: close it first, or wait until its nodes have noticed its end",
                )?;
                all.iter().try_for_each(|address| write!(f, "; {address}"))
            }
            OpenError::Twice(address) => write!(f, "{address}: named twice, and a replica has one writer"),
            OpenError::Ended => f.write_str("the runtime ended while the volume was opened"),
            OpenError::Deadline(address) => write!(
                f,
                "{address}: the deadline in the address would never hold, as each read has the policy's or its own: leave it out"
            ),
            OpenError::Sizes(all) => {
                f.write_str("these aren't replicas of one volume, their sizes differ")?;
                all.iter().try_for_each(|(address, bytes)| write!(f, "; {address}: {bytes} bytes"))
            }
            OpenError::Generations(all) => {
                f.write_str(
                    "the replicas have seen different numbers of changes: `plimsoll volume resync` brings one up",
                )?;
                all.iter().try_for_each(|(address, changes)| write!(f, "; {address}: {changes} changes"))
            }
            OpenError::Newer { marked, complete } => {
                f.write_str(
                    "a replica that is marked as behind has seen more changes than the others, which may lack those: choose one to \
                     trust, and bring the others up with `plimsoll volume resync`",
                )?;
                let mut all = marked.iter().map(|m| (m, "marked")).chain(complete.iter().map(|c| (c, "complete")));
                all.try_for_each(|((address, changes), is)| write!(f, "; {address}: {changes} changes, {is}"))
            }
            OpenError::Lengths { unit_bytes, payload_bytes_max } => write!(
                f,
                "no write fits all replicas: one writes multiples of {unit_bytes} bytes, another at most {payload_bytes_max}"
            ),
        }
    }
}

impl std::error::Error for OpenError {}

impl From<BadPolicy> for OpenError {
    fn from(e: BadPolicy) -> OpenError {
        OpenError::Policy(e)
    }
}

/// Reason why a read failed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ReadError {
    /// The range isn't the volume's.
    Range(String),
    /// A deadline or a limit that is zero, or that can't be expressed on the wire.
    Deadline(String),
    /// This process was forked from the one that opened the volume. Nothing was sent.
    Forked,
    /// The caller's limit came.
    Limit {
        /// It.
        limit: Duration,
        /// Events up to then, by replica.
        heard: Vec<String>,
    },
    /// Every replica that could be asked has failed, or none can be asked: the error of each.
    Failed(Vec<String>),
    /// A refusable read ([`super::Ask::refusable`]) would have been late at each replica that didn't fail: wait, or go elsewhere.
    Busy {
        /// Predicted wait at the replica that would be ready soonest; the device's own time comes on top.
        wait: Duration,
        /// Confidence of that replica's forecast, in thousandths: how well its node knows the device, 1000 is exact. No probability. `None` from
        /// servers that don't say.
        confidence_permille: Option<u32>,
        /// The answers, by replica.
        heard: Vec<String>,
    },
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReadError::Range(what) | ReadError::Deadline(what) => f.write_str(what),
            ReadError::Forked => write!(f, "the volume can't be read: {FORKED}"),
            ReadError::Limit { limit, heard } => {
                write!(f, "no answer within {limit:?}")?;
                heard.iter().try_for_each(|what| write!(f, "; {what}"))
            }
            ReadError::Busy { wait, heard, .. } => {
                write!(f, "busy: the replicas that didn't fail have refused the read, the soonest for {wait:?}")?;
                heard.iter().try_for_each(|what| write!(f, "; {what}"))
            }
            ReadError::Failed(heard) => write!(f, "no replica answered the read: {}", heard.join("; ")),
        }
    }
}

impl std::error::Error for ReadError {}
