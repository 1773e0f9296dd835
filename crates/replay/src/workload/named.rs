//! Workloads by name, as a command line gives them: `randread:bs=4k,depth=8`.

use crate::workload::filebench::oltp::{Oltp, OltpConfig};
use crate::workload::filebench::{Filebench, FilebenchConfig, Personality};
use crate::workload::fio::{Fio, FioJob, FioRequests, Pattern};
use crate::workload::open::{Arrivals, OpenLoop, Until};
use crate::workload::random::Sizes;
use crate::workload::ycsb::{Mix, Ycsb, YcsbConfig};
use crate::workload::{BadWorkload, ClosedLoop, Step};
use plimsoll_base::{Span, Time};
use plimsoll_trace::stream::RecordStream;
use std::fmt;
use std::str::FromStr;

/// A workload ready to run.
pub enum Workload {
    /// Arrivals are given.
    Open(Box<dyn RecordStream>),
    /// Threads wait for their answers.
    Closed(Box<dyn ClosedLoop>),
}

impl ClosedLoop for Box<dyn ClosedLoop> {
    fn threads(&self) -> u32 {
        (**self).threads()
    }
    fn depth(&self) -> u32 {
        (**self).depth()
    }
    fn depth_of(&self, thread: u32) -> u32 {
        (**self).depth_of(thread)
    }
    fn tenant_of(&self, thread: u32) -> Option<u16> {
        (**self).tenant_of(thread)
    }
    fn labels(&self) -> &[&'static str] {
        (**self).labels()
    }
    fn next(&mut self, thread: u32, now: Time) -> Step {
        (**self).next(thread, now)
    }
}

/// Workload that a name stands for, with its parameters.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NamedWorkload {
    text: String,
    name: String,
    parameters: Vec<(String, String)>,
}

/// The names there are, and what each is.
pub const NAMES: &str = "randread, randwrite, randrw, read, write, rw (fio), ycsb-a to ycsb-f, fileserver, varmail, \
                         webserver, oltp (filebench)";

const FIO: &[&str] = &["randread", "randwrite", "randrw", "read", "write", "rw"];
const FIO_KEYS: &[&str] = &["bs", "depth", "jobs", "rate", "think", "mix", "span", "zipf", "iops", "arrivals"];
const YCSB_KEYS: &[&str] = &["records", "threads", "target"];
const FILEBENCH_KEYS: &[&str] = &["files", "threads", "ops"];

fn keys(name: &str) -> Option<&'static [&'static str]> {
    match name {
        n if FIO.contains(&n) => Some(FIO_KEYS),
        "fileserver" | "varmail" | "webserver" => Some(FILEBENCH_KEYS),
        "oltp" => Some(&[]),
        n => n.strip_prefix("ycsb-").and_then(|l| Mix::named(l.parse().ok()?)).map(|_| YCSB_KEYS),
    }
}

impl FromStr for NamedWorkload {
    type Err = BadWorkload;

    /// `NAME` or `NAME:key=value,key=value`.
    fn from_str(text: &str) -> Result<NamedWorkload, BadWorkload> {
        let (name, rest) = text.split_once(':').unwrap_or((text, ""));
        let known = keys(name)
            .ok_or_else(|| BadWorkload::new("name", format!("`{name}` is no workload: use one of {NAMES}")))?;
        let mut parameters = Vec::new();
        for part in rest.split(',').filter(|p| !p.is_empty()) {
            let Some((key, value)) = part.split_once('=') else {
                return Err(BadWorkload::new("parameters", format!("`{part}`: write key=value")));
            };
            if !known.contains(&key) {
                let list = if known.is_empty() { "none".to_string() } else { known.join(", ") };
                return Err(BadWorkload::new("parameters", format!("`{name}` has no `{key}`: it takes {list}")));
            }
            parameters.push((key.to_string(), value.to_string()));
        }
        let workload = NamedWorkload { text: text.to_string(), name: name.to_string(), parameters };
        // Whatever is wrong with a value is said now, not when the run begins.
        workload.build(1 << 40, 1, Until::count(1))?;
        Ok(workload)
    }
}

impl fmt::Display for NamedWorkload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl NamedWorkload {
    fn value<T>(&self, key: &'static str, default: T, parse: impl Fn(&str) -> Option<T>) -> Result<T, BadWorkload> {
        match self.parameters.iter().rev().find(|p| p.0 == key) {
            None => Ok(default),
            Some((_, text)) => parse(text).ok_or_else(|| BadWorkload::new(key, format!("`{text}` makes no sense"))),
        }
    }

    fn number<T: FromStr>(&self, key: &'static str, default: T) -> Result<T, BadWorkload> {
        self.value(key, default, |t| t.parse().ok())
    }

    /// Sets it up on a device of `bytes` bytes. `until` bounds an open loop; a closed one is bounded by its driver.
    ///
    /// # Errors
    /// If a parameter makes no sense, or not on that device.
    pub fn build(&self, bytes: u64, seed: u64, until: Until) -> Result<Workload, BadWorkload> {
        match self.name.as_str() {
            name if FIO.contains(&name) => self.fio(bytes, seed, until),
            "fileserver" => self.filebench(Personality::Fileserver, bytes, seed),
            "varmail" => self.filebench(Personality::Varmail, bytes, seed),
            "webserver" => self.filebench(Personality::Webserver, bytes, seed),
            "oltp" => Ok(Workload::Closed(Box::new(Oltp::new(&OltpConfig::new(0, bytes), seed)?))),
            _ => self.ycsb(bytes, seed),
        }
    }

    fn fio(&self, bytes: u64, seed: u64, until: Until) -> Result<Workload, BadWorkload> {
        let mut job = FioJob::new(self.value("span", bytes, parse_bytes)?.min(bytes));
        job.sizes = Sizes::fixed(self.value("bs", 4096, parse_bytes)?)?;
        (job.depth, job.jobs) = (self.number("depth", 1)?, self.number("jobs", 1)?);
        job.rate_iops = self.number("rate", 0)?;
        job.think = self.value("think", Span::ZERO, |t| t.parse().ok())?;
        if !self.name.starts_with("rand") {
            job.pattern = Pattern::Sequential;
        } else if self.parameters.iter().any(|p| p.0 == "zipf") {
            job.pattern = Pattern::Zipf(self.number("zipf", 0.99)?);
        }
        let mixed = match self.name.trim_start_matches("rand") {
            "read" => 100,
            "write" => 0,
            _ => 50,
        };
        job.read_percent = self.number("mix", mixed)?;
        let iops: u64 = self.number("iops", 0)?;
        if iops == 0 {
            return Ok(Workload::Closed(Box::new(Fio::new(&job, seed)?)));
        }
        let gap = Span::from_nanos(1_000_000_000 / iops);
        let arrivals = self.value("arrivals", Arrivals::Poisson(gap), |t| match t {
            "poisson" => Some(Arrivals::Poisson(gap)),
            "constant" => Some(Arrivals::Constant(gap)),
            _ => None,
        })?;
        let requests = FioRequests::new(&job, 0, seed)?;
        Ok(Workload::Open(Box::new(OpenLoop::new(requests, arrivals, until, "generated", seed)?)))
    }

    fn ycsb(&self, bytes: u64, seed: u64) -> Result<Workload, BadWorkload> {
        let letter = self.name.chars().last().unwrap_or('a');
        let mix = Mix::named(letter).ok_or_else(|| BadWorkload::new("name", "ycsb-a to ycsb-f"))?;
        let records = self.number("records", (bytes / 4_000).min(10_000_000))?;
        let mut cfg = YcsbConfig::new(mix, records);
        if cfg.records_max.saturating_mul(cfg.record_bytes) > bytes {
            return Err(BadWorkload::new("records", "more than the device holds: use fewer"));
        }
        (cfg.threads, cfg.target) = (self.number("threads", 1)?, self.number("target", 0)?);
        Ok(Workload::Closed(Box::new(Ycsb::new(&cfg, seed)?)))
    }

    fn filebench(&self, personality: Personality, bytes: u64, seed: u64) -> Result<Workload, BadWorkload> {
        let mut cfg = FilebenchConfig::new(personality, 0, bytes);
        cfg.files = self.number("files", cfg.files)?;
        cfg.threads = self.number("threads", cfg.threads)?;
        cfg.ops_per_second = self.number("ops", 0)?;
        Ok(Workload::Closed(Box::new(Filebench::new(&cfg, seed)?)))
    }
}

/// `4096`, `4k`, `64KiB`, `1M`, `8GiB`: powers of 1024; `None` for anything else.
pub fn parse_bytes(text: &str) -> Option<u64> {
    let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let number: u64 = text[..split].parse().ok()?;
    let shift = match text[split..].to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kib" => 10,
        "m" | "mib" => 20,
        "g" | "gib" => 30,
        "t" | "tib" => 40,
        _ => return None,
    };
    number.checked_mul(1 << shift)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_build_and_mistakes_are_said() {
        for text in [
            "randread:bs=64k,depth=8,jobs=2",
            "write:bs=1M",
            "randrw:mix=70,zipf=1.1",
            "randread:iops=200,arrivals=constant",
            "ycsb-c:threads=8",
            "varmail:ops=20",
            "oltp",
        ] {
            text.parse::<NamedWorkload>().unwrap_or_else(|e| panic!("{text}: {e}"));
        }
        for (text, says) in [
            ("nothing", "is no workload"),
            ("ycsb-g", "is no workload"),
            ("randread:colour=red", "no `colour`"),
            ("randread:bs", "key=value"),
            ("randread:bs=huge", "makes no sense"),
            ("randread:bs=0", "no bytes"),
            ("oltp:threads=1", "takes none"),
        ] {
            let e = text.parse::<NamedWorkload>().expect_err(text).to_string();
            assert!(e.contains(says), "{text}: {e}");
        }
        assert_eq!(parse_bytes("64KiB"), Some(65536));
        assert_eq!(parse_bytes("-1"), None);
        assert_eq!(parse_bytes("99999999999999T"), None);
    }
}
