//! Every order of the steps of `sync.rs`, as loom finds them: up to three threads, bounded preemptions. Waits never end by time
//! here unless the test says so: a wake-up that is lost is a deadlock, which loom reports.

use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;
use plimsoll_shape::sync::{Entry, Flag, FutexWord, Handover, Hold, Lock, Mark, Number, Owner, PATIENCE, Taken, Wish};
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
        self.value.load(Ordering::Acquire)
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

struct Count(AtomicU64);
impl Number for Count {
    fn load(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
    fn store(&self, to: u64) {
        self.0.store(to, Ordering::Relaxed);
    }
}

fn check(preemptions: usize, f: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(preemptions);
    model.check(f);
}

/// Asserts that loom finds this mistake, and ends with these words.
fn assert_found(preemptions: usize, words: &str, f: impl Fn() + Sync + Send + 'static) {
    let found = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| check(preemptions, f)));
    let why = found.expect_err("it isn't found");
    let text = why.downcast_ref::<String>().cloned().or(why.downcast_ref::<&str>().map(|s| s.to_string()));
    assert!(text.as_ref().is_some_and(|t| t.contains(words)), "{text:?}");
}

/// Data under the lock: loom reports two threads that reach them at once.
struct Guarded<const TIMES_OUT: bool> {
    lock: Lock<Word<TIMES_OUT>, Count>,
    inside: UnsafeCell<u32>,
}

impl<const TIMES_OUT: bool> Guarded<TIMES_OUT> {
    fn of(owner: u32) -> Arc<Guarded<TIMES_OUT>> {
        let count = || Count(AtomicU64::new(0));
        Arc::new(Guarded { lock: Lock::new(Word::new(owner), count(), count()), inside: UnsafeCell::new(0) })
    }

    fn touch(&self) {
        // SAFETY: the lock is held, which is what loom checks.
        self.inside.with_mut(|n| unsafe { *n += 1 });
    }

    fn take(&self, tid: u32, look: &dyn Fn(u32) -> Owner, patience: Option<u32>) -> Option<Taken> {
        let taken = self.lock.take(tid, look, patience);
        if taken.is_some() {
            self.touch();
            self.lock.give_back();
        }
        taken
    }

    fn taken_in_the_end(&self) -> u32 {
        assert_eq!(self.lock.word().load(), 0, "it is free");
        // SAFETY: all have ended.
        self.inside.with(|n| unsafe { *n })
    }
}

// SAFETY: `inside` is only reached under the lock.
unsafe impl<const TIMES_OUT: bool> Sync for Guarded<TIMES_OUT> {}

fn runs(_: u32) -> Owner {
    Owner::Runs
}

#[test]
fn the_lock_excludes_and_wakes_who_sleeps() {
    check(3, || {
        let g = Guarded::<false>::of(0);
        let others: Vec<_> = (2..4)
            .map(|tid| {
                let g = g.clone();
                thread::spawn(move || g.take(tid, &runs, None))
            })
            .collect();
        assert_eq!(g.take(1, &runs, None), Some(Taken::Free));
        others.into_iter().for_each(|t| assert_eq!(t.join().unwrap(), Some(Taken::Free)));
        assert_eq!(g.taken_in_the_end(), 3);
    });
}

#[test]
fn one_takes_it_from_the_dead() {
    const DEAD: u32 = 99;
    let look = |tid: u32| if tid == DEAD { Owner::Dead } else { Owner::Runs };
    check(2, move || {
        let g = Guarded::<true>::of(DEAD);
        let other = {
            let g = g.clone();
            thread::spawn(move || g.take(2, &look, None))
        };
        let taken = [g.take(1, &look, None), other.join().unwrap()];
        assert_eq!(taken.iter().filter(|t| **t == Some(Taken::FromDead)).count(), 1, "{taken:?}");
        assert_eq!(g.taken_in_the_end(), 2);
    });
}

#[test]
fn one_is_told_of_a_change_that_was_broken_off() {
    check(3, || {
        let g = Guarded::<false>::of(0);
        assert!(g.lock.take_if_free(1));
        let others: Vec<_> = (2..4)
            .map(|tid| {
                let g = g.clone();
                thread::spawn(move || g.take(tid, &runs, None).unwrap())
            })
            .collect();
        g.touch();
        g.lock.break_off();
        let taken: Vec<Taken> = others.into_iter().map(|t| t.join().unwrap()).collect();
        assert_eq!(taken.iter().filter(|t| **t == Taken::FromDead).count(), 1, "{taken:?}");
        assert_eq!(g.taken_in_the_end(), 3);
    });
}

const SLOW: u32 = 7;
/// An owner that is stopped in the midst of its change, and goes on whenever it likes; all others run.
fn slow_is_stopped(tid: u32) -> Owner {
    if tid == SLOW { Owner::Stopped } else { Owner::Runs }
}

/// Two looks at a stopped owner; a running one is never given up on.
const TWO_LOOKS: Option<u32> = Some(20);

/// The slow owner within its change; two others come. How each got on.
fn beside_a_stopped_owner(look: fn(u32) -> Owner) -> [Option<Taken>; 2] {
    let g = Guarded::<true>::of(SLOW);
    let other = {
        let g = g.clone();
        thread::spawn(move || g.take(2, &look, TWO_LOOKS))
    };
    let slow = {
        let g = g.clone();
        thread::spawn(move || {
            g.touch();
            g.lock.give_back();
        })
    };
    let got = [g.take(1, &look, TWO_LOOKS), other.join().unwrap()];
    slow.join().unwrap();
    assert_eq!(g.taken_in_the_end(), 1 + got.iter().flatten().count() as u32);
    got
}

#[test]
fn a_stopped_owner_holds_nobody_for_ever_and_nothing_is_changed_beside_it() {
    check(2, || {
        let got = beside_a_stopped_owner(slow_is_stopped);
        assert!(got.iter().flatten().all(|t| *t == Taken::Free), "{got:?}");
    });
}

/// The test of the test: the lock of a stopped owner is taken as that of a dead one. It goes on, and two change the gate.
#[test]
fn a_lock_that_is_taken_from_a_stopped_owner_is_found() {
    fn mistaken(tid: u32) -> Owner {
        if tid == SLOW { Owner::Dead } else { Owner::Runs }
    }
    assert_found(2, "Concurrent write accesses", || assert!(beside_a_stopped_owner(mistaken).len() == 2));
}

/// Somebody gave up on the slow owner's hold; that is over, and another has the lock. Whoever knows this waits for that one.
fn after_a_hold_that_was_given_up(give_back: fn(&Guarded<true>)) {
    let g = Guarded::<true>::of(SLOW);
    assert_eq!(g.take(1, &slow_is_stopped, TWO_LOOKS), None);
    let next_has_it = Arc::new(AtomicBool::new(false));
    let slow = {
        let g = g.clone();
        thread::spawn(move || {
            g.touch();
            give_back(&g);
        })
    };
    let next = {
        let (g, next_has_it) = (g.clone(), next_has_it.clone());
        thread::spawn(move || {
            if g.lock.take_if_free(2) {
                next_has_it.store(true, Ordering::Release);
                g.touch();
                g.lock.give_back();
            }
        })
    };
    if next_has_it.load(Ordering::Acquire) {
        // One that is seen to run would be waited for whatever its hold's number.
        let sleeps = |_| Owner::Waits;
        assert!(g.take(1, &sleeps, Some(PATIENCE)).is_some(), "given up on another's hold");
    }
    slow.join().unwrap();
    next.join().unwrap();
}

#[test]
fn giving_up_is_for_one_hold() {
    check(3, || after_a_hold_that_was_given_up(|g| g.lock.give_back()));
}

/// The test of the test: the number of the hold isn't changed, as if it were no part of giving back.
#[test]
fn a_hold_without_a_number_is_found() {
    assert_found(3, "given up on another's hold", || {
        after_a_hold_that_was_given_up(|g| {
            g.lock.word().swap(0);
        });
    });
}

/// Somebody gave up on a stopped owner, which is then killed. Two come: one that waits, one that only looks by.
#[test]
fn an_owner_that_dies_after_it_was_given_up_on_is_followed() {
    fn dead(tid: u32) -> Owner {
        if tid == SLOW { Owner::Dead } else { Owner::Runs }
    }
    check(2, || {
        let g = Guarded::<true>::of(SLOW);
        assert_eq!(g.take(1, &slow_is_stopped, TWO_LOOKS), None);
        let other = {
            let g = g.clone();
            thread::spawn(move || {
                let taken = g.lock.take_now(2, &dead);
                if taken.is_some() {
                    g.touch();
                    g.lock.give_back();
                }
                taken
            })
        };
        let waited = g.take(1, &dead, TWO_LOOKS);
        let got = [waited, other.join().unwrap()];
        assert!(waited.is_some(), "given up on a dead owner");
        assert_eq!(got.iter().filter(|t| **t == Some(Taken::FromDead)).count(), 1, "{got:?}");
        assert_eq!(g.taken_in_the_end(), got.iter().flatten().count() as u32);
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
    assert_found(3, "the event is lost", || {
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
}

struct LoomMark(AtomicU32);
impl Mark for LoomMark {
    fn load(&self) -> u32 {
        self.0.load(Ordering::Acquire)
    }
    fn store(&self, to: u32) {
        self.0.store(to, Ordering::Release);
    }
}

/// Contents of a table's entry.
struct Contents {
    conn: u32,
    withheld: bool,
    shown: u32,
}

/// An entry of the shim's table: a descriptor that is one connection's after another.
struct Place {
    entry: Entry<LoomMark, LoomFlag, LoomWish>,
    link: UnsafeCell<Option<Contents>>,
}

// SAFETY: `link` is only reached by who took the entry, which is what loom checks.
unsafe impl Sync for Place {}

impl Place {
    fn vacant() -> Arc<Place> {
        let entry =
            Entry::new(LoomMark(AtomicU32::new(0)), LoomFlag(AtomicBool::new(false)), LoomWish(AtomicU32::new(0)));
        Arc::new(Place { entry, link: UnsafeCell::new(None) })
    }

    fn with<T>(&self, f: impl FnOnce(&mut Contents) -> T) -> T {
        // SAFETY: the caller has the entry.
        self.link.with_mut(|l| unsafe { f((*l).as_mut().expect("held, and not written")) })
    }

    /// `track` of the shim, and the connection's number.
    fn track(&self, conn: u32) -> bool {
        if !self.entry.take_to_fill() {
            return false;
        }
        // SAFETY: the entry is taken.
        self.link.with_mut(|l| unsafe { *l = Some(Contents { conn, withheld: true, shown: 0 }) });
        self.entry.fill(u32::MAX);
        self.entry.publish(conn);
        self.give_back();
        true
    }

    /// `hold` of the shim.
    fn hold(&self) -> bool {
        match self.entry.hold() {
            Hold::Held => true,
            Hold::Forgotten => {
                self.give_back();
                false
            }
            Hold::Not => false,
        }
    }

    /// The connection is closed: whoever handles it just now gives it back soon.
    fn forget(&self) {
        while !self.hold() {
            thread::yield_now();
        }
        // SAFETY: the entry is taken. What is there must not be found by anybody any more.
        self.link.with_mut(|l| unsafe { *l = None });
        self.entry.forget();
        self.give_back();
    }

    /// `rearm_wanted` of the shim.
    fn see_to_it(&self) {
        if !self.hold() {
            return;
        }
        let wanted = self.entry.take_wanted();
        self.with(|l| {
            // A grant may come after its connection was closed: the descriptor is another's by then.
            if wanted == l.conn && std::mem::take(&mut l.withheld) {
                l.shown += 1;
            }
        });
        self.give_back();
    }

    fn give_back(&self) {
        if self.entry.give_back() {
            self.see_to_it();
        }
    }
}

/// A descriptor is closed, and is another connection's then. Meanwhile one thread looks at it, and a grant comes for the first connection.
fn reused(forget: fn(&Place)) {
    let place = Place::vacant();
    assert!(place.track(1));
    let granting = {
        let place = place.clone();
        thread::spawn(move || {
            place.entry.want(1);
            place.see_to_it();
        })
    };
    let looking = {
        let place = place.clone();
        thread::spawn(move || {
            if place.hold() {
                place.with(|l| assert!(l.conn == 1 || l.conn == 2));
                place.give_back();
            }
        })
    };
    forget(&place);
    while !place.track(2) {
        thread::yield_now();
    }
    granting.join().unwrap();
    looking.join().unwrap();
    assert!(place.hold(), "it is free, and the second connection's");
    assert_eq!(place.entry.mark(), 2);
    place.with(|l| assert_eq!((l.conn, l.withheld, l.shown), (2, true, 0), "shown for another's grant"));
}

#[test]
fn a_descriptor_that_is_used_again_gets_nothing_of_the_one_before() {
    check(2, || reused(Place::forget));
}

/// A grant comes for the connection that a descriptor has, and one comes late for the connection before. Another thread has the descriptor.
fn granted_beside_a_late_grant(want: fn(&Place, u32)) {
    let place = Place::vacant();
    assert!(place.track(2) && place.hold());
    let granting: Vec<_> = [1, 2]
        .map(|conn| {
            let place = place.clone();
            thread::spawn(move || {
                want(&place, conn);
                place.see_to_it();
            })
        })
        .into();
    place.give_back();
    granting.into_iter().for_each(|t| t.join().unwrap());
    place.with(|l| assert_eq!((l.withheld, l.shown), (false, 1), "the event is lost"));
}

#[test]
fn a_late_grant_takes_nothing_from_the_connection_that_is_there() {
    check(3, || granted_beside_a_late_grant(|place, conn| place.entry.want(conn)));
}

/// The test of the test: the newest wish replaces the other, whosever it is.
#[test]
fn a_wish_that_a_late_one_replaces_is_found() {
    assert_found(3, "the event is lost", || {
        granted_beside_a_late_grant(|place, conn| {
            place.entry.take_wanted();
            place.entry.want(conn);
        });
    });
}

/// The test of the test: a descriptor that is forgotten without being taken. Another thread is still at its contents.
#[test]
fn a_descriptor_that_is_forgotten_while_another_has_it_is_found() {
    assert_found(2, "held, and not written", || {
        reused(|place| {
            // SAFETY: none; that is the mistake.
            place.link.with_mut(|l| unsafe { *l = None });
            place.entry.forget();
        });
    });
}
