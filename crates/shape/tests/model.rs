//! Every order of the steps of `sync.rs`, as loom finds them: up to three threads, bounded preemptions. Waits never end by time
//! here unless the test says so: a wake-up that is lost is a deadlock, which loom reports.

use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicBool, AtomicU32};
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;
use plimsoll_shape::sync::{Flag, FutexWord, Handover, Taken, Wish, give_back, take};
use std::sync::atomic::Ordering;

/// A futex: the kernel compares and goes to sleep under a lock of its own.
struct Word<const TIMES_OUT: bool> {
    value: AtomicU32,
    kernel: Mutex<()>,
    sleepers: Condvar,
}

impl<const TIMES_OUT: bool> Word<TIMES_OUT> {
    fn new(value: u32) -> Word<TIMES_OUT> {
        Word { value: AtomicU32::new(value), kernel: Mutex::new(()), sleepers: Condvar::new() }
    }
}

impl<const TIMES_OUT: bool> FutexWord for Word<TIMES_OUT> {
    const SPINS: u32 = 0;
    fn compare_exchange(&self, from: u32, to: u32, success: Ordering) -> Result<u32, u32> {
        self.value.compare_exchange(from, to, success, Ordering::Relaxed)
    }
    fn load(&self) -> u32 {
        self.value.load(Ordering::Relaxed)
    }
    fn swap(&self, to: u32) -> u32 {
        self.value.swap(to, Ordering::Release)
    }
    fn wait(&self, value: u32) -> bool {
        if TIMES_OUT {
            thread::yield_now();
            return self.value.load(Ordering::Relaxed) != value;
        }
        let kernel = self.kernel.lock().unwrap();
        if self.value.load(Ordering::SeqCst) == value {
            drop(self.sleepers.wait(kernel).unwrap());
        }
        true
    }
    fn wake(&self) {
        let _kernel = self.kernel.lock().unwrap();
        self.sleepers.notify_one();
    }
}

fn check(preemptions: usize, f: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(preemptions);
    model.check(f);
}

/// Data under the lock: loom reports two threads that reach them at once.
struct Guarded<const TIMES_OUT: bool> {
    word: Word<TIMES_OUT>,
    inside: UnsafeCell<u32>,
}

impl<const TIMES_OUT: bool> Guarded<TIMES_OUT> {
    fn count(&self, tid: u32, is_dead: &dyn Fn(u32) -> bool) -> Taken {
        let taken = take(&self.word, tid, is_dead, None).expect("without a bound");
        // SAFETY: the lock is held, which is what loom checks.
        self.inside.with_mut(|n| unsafe { *n += 1 });
        give_back(&self.word);
        taken
    }
}

// SAFETY: `inside` is only reached under the lock.
unsafe impl<const TIMES_OUT: bool> Sync for Guarded<TIMES_OUT> {}

#[test]
fn the_lock_excludes_and_wakes_who_sleeps() {
    check(3, || {
        let g: Arc<Guarded<false>> = Arc::new(Guarded { word: Word::new(0), inside: UnsafeCell::new(0) });
        let others: Vec<_> = (2..4)
            .map(|tid| {
                let g = g.clone();
                thread::spawn(move || g.count(tid, &|_| false))
            })
            .collect();
        assert_eq!(g.count(1, &|_| false), Taken::Free);
        others.into_iter().for_each(|t| assert_eq!(t.join().unwrap(), Taken::Free));
        // SAFETY: all have ended.
        assert_eq!(g.inside.with(|n| unsafe { *n }), 3);
        assert_eq!(g.word.load(), 0, "it is free");
    });
}

#[test]
fn one_takes_it_from_the_dead() {
    const DEAD: u32 = 99;
    check(2, || {
        let g: Arc<Guarded<true>> = Arc::new(Guarded { word: Word::new(DEAD), inside: UnsafeCell::new(0) });
        let other = {
            let g = g.clone();
            thread::spawn(move || g.count(2, &|tid| tid == DEAD))
        };
        let taken = [g.count(1, &|tid| tid == DEAD), other.join().unwrap()];
        assert_eq!(taken.iter().filter(|t| **t == Taken::FromDead).count(), 1, "{taken:?}");
        assert_eq!(g.word.load(), 0, "it is free");
    });
}

#[test]
fn a_living_owner_that_never_gives_it_back_holds_nobody_for_ever() {
    check(2, || {
        let word: Word<true> = Word::new(7);
        assert_eq!(take(&word, 1, &|_| false, Some(2)), None);
        assert_eq!(word.load() & !plimsoll_shape::sync::CONTENDED, 7, "it is still its owner's");
    });
}

/// Loom knows one order of all only for fences. And it may put a plain store between what a swap read and what it wrote, which no
/// machine does; a swap in its place can't be.
fn in_one_order<T>(swap: impl FnOnce(Ordering) -> T) {
    swap(Ordering::SeqCst);
    loom::sync::atomic::fence(Ordering::SeqCst);
}

struct LoomFlag(AtomicBool);
impl Flag for LoomFlag {
    fn swap(&self, to: bool) -> bool {
        self.0.swap(to, Ordering::SeqCst)
    }
    fn store(&self, to: bool) {
        in_one_order(|order| self.0.swap(to, order));
    }
}

struct LoomWish(AtomicU32);
impl Wish for LoomWish {
    fn load(&self) -> u32 {
        self.0.load(Ordering::SeqCst)
    }
    fn store(&self, to: u32) {
        in_one_order(|order| self.0.swap(to, order));
    }
    fn swap(&self, to: u32) -> u32 {
        self.0.swap(to, Ordering::SeqCst)
    }
}

/// A link as the shim's table has it: an event that is withheld, and was it shown again.
struct Link {
    handover: Handover<LoomFlag, LoomWish>,
    /// Withheld, and shown again so often.
    link: UnsafeCell<(bool, u32)>,
}

// SAFETY: `link` is only reached by who took it.
unsafe impl Sync for Link {}

impl Link {
    /// `rearm_wanted` of the shim.
    fn see_to_it(&self) {
        if !self.handover.take() {
            return;
        }
        if self.handover.take_wanted() != 0 {
            // SAFETY: it was taken.
            self.link.with_mut(|l| unsafe {
                if std::mem::take(&mut (*l).0) {
                    (*l).1 += 1;
                }
            });
        }
        self.give_back();
    }

    fn give_back(&self) {
        if self.handover.give_back() {
            self.see_to_it();
        }
    }

    /// A thread withholds the event while `grants` others say that it is to come again.
    fn withheld_and_granted(grants: u32, preemptions: usize) {
        check(preemptions, move || {
            let handover = Handover::new(LoomFlag(AtomicBool::new(false)), LoomWish(AtomicU32::new(0)));
            let link = Arc::new(Link { handover, link: UnsafeCell::new((false, 0)) });
            assert!(link.handover.take());
            // SAFETY: it was taken.
            link.link.with_mut(|l| unsafe { (*l).0 = true });
            let granting: Vec<_> = (0..grants)
                .map(|n| {
                    let link = link.clone();
                    thread::spawn(move || {
                        link.handover.want(n + 1);
                        link.see_to_it();
                    })
                })
                .collect();
            link.give_back();
            granting.into_iter().for_each(|t| t.join().unwrap());
            // SAFETY: all have ended.
            assert_eq!(link.link.with(|l| unsafe { *l }), (false, 1), "shown again, once");
        });
    }
}

#[test]
fn an_event_that_is_wanted_while_it_is_withheld_comes_once() {
    Link::withheld_and_granted(1, 4);
    Link::withheld_and_granted(2, 3);
}

/// The test of the test: a hand-over that looks before it gives back loses the event, and loom finds that.
#[test]
fn a_handover_in_the_wrong_order_is_found() {
    let found = std::panic::catch_unwind(|| {
        check(3, || {
            let (busy, wanted) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicU32::new(0)));
            let granting = {
                let (busy, wanted) = (busy.clone(), wanted.clone());
                thread::spawn(move || {
                    in_one_order(|order| wanted.swap(1, order));
                    !busy.swap(true, Ordering::SeqCst) && wanted.swap(0, Ordering::SeqCst) == 1
                })
            };
            let sees = wanted.load(Ordering::SeqCst) != 0;
            in_one_order(|order| busy.swap(false, order));
            let shown = granting.join().unwrap() || sees;
            assert!(shown, "the event is lost");
        });
    });
    assert!(found.is_err());
}
