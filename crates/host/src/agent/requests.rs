//! Requests that end, each with who ordered it, while this is open.

use super::StartError;
use super::bpf::{Aligned, Programs};
use crate::blame::{Ended, Owner};
use crate::shared::Mapped;
use aya::maps::{MapData, RingBuf};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

static TOP: &Aligned<[u8]> = &Aligned(*include_bytes!("../../bpf/top.bpf.o"));

const ATTACHED: [(&str, &str); 3] =
    [("complete", "block_rq_complete"), ("insert", "block_rq_insert"), ("issue", "block_rq_issue")];

/// Attached programs that tell of each request.
pub struct Requests {
    ends: RingBuf<MapData>,
    lost: Mapped<AtomicU64>,
    // After the map is read no more.
    _programs: Programs,
}

impl Requests {
    /// Loads and attaches them.
    pub fn open() -> Result<Requests, StartError> {
        Requests::open_object(&TOP.0)
    }

    /// The same with another object: a fresh compilation of the same source, in tests.
    #[doc(hidden)]
    pub fn open_object(object: &[u8]) -> Result<Requests, StartError> {
        let mut programs = Programs::load(object, &ATTACHED)?;
        let lost = programs.map("lost").and_then(Mapped::read_only).map_err(StartError::Maps)?;
        let ends = programs.take_ring("ends").map_err(StartError::Maps)?;
        programs.attach(&ATTACHED).map_err(StartError::Maps)?;
        Ok(Requests { ends, lost, _programs: programs })
    }

    /// Requests that found no room until they were taken.
    pub fn lost(&self) -> u64 {
        self.lost.load(Relaxed)
    }
}

/// Requests that have ended, of those that are waiting.
impl Iterator for Requests {
    type Item = Ended;
    fn next(&mut self) -> Option<Ended> {
        loop {
            let item = self.ends.next()?;
            if let Some(ended) = parse(&item) {
                return Some(ended);
            }
        }
    }
}

/// `struct ended` of `bpf/top.bpf.c`.
fn parse(raw: &[u8]) -> Option<Ended> {
    let wide = |at: usize| Some(u64::from_ne_bytes(raw.get(at..at + 8)?.try_into().ok()?));
    let narrow = |at: usize| Some(u32::from_ne_bytes(raw.get(at..at + 4)?.try_into().ok()?));
    let command = raw.get(40..56)?;
    let command = command.split(|b| *b == 0).next().unwrap_or_default();
    Some(Ended {
        arrived_ns: wide(0)?,
        issued_ns: wide(8)?,
        done_ns: wide(16)?,
        owner: Owner { process: narrow(24)?, command: String::from_utf8_lossy(command).into_owned() },
        dev: narrow(28)?,
        bytes: narrow(32)?.into(),
    })
}

/// The control group of a process, as its file system names it; empty if the process has gone.
pub fn cgroup_of(process: u32) -> io::Result<String> {
    let text = std::fs::read_to_string(format!("/proc/{process}/cgroup"))?;
    let lines: Vec<Vec<&str>> = text.lines().map(|l| l.splitn(3, ':').collect()).collect();
    let of = |controllers: &dyn Fn(&str) -> bool| lines.iter().find(|l| l.len() == 3 && controllers(l[1]));
    // Version 1 has a hierarchy for block devices; version 2 has one for all.
    let line = of(&|c| c.split(',').any(|c| c == "blkio")).or_else(|| of(&str::is_empty));
    Ok(line.map_or_else(String::new, |l| l[2].to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_program_writes_is_parsed() {
        let mut raw = Vec::new();
        for wide in [1u64, 2, 3] {
            raw.extend(wide.to_ne_bytes());
        }
        for narrow in [4u32, 5, 6, 0] {
            raw.extend(narrow.to_ne_bytes());
        }
        raw.extend(b"fio\0garbage.....");
        let e = parse(&raw).unwrap();
        assert_eq!((e.arrived_ns, e.issued_ns, e.done_ns, e.dev, e.bytes), (1, 2, 3, 5, 6));
        assert_eq!(e.owner, Owner { process: 4, command: "fio".into() });
        assert_eq!(parse(&raw[..55]), None);
    }
}
