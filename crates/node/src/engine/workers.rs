//! Workers: threads that carry out layers' computations, so that the pool's thread need not.
//!
//! A pool without work for them has no workers. A new one starts while all others have work, up to `worker_cpus` or one for each CPU
//! (8 at most). Each worker has a queue of its own. The next work goes to the worker with the fewest tasks. Results come back through one
//! channel and the pool's wake-up call. A task that panics ends the pool. Workers don't bound the tasks that wait: each layer bounds its own.

use plimsoll_stack::{Work, Worked};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::fmt;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

/// A worker's answer: the worker's number, the node of the stack, and the result; none if the task panicked.
type Found = (usize, usize, Option<Worked>);

struct Worker {
    queue: Option<Sender<(usize, Work)>>,
    outstanding: u32,
    thread: Option<JoinHandle<()>>,
}

/// See the module's documentation.
pub struct Workers {
    threads_max: usize,
    /// The cores to which the workers are pinned; none if they may run anywhere.
    cpus: Vec<usize>,
    workers: Vec<Worker>,
    found: Receiver<Found>,
    sender: Sender<Found>,
    wakeup: Arc<OwnedFd>,
}

impl Workers {
    /// One thread on each of `cpus`, or if there are none up to `threads_max` (at least one) anywhere. They call through `wakeup` when
    /// something is done.
    pub fn new(threads_max: usize, cpus: Vec<usize>, wakeup: Arc<OwnedFd>) -> Workers {
        let (sender, found) = channel();
        let threads_max = if cpus.is_empty() { threads_max.max(1) } else { cpus.len() };
        Workers { threads_max, cpus, workers: Vec::new(), found, sender, wakeup }
    }

    /// Gives work of node `node` to a worker thread.
    pub fn begin(&mut self, node: usize, work: Work) -> io::Result<()> {
        let least = (0..self.workers.len()).min_by_key(|&w| self.workers[w].outstanding);
        let to = match least {
            Some(w) if self.workers[w].outstanding == 0 || self.workers.len() == self.threads_max => w,
            _ => self.add()?,
        };
        let w = &mut self.workers[to];
        w.outstanding += 1;
        let queue = w.queue.as_ref().expect("open until the end");
        queue.send((node, work)).map_err(|_| io::Error::other("a worker has ended"))
    }

    fn add(&mut self) -> io::Result<usize> {
        let at = self.workers.len();
        let (queue, orders) = channel::<(usize, Work)>();
        let (found, wakeup) = (self.sender.clone(), self.wakeup.clone());
        let cpu = self.cpus.get(at).copied();
        let thread = std::thread::Builder::new().name(format!("worker-{at}")).spawn(move || {
            if let Some(Err(e)) = cpu.map(pin) {
                tracing::warn!(worker = at, cpu, "a worker isn't pinned: {e}");
            }
            for (node, work) in orders {
                crate::panics::point("worker");
                let worked = catch_unwind(AssertUnwindSafe(|| work.run())).ok();
                // The pool outlives its workers; were it gone, nobody would wait for this.
                if found.send((at, node, worked)).is_err()
                    || rustix::io::write(wakeup.as_fd(), &1u64.to_ne_bytes()).is_err()
                {
                    return;
                }
            }
        })?;
        self.workers.push(Worker { queue: Some(queue), outstanding: 0, thread: Some(thread) });
        Ok(at)
    }

    /// The next that is done, and for which node.
    ///
    /// # Errors
    /// If a task panicked: whoever waits for it would wait for ever, so the pool had better end.
    pub fn next_done(&mut self) -> io::Result<Option<(usize, Worked)>> {
        let Ok((worker, node, worked)) = self.found.try_recv() else { return Ok(None) };
        self.workers[worker].outstanding -= 1;
        match worked {
            Some(worked) => Ok(Some((node, worked))),
            None => Err(io::Error::other(
                "a worker's task panicked: the request fails; please report the panic message in the log",
            )),
        }
    }
}

/// CPUs that can't have a worker each.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum BadCpus {
    /// None is named.
    None,
    /// There is none of this number.
    Unknown(usize),
    /// It is named twice.
    Twice(usize),
    /// This process may run on others only.
    Forbidden { cpu: usize, may: Vec<usize> },
    /// The system doesn't say where this process may run.
    Unasked(rustix::io::Errno),
}

impl fmt::Display for BadCpus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BadCpus::None => write!(f, "no CPU is named: leave it out, or name at least one"),
            BadCpus::Unknown(cpu) => {
                write!(f, "there is no CPU {cpu}: they are numbered from 0 to {}", CpuSet::MAX_CPU - 1)
            }
            BadCpus::Twice(cpu) => write!(f, "CPU {cpu} is named twice"),
            BadCpus::Forbidden { cpu, may } => {
                let may: Vec<String> = may.iter().map(usize::to_string).collect();
                write!(f, "this process may not run on CPU {cpu}, only on {}", may.join(", "))
            }
            BadCpus::Unasked(e) => e.fmt(f),
        }
    }
}

impl std::error::Error for BadCpus {}

/// Checks that `cpus` can be a list of CPUs, each for one thread.
///
/// # Errors
/// The fault.
pub(crate) fn check_cpus(cpus: &[usize]) -> Result<(), BadCpus> {
    if cpus.is_empty() {
        return Err(BadCpus::None);
    }
    for (i, cpu) in cpus.iter().enumerate() {
        if *cpu >= CpuSet::MAX_CPU {
            return Err(BadCpus::Unknown(*cpu));
        }
        if cpus[..i].contains(cpu) {
            return Err(BadCpus::Twice(*cpu));
        }
    }
    Ok(())
}

/// Checks that this process may run on all of `cpus`.
///
/// # Errors
/// The CPUs on which it may not.
pub(crate) fn check_allowed(cpus: &[usize]) -> Result<(), BadCpus> {
    let allowed = sched_getaffinity(None).map_err(BadCpus::Unasked)?;
    match cpus.iter().find(|cpu| !allowed.is_set(**cpu)) {
        Some(cpu) => {
            let may = (0..CpuSet::MAX_CPU).filter(|c| allowed.is_set(*c)).collect();
            Err(BadCpus::Forbidden { cpu: *cpu, may })
        }
        None => Ok(()),
    }
}

/// This thread runs on `cpu` only, from now on.
fn pin(cpu: usize) -> io::Result<()> {
    let mut only = CpuSet::new();
    only.set(cpu);
    Ok(sched_setaffinity(None, &only)?)
}

impl Drop for Workers {
    fn drop(&mut self) {
        for w in &mut self.workers {
            w.queue = None;
        }
        for w in &mut self.workers {
            let _ = w.thread.take().expect("joined once").join(); // a panic was told already
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_base::{Priority, Span, TenantId};
    use plimsoll_stack::{Answer, Task};

    struct Square(u64);
    impl Task for Square {
        fn name(&self) -> &'static str {
            "square"
        }
        fn cost(&self) -> Span {
            Span::ZERO
        }
        fn run(self: Box<Self>) -> Answer {
            assert!(self.0 < 1000, "a bug");
            Answer { words: [self.0 * self.0, 0, 0, 0], ..Answer::default() }
        }
    }

    fn square(n: u64) -> Work {
        Work { tag: n, tenant: TenantId(3), priority: Priority::DEFAULT, task: Box::new(Square(n)) }
    }

    fn wait(wakeup: &OwnedFd) {
        rustix::io::read(wakeup.as_fd(), &mut [0; 8]).unwrap();
    }

    fn workers() -> (Workers, Arc<OwnedFd>) {
        let wakeup = Arc::new(rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap());
        (Workers::new(2, Vec::new(), wakeup.clone()), wakeup)
    }

    #[test]
    fn all_work_comes_back_once_each_to_its_node() {
        let (mut w, wakeup) = workers();
        for n in 0..100 {
            w.begin(n as usize % 3, square(n)).unwrap();
        }
        let mut seen = Vec::new();
        while seen.len() < 100 {
            wait(&wakeup);
            while let Some((node, d)) = w.next_done().unwrap() {
                assert_eq!((node, d.answer.words[0]), (d.tag as usize % 3, d.tag * d.tag));
                seen.push(d.tag);
            }
        }
        assert!(w.workers.len() <= 2);
        seen.sort_unstable();
        assert_eq!(seen, (0..100).collect::<Vec<u64>>());
    }

    #[test]
    fn a_panic_is_told() {
        let (mut w, wakeup) = workers();
        w.begin(0, square(1000)).unwrap();
        wait(&wakeup);
        assert!(w.next_done().unwrap_err().to_string().contains("panicked"));
    }

    /// A task that returns the number of CPUs on which its thread may run, and one of them.
    struct Where;
    impl Task for Where {
        fn name(&self) -> &'static str {
            "where"
        }
        fn cost(&self) -> Span {
            Span::ZERO
        }
        fn run(self: Box<Self>) -> Answer {
            let may = sched_getaffinity(None).expect("readable");
            let first = (0..CpuSet::MAX_CPU).find(|c| may.is_set(*c)).expect("it runs somewhere");
            Answer { words: [u64::from(may.count()), first as u64, 0, 0], ..Answer::default() }
        }
    }

    #[test]
    fn each_is_pinned_where_it_is_told_to_run() {
        let may = sched_getaffinity(None).unwrap();
        let last = (0..CpuSet::MAX_CPU).rfind(|c| may.is_set(*c)).unwrap();
        check_allowed(&[last]).unwrap();
        let wakeup = Arc::new(rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap());
        let mut w = Workers::new(8, vec![last], wakeup.clone());
        for tag in 0..3 {
            w.begin(0, Work { tag, tenant: TenantId(3), priority: Priority::DEFAULT, task: Box::new(Where) }).unwrap();
        }
        assert_eq!(w.workers.len(), 1, "one on each CPU that was named");
        wait(&wakeup);
        let (_, done) = w.next_done().unwrap().unwrap();
        assert_eq!(done.answer.words[..2], [1, last as u64]);
        assert_eq!(sched_getaffinity(None).unwrap().count(), may.count(), "and only they");
    }

    #[test]
    fn cpus_that_cannot_be_are_refused() {
        assert_eq!(check_cpus(&[]), Err(BadCpus::None));
        assert_eq!(check_cpus(&[1, 0, 1]), Err(BadCpus::Twice(1)));
        assert_eq!(check_cpus(&[CpuSet::MAX_CPU]), Err(BadCpus::Unknown(CpuSet::MAX_CPU)));
        let may = sched_getaffinity(None).unwrap();
        let not = (0..CpuSet::MAX_CPU).find(|c| !may.is_set(*c)).expect("no machine has so many");
        let refused = check_allowed(&[not]).unwrap_err();
        assert!(matches!(refused, BadCpus::Forbidden { cpu, .. } if cpu == not));
        assert!(refused.to_string().starts_with(&format!("this process may not run on CPU {not}, only on ")));
    }
}
