//! Workers: threads that carry out what layers want computed, so that the pool's thread need not.
//!
//! They start with the first work: a pool whose layers order none has none. Each has a queue of its own, and gets the next
//! work if it has the least to do; what it found comes back through one channel and the pool's wake-up call. How much waits
//! is bounded by the layers that order it.

use plimsoll_stack::{Work, Worked};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

/// What a worker sends back: which it is, for which node, and what it found; nothing if the task panicked.
type Found = (usize, usize, Option<Worked>);

struct Worker {
    queue: Option<Sender<(usize, Work)>>,
    outstanding: u32,
    thread: Option<JoinHandle<()>>,
}

/// See the module's documentation.
pub struct Workers {
    threads_max: usize,
    workers: Vec<Worker>,
    found: Receiver<Found>,
    sender: Sender<Found>,
    wakeup: Arc<OwnedFd>,
}

impl Workers {
    /// Up to `threads_max` threads (at least one) that call through `wakeup` when something is done.
    pub fn new(threads_max: usize, wakeup: Arc<OwnedFd>) -> Workers {
        let (sender, found) = channel();
        Workers { threads_max: threads_max.max(1), workers: Vec::new(), found, sender, wakeup }
    }

    /// Has node `node`'s work done.
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
        let thread = std::thread::Builder::new().name(format!("worker-{at}")).spawn(move || {
            for (node, work) in orders {
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
            None => Err(io::Error::other("a worker's task panicked: please report what it said")),
        }
    }
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
        (Workers::new(2, wakeup.clone()), wakeup)
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
}
