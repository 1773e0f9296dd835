//! Two hand-overs between threads, apart from the memory they happen in: a lock over a futex word, and a connection whose event
//! is wanted while another thread has it. The atomics are parameters, so that `tests/model.rs` runs every order of their steps.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// Set in the lock word when somebody sleeps for it.
pub const CONTENDED: u32 = 1 << 31;

/// A word on which threads and processes sleep.
pub trait FutexWord {
    /// Number of tries of a taken lock before sleeping.
    const SPINS: u32;
    /// As [`AtomicU32::compare_exchange`].
    ///
    /// # Errors
    /// The value, if it isn't `from`.
    fn compare_exchange(&self, from: u32, to: u32, success: Ordering) -> Result<u32, u32>;
    /// As [`AtomicU32::load`], relaxed.
    fn load(&self) -> u32;
    /// As [`AtomicU32::swap`], releasing.
    fn swap(&self, to: u32) -> u32;
    /// Sleeps while the word has this value, for a while at most; false if the time was up.
    fn wait(&self, value: u32) -> bool;
    /// Wakes one that sleeps on it.
    fn wake(&self);
}

/// Way in which the lock was taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Taken {
    /// From nobody, or from who gave it back.
    Free,
    /// From an owner that is dead: what it was doing is half done.
    FromDead,
}

/// Takes the lock for `tid`, which isn't 0. `None` after `timeouts_max` waits in a row that ended by time with one living owner.
pub fn take<W: FutexWord>(
    word: &W,
    tid: u32,
    is_dead: &dyn Fn(u32) -> bool,
    timeouts_max: Option<u32>,
) -> Option<Taken> {
    if word.compare_exchange(0, tid, Ordering::Acquire).is_ok() {
        return Some(Taken::Free);
    }
    take_slowly(word, tid, is_dead, timeouts_max)
}

#[cold]
fn take_slowly<W: FutexWord>(
    word: &W,
    tid: u32,
    is_dead: &dyn Fn(u32) -> bool,
    timeouts_max: Option<u32>,
) -> Option<Taken> {
    for _ in 0..W::SPINS {
        if word.compare_exchange(0, tid, Ordering::Acquire).is_ok() {
            return Some(Taken::Free);
        }
        std::hint::spin_loop();
    }
    let (mut owner, mut timeouts) = (0, 0);
    loop {
        let seen = word.load();
        if seen == 0 {
            // Others may sleep: they're woken one by one, each keeping the mark for the next.
            if word.compare_exchange(0, tid | CONTENDED, Ordering::Acquire).is_ok() {
                return Some(Taken::Free);
            }
            continue;
        }
        let marked = seen | CONTENDED;
        if seen != marked && word.compare_exchange(seen, marked, Ordering::Relaxed).is_err() {
            continue;
        }
        if word.wait(marked) {
            (owner, timeouts) = (0, 0);
            continue;
        }
        if is_dead(marked & !CONTENDED) && word.compare_exchange(marked, tid | CONTENDED, Ordering::Acquire).is_ok() {
            return Some(Taken::FromDead);
        }
        timeouts = if owner == marked { timeouts + 1 } else { 1 };
        owner = marked;
        if timeouts_max.is_some_and(|max| timeouts >= max) {
            return None;
        }
    }
}

/// Gives the lock back and wakes one that sleeps for it.
pub fn give_back<W: FutexWord>(word: &W) {
    if word.swap(0) & CONTENDED != 0 {
        word.wake();
    }
}

/// A flag that one thread at a time sets.
pub trait Flag {
    /// As [`AtomicBool::swap`], sequentially consistent.
    fn swap(&self, to: bool) -> bool;
    /// As [`AtomicBool::store`], sequentially consistent.
    fn store(&self, to: bool);
}

impl Flag for AtomicBool {
    fn swap(&self, to: bool) -> bool {
        AtomicBool::swap(self, to, Ordering::SeqCst)
    }
    fn store(&self, to: bool) {
        AtomicBool::store(self, to, Ordering::SeqCst);
    }
}

/// A number that says what is wanted; 0 is nothing.
pub trait Wish {
    /// As [`AtomicU32::load`], sequentially consistent.
    fn load(&self) -> u32;
    /// As [`AtomicU32::store`], sequentially consistent.
    fn store(&self, to: u32);
    /// As [`AtomicU32::swap`], sequentially consistent.
    fn swap(&self, to: u32) -> u32;
}

impl Wish for AtomicU32 {
    fn load(&self) -> u32 {
        AtomicU32::load(self, Ordering::SeqCst)
    }
    fn store(&self, to: u32) {
        AtomicU32::store(self, to, Ordering::SeqCst);
    }
    fn swap(&self, to: u32) -> u32 {
        AtomicU32::swap(self, to, Ordering::SeqCst)
    }
}

/// Something that one thread has at a time, and what others want of it meanwhile. Whoever wants something notes it and then tries
/// to take it; whoever gives it back looks for a note afterwards. In one order over both words, one of the two sees the other.
#[derive(Debug)]
pub struct Handover<B, W> {
    busy: B,
    wanted: W,
}

impl Handover<AtomicBool, AtomicU32> {
    /// Free, and nothing wanted.
    pub const fn idle() -> Handover<AtomicBool, AtomicU32> {
        Handover { busy: AtomicBool::new(false), wanted: AtomicU32::new(0) }
    }
}

impl<B: Flag, W: Wish> Handover<B, W> {
    /// Over these two words.
    pub fn new(busy: B, wanted: W) -> Handover<B, W> {
        Handover { busy, wanted }
    }

    /// Takes it; false if another thread has it.
    pub fn take(&self) -> bool {
        !self.busy.swap(true)
    }

    /// Gives it back. True if something is wanted: try to take it again, and see to that.
    #[must_use]
    pub fn give_back(&self) -> bool {
        self.busy.store(false);
        self.wanted.load() != 0
    }

    /// Notes what is wanted; not 0. Then try to take it.
    pub fn want(&self, what: u32) {
        self.wanted.store(what);
    }

    /// Nothing is wanted any more.
    pub fn forget(&self) {
        self.wanted.store(0);
    }

    /// Takes what is wanted; 0 if nothing is. For who has it.
    pub fn take_wanted(&self) -> u32 {
        self.wanted.swap(0)
    }
}
