//! MT-E20: what a decision costs on a real thread (MittOS §4.2 to §4.4, overheads). The one experiment whose figures are this
//! machine's, not a model's.

use crate::experiment::stats::quantile;
use crate::experiment::{Check, Experiment, Inputs, LabError, RowSpec, Sample};
use plimsoll_base::{IoHead, Span};
use plimsoll_device::PageCacheLayer;
use plimsoll_device::pagecache::{Lru, PageCache};
use plimsoll_sched::{DiskModel, SchedulerKind, decision};
use plimsoll_stack::{Stack, StackConfig};
use std::hint::black_box;
use std::time::Instant;

/// See the module's documentation.
pub struct DecisionCosts;

/// Decisions timed together: one alone is shorter than reading the clock.
const TOGETHER: u64 = 100;
const PROCESSES: u32 = 128;
const EACH: u64 = 4;

/// Others' work on the machine beside a measurement, in percent of a core, beyond which its figures are void.
const OTHERS_MAX: f64 = 10.0;

/// Clock ticks since the machine's start: of all cores, of those that weren't idle, and of this process.
#[derive(Clone, Copy, Debug)]
struct Ticks {
    all: u64,
    busy: u64,
    own: u64,
}

impl Ticks {
    fn now() -> Option<Ticks> {
        let read = |path| std::fs::read_to_string(path).ok();
        Ticks::of(&read("/proc/stat")?, &read("/proc/self/stat")?)
    }

    /// From the texts of `/proc/stat` and `/proc/self/stat` (proc(5)).
    fn of(machine: &str, process: &str) -> Option<Ticks> {
        let numbers = |text: &str, skip, take| -> Option<Vec<u64>> {
            text.split_whitespace().skip(skip).take(take).map(|n| n.parse().ok()).collect()
        };
        // user, nice, system, idle, iowait, irq, softirq, steal
        let cores = numbers(machine.lines().next()?, 1, 8)?;
        let idle = cores.get(3)? + cores.get(4)?;
        let all = cores.iter().sum::<u64>();
        // utime and stime; the program's name before them may have spaces.
        let own = numbers(process.rsplit_once(')')?.1, 11, 2)?.iter().sum();
        Some(Ticks { all, busy: all - idle, own })
    }

    /// Others' work since `before`, in percent of one of `cores` cores.
    fn others_since(&self, before: &Ticks, cores: usize) -> f64 {
        let of_one_core = (self.all - before.all) as f64 / cores as f64;
        let others = (self.busy - before.busy).saturating_sub(self.own - before.own);
        100.0 * others as f64 / of_one_core.max(1.0)
    }
}

/// Nanoseconds a decision, of each batch, ascending.
fn timed(batches: usize, mut decide: impl FnMut(u64)) -> Vec<f64> {
    let mut one = |i: u64| {
        let began = Instant::now();
        (0..TOGETHER).for_each(|n| decide(i * TOGETHER + n));
        began.elapsed().as_nanos() as f64 / TOGETHER as f64
    };
    (0..batches as u64 / 10).for_each(|i| {
        one(i);
    });
    let mut all: Vec<f64> = (0..batches as u64).map(&mut one).collect();
    all.sort_by(f64::total_cmp);
    all
}

/// Keeps the calling thread on the core it is on, until it's dropped.
struct Pinned(Option<rustix::thread::CpuSet>);

impl Pinned {
    fn here() -> Pinned {
        let Ok(before) = rustix::thread::sched_getaffinity(None) else { return Pinned(None) };
        let mut only = rustix::thread::CpuSet::new();
        only.set(rustix::thread::sched_getcpu());
        Pinned(rustix::thread::sched_setaffinity(None, &only).is_ok().then_some(before))
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if let Some(before) = &self.0 {
            let _ = rustix::thread::sched_setaffinity(None, before); // a core may have gone meanwhile
        }
    }
}

fn page_cache() -> Stack {
    let mut cache = PageCache::<Lru>::new(1 << 16, 1 << 20, Span::ZERO);
    (0..1 << 16).for_each(|page| {
        cache.insert(page * 3);
    });
    let mut stack = Stack::new(StackConfig::default(), vec![]);
    stack.push(Box::new(PageCacheLayer::new(cache)), vec![]);
    stack
}

struct Case {
    name: &'static str,
    paper: Option<f64>,
    check: Check,
    note: &'static str,
}

const CASES: [Case; 7] = [
    Case { name: "noop", paper: None, check: Check::AtMost(100.0), note: "" },
    Case {
        name: "CFQ, 128 busy processes",
        paper: Some(300.0),
        check: Check::AtMost(1000.0),
        note: "the paper: below 5 us",
    },
    Case {
        name: "CFQ, 128 busy tenants, with a profile",
        paper: None,
        check: Check::AtMost(1000.0),
        note: "each a group of its own",
    },
    Case {
        name: "a walk over all that waits",
        paper: Some(15_000.0),
        check: Check::None,
        note: "what the sums save: 512 requests; the paper's naive prediction takes 10 to 20 us",
    },
    Case { name: "visible flash, 128 chips", paper: Some(300.0), check: Check::AtMost(100.0), note: "" },
    Case { name: "black box", paper: None, check: Check::AtMost(500.0), note: "" },
    Case { name: "page cache", paper: Some(82.0), check: Check::AtMost(100.0), note: "the paper's addrcheck" },
];

/// Medians and p99 of each case, in its order.
fn measure(batches: usize) -> Vec<f64> {
    let _pinned = Pinned::here();
    let now = decision::NOW;
    let ask = |stack: &Stack, head: &IoHead| {
        black_box(stack.forecast(now, black_box(head)));
    };
    let noop = decision::scheduler(SchedulerKind::Noop, PROCESSES, EACH);
    let cfq = decision::scheduler(SchedulerKind::Cfq, PROCESSES, EACH);
    let tenants = decision::tenants(PROCESSES as u16, EACH);
    let (costs, waiting) = (DiskModel::unknown(1 << 40), decision::waiting(PROCESSES, EACH));
    let (ssd, hidden, memory) = (decision::ssd(), decision::black_box(), page_cache());
    let all = [
        timed(batches, |i| ask(&noop, &decision::read(i << 12, 64))),
        timed(batches, |i| ask(&cfq, &decision::read((64 << 30) + (i << 12), 64))),
        timed(batches, |i| ask(&tenants, &decision::read_of(64, (64 << 30) + (i << 12)))),
        timed(batches / 20, |_| {
            black_box(decision::walk(&costs, black_box(&waiting)));
        }),
        timed(batches, |i| {
            black_box(decision::ask_ssd(&ssd, black_box(i << 14)));
        }),
        timed(batches, |i| {
            black_box(decision::ask_black_box(&hidden, black_box(i << 14)));
        }),
        timed(batches, |i| ask(&memory, &decision::read((i % (1 << 16)) * 3 * 4096, 1))),
    ];
    all.iter().flat_map(|sorted| [quantile(sorted, 0.5), quantile(sorted, 0.99)]).collect()
}

impl Experiment for DecisionCosts {
    fn is_timed(&self) -> bool {
        true
    }
    fn id(&self) -> &'static str {
        "MT-E20"
    }
    fn title(&self) -> &'static str {
        "What a decision costs on a real thread"
    }
    fn source(&self) -> &'static str {
        "MittOS §4.2 to §4.4"
    }
    fn device(&self) -> &'static str {
        "none"
    }
    fn notes(&self) -> Vec<String> {
        vec![format!(
            "wall-clock time of this machine, so equal runs differ: one thread, kept on its core, {TOGETHER} decisions timed together, \
             median and p99 of such batches, one run after the other; `cargo bench -p plimsoll-sched` and examples/decision_cost.rs (instruction counts) \
             measure the same"
        )]
    }
    fn rows(&self, _inputs: &Inputs) -> Vec<RowSpec> {
        let rows = |c: &Case| {
            let median = RowSpec::new(format!("{}: median", c.name), "ns").note(c.note);
            let median = c.paper.into_iter().fold(median, RowSpec::beside);
            [
                if c.check == Check::None { median } else { median.goal(c.check) },
                RowSpec::new(format!("{}: p99", c.name), "ns"),
            ]
        };
        let others = RowSpec::new("others' work on the machine meanwhile", "% of a core")
            .note("beyond 10 % of a core the run's other rows are empty");
        CASES.iter().flat_map(rows).chain([others]).collect()
    }
    fn sample(&self, _seed: u64, inputs: &Inputs) -> Result<Sample, LabError> {
        let cores = machine_cores();
        let before = Ticks::now();
        let measured = measure(if inputs.quick { 500 } else { 5_000 });
        let others = before.zip(Ticks::now()).map(|(before, after)| after.others_since(&before, cores));
        Ok(Sample { values: if_alone(measured, others), ..Sample::default() })
    }
}

/// Processors of the machine, whether this process may use them or not: the ticks are of all.
fn machine_cores() -> usize {
    let machine = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    machine.lines().skip(1).take_while(|line| line.starts_with("cpu")).count().max(1)
}

/// The rows' values: none but the last if others worked meanwhile, or if nobody knows.
fn if_alone(measured: Vec<f64>, others: Option<f64>) -> Vec<Option<f64>> {
    let is_alone = others.is_some_and(|o| o <= OTHERS_MAX);
    measured.into_iter().map(|v| is_alone.then_some(v)).chain([others]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// No time is judged here: only that each case is there and was measured.
    #[test]
    fn every_row_is_filled() {
        let values = measure(40);
        assert!(values.iter().all(|ns| *ns > 0.0), "{values:?}");
        assert!(values.chunks(2).all(|v| v[0] <= v[1]), "{values:?}");
        assert_eq!(if_alone(values, Some(1.0)).len(), DecisionCosts.rows(&Inputs::default()).len());
    }

    #[test]
    fn a_run_beside_other_work_has_no_figures() {
        assert_eq!(if_alone(vec![5.0], Some(10.0)), [Some(5.0), Some(10.0)]);
        assert_eq!(if_alone(vec![5.0], Some(11.0)), [None, Some(11.0)]);
        assert_eq!(if_alone(vec![5.0], None), [None, None]);
        let machine = |user, idle| format!("cpu  {user} 10 20 {idle} 5 1 2 3 0 0\ncpu0 1 1 1 1\n");
        let process =
            |user, system| format!("42 (a (b) c) R 1 42 42 0 -1 4194304 90 0 0 0 {user} {system} 0 0 20 0 1 0 77");
        let at = |busy, idle, own| Ticks::of(&machine(100 + busy, 1_000 + idle), &process(own, 1)).expect("two texts");
        // Of 200 ticks of two cores 130 were busy, 100 of them this process: 30 of the hundred that one core had.
        assert_eq!(at(130, 70, 100).others_since(&at(0, 0, 0), 2), 30.0);
        assert_eq!(at(95, 105, 100).others_since(&at(0, 0, 0), 2), 0.0, "ticks are rounded");
        assert!(Ticks::of("", "").is_none() && Ticks::now().is_some());
    }
}
