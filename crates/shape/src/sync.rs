//! Hand-overs between threads, apart from the memory they happen in. There are three: a lock over a futex word, a connection's
//! event that a thread wants while another has the connection, and a table's entry that successive connections use. The atomics are
//! parameters, so that `tests/model.rs` runs every order of their steps.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// Set in the lock word when somebody sleeps for it.
pub const CONTENDED: u32 = 1 << 31;
/// Stands in the lock word for an owner that failed within. No thread has this id.
pub const BROKEN: u32 = CONTENDED - 1;

/// A word on which threads and processes sleep.
pub trait FutexWord {
    /// Number of tries of a taken lock before sleeping.
    const SPINS: u32;
    /// As [`AtomicU32::compare_exchange`].
    ///
    /// # Errors
    /// The value, if it isn't `from`.
    fn compare_exchange(&self, from: u32, to: u32, success: Ordering) -> Result<u32, u32>;
    /// As [`AtomicU32::load`], acquiring.
    fn load(&self) -> u32;
    /// As [`AtomicU32::swap`], releasing.
    fn swap(&self, to: u32) -> u32;
    /// Sleeps while the word has this value, for a while at most; false if the time was up.
    fn wait(&self, value: u32) -> bool;
    /// Wakes one that sleeps on it.
    fn wake(&self);
}

/// A number beside the word. It has 64 bits so that it never comes round to a value that it had.
pub trait Number {
    /// As [`AtomicU64::load`], relaxed.
    fn load(&self) -> u64;
    /// As [`AtomicU64::store`], relaxed.
    fn store(&self, to: u64);
}

impl Number for AtomicU64 {
    fn load(&self) -> u64 {
        AtomicU64::load(self, Ordering::Relaxed)
    }
    fn store(&self, to: u64) {
        AtomicU64::store(self, to, Ordering::Relaxed);
    }
}

/// State of the lock's owner, as the system tells it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Owner {
    /// It has ended: nothing of it writes any more.
    Dead,
    /// It was stopped by a signal or a debugger. It may go on at any time.
    Stopped,
    /// It sleeps, is frozen, or can't be seen.
    Waits,
    /// It has a core, or waits for one.
    Runs,
}

impl Owner {
    /// Part of [`PATIENCE`] that a look uses up which finds the owner so.
    fn wear(self) -> u32 {
        match self {
            Owner::Stopped => 10,
            Owner::Waits => 2,
            Owner::Runs | Owner::Dead => 1,
        }
    }
}

/// Limit of the weight of looks at an owner in one hold, at 10 ms each: 1 s stopped, 5 s asleep, 10 s without a core.
pub const PATIENCE: u32 = 1000;

/// Way in which the lock was taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Taken {
    /// From nobody, or from who gave it back.
    Free,
    /// From an owner that is dead or failed: its change is half done.
    FromDead,
}

/// A lock whose owner may die or be stopped. It is taken from the dead only: nothing keeps a stopped owner from writing when it
/// goes on, so who can't wait for it goes on without the lock.
#[repr(C)]
#[derive(Debug)]
pub struct Lock<W, N> {
    /// 0, or the owner's thread id, with [`CONTENDED`] if somebody waits.
    word: W,
    /// Number of the hold. It changes before the word says that a hold is over.
    turn: N,
    /// 1 + the hold that somebody gave up on: nobody else waits for that one, unless its owner runs or is dead.
    given_up: N,
}

impl<W: FutexWord, N: Number> Lock<W, N> {
    /// Over these words; the numbers are 0.
    pub fn new(word: W, turn: N, given_up: N) -> Lock<W, N> {
        Lock { word, turn, given_up }
    }

    /// The word itself.
    pub fn word(&self) -> &W {
        &self.word
    }

    /// Takes the lock for `tid`, which is neither 0 nor [`BROKEN`], if nobody has it.
    pub fn take_if_free(&self, tid: u32) -> bool {
        self.word.compare_exchange(0, tid, Ordering::Acquire).is_ok()
    }

    /// Takes the lock for `tid` without waiting: if nobody has it, or if its owner is dead or failed.
    pub fn take_now(&self, tid: u32, look: &dyn Fn(u32) -> Owner) -> Option<Taken> {
        if self.take_if_free(tid) {
            return Some(Taken::Free);
        }
        let seen = self.word.load();
        let hold = self.turn.load();
        // The mark stays: somebody may sleep.
        let mine = tid | (seen & CONTENDED);
        let taken = match seen & !CONTENDED {
            0 => return self.take_if_free(tid).then_some(Taken::Free),
            BROKEN => self.word.compare_exchange(seen, mine, Ordering::Acquire).is_ok(),
            owner => look(owner) == Owner::Dead && self.take_over(seen, hold, mine),
        };
        taken.then_some(Taken::FromDead)
    }

    /// Takes the lock from an owner that is dead, and whose hold is `hold`.
    fn take_over(&self, seen: u32, hold: u64, mine: u32) -> bool {
        let taken = self.word.compare_exchange(seen, mine, Ordering::Acquire).is_ok();
        if taken {
            // Who gave up on the dead one's hold didn't give up on this.
            self.turn.store(hold.wrapping_add(1));
        }
        taken
    }

    /// Takes the lock for `tid`. `None` if one hold wore out `patience`, or already another
    /// waiter's and its owner still doesn't run.
    pub fn take(&self, tid: u32, look: &dyn Fn(u32) -> Owner, patience: Option<u32>) -> Option<Taken> {
        if self.take_if_free(tid) { Some(Taken::Free) } else { self.take_slowly(tid, look, patience) }
    }

    #[cold]
    fn take_slowly(&self, tid: u32, look: &dyn Fn(u32) -> Owner, patience: Option<u32>) -> Option<Taken> {
        for _ in 0..W::SPINS {
            if self.take_if_free(tid) {
                return Some(Taken::Free);
            }
            std::hint::spin_loop();
        }
        // Others may sleep: they're woken one by one, each keeping the mark for the next.
        let mine = tid | CONTENDED;
        let (mut turn, mut worn) = (self.turn.load(), 0);
        loop {
            let seen = self.word.load();
            let owner = seen & !CONTENDED;
            if owner == 0 || owner == BROKEN {
                if self.word.compare_exchange(seen, mine, Ordering::Acquire).is_ok() {
                    return Some(if owner == BROKEN { Taken::FromDead } else { Taken::Free });
                }
                continue;
            }
            let hold = self.turn.load();
            if hold != turn {
                (turn, worn) = (hold, 0);
            }
            if patience.is_some() && self.given_up.load() == turn.wrapping_add(1) {
                // Since somebody gave up on it, the owner may have died, and this may be the only one that comes by. Or it goes on;
                // so does one that took the lock from a dead owner and is about to number its hold.
                match look(owner) {
                    Owner::Dead if self.take_over(seen, turn, mine) => return Some(Taken::FromDead),
                    Owner::Dead => continue,
                    Owner::Runs => {}
                    Owner::Stopped | Owner::Waits => return None,
                }
            }
            let marked = seen | CONTENDED;
            if seen != marked && self.word.compare_exchange(seen, marked, Ordering::Relaxed).is_err() {
                continue;
            }
            if self.word.wait(marked) {
                continue;
            }
            let state = look(owner);
            if state == Owner::Dead && self.take_over(marked, turn, mine) {
                return Some(Taken::FromDead);
            }
            worn += state.wear();
            // Still the same hold: of another, nothing was looked at.
            if patience.is_some_and(|most| worn >= most) && self.word.load() == marked && self.turn.load() == turn {
                self.given_up.store(turn.wrapping_add(1));
                return None;
            }
        }
    }

    /// Gives the lock back and wakes one that sleeps for it.
    pub fn give_back(&self) {
        self.leave(0);
    }

    /// Gives the lock back half-way through a change: the next owner learns of it.
    pub fn break_off(&self) {
        self.leave(BROKEN);
    }

    fn leave(&self, word: u32) {
        self.turn.store(self.turn.load().wrapping_add(1));
        if self.word.swap(word) & CONTENDED != 0 {
            self.word.wake();
        }
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

/// Something that one thread has at a time, and what others want of it meanwhile. A thread that wants something notes it and then
/// tries to take the thing; the owner looks for a note after giving the thing back. In one order over both words, one of the two
/// sees the other.
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

/// A number by which others know whose an entry is; 0: nobody's.
pub trait Mark {
    /// As [`AtomicU32::load`], acquiring.
    fn load(&self) -> u32;
    /// As [`AtomicU32::store`], releasing.
    fn store(&self, to: u32);
}

impl Mark for AtomicU32 {
    fn load(&self) -> u32 {
        AtomicU32::load(self, Ordering::Acquire)
    }
    fn store(&self, to: u32) {
        AtomicU32::store(self, to, Ordering::Release);
    }
}

/// An entry of a table whose contents one thread at a time has. The contents are written before the mark says that they are there, by a thread
/// that has the entry. Others look at the mark before and after they take the entry: an entry that was forgotten between is given back.
#[derive(Debug)]
pub struct Entry<M, B, W> {
    mark: M,
    handover: Handover<B, W>,
}

/// Result of taking an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Hold {
    /// It is taken, and its contents are there.
    Held,
    /// It is taken, and was forgotten meanwhile: give it back.
    Forgotten,
    /// It is nobody's, or another thread has it.
    Not,
}

impl Entry<AtomicU32, AtomicBool, AtomicU32> {
    /// Nobody's.
    pub const fn vacant() -> Entry<AtomicU32, AtomicBool, AtomicU32> {
        Entry { mark: AtomicU32::new(0), handover: Handover::idle() }
    }
}

impl<M: Mark, B: Flag, W: Wish> Entry<M, B, W> {
    /// Over these words.
    pub fn new(mark: M, busy: B, wanted: W) -> Entry<M, B, W> {
        Entry { mark, handover: Handover::new(busy, wanted) }
    }

    /// The mark, whoever has the entry; 0: it is nobody's.
    pub fn mark(&self) -> u32 {
        self.mark.load()
    }

    /// Takes it, if it is somebody's and no other thread has it.
    pub fn hold(&self) -> Hold {
        if self.mark.load() == 0 || !self.handover.take() {
            return Hold::Not;
        }
        if self.mark.load() == 0 { Hold::Forgotten } else { Hold::Held }
    }

    /// Takes it, whosever it is, to write its contents. False if another thread has it.
    pub fn take_to_fill(&self) -> bool {
        self.handover.take()
    }

    /// Its contents are written: it is this one's now. For who has it.
    pub fn fill(&self, mark: u32) {
        self.handover.forget();
        self.mark.store(mark);
    }

    /// The mark by which others know it from now on. For who has it.
    pub fn publish(&self, mark: u32) {
        self.mark.store(mark);
    }

    /// It is nobody's from now on, and nothing is wanted of it. For who has it.
    pub fn forget(&self) {
        self.handover.forget();
        self.mark.store(0);
    }

    /// Gives it back. True if something is wanted: try to take it again, and see to that.
    #[must_use]
    pub fn give_back(&self) -> bool {
        self.handover.give_back()
    }

    /// Notes what is wanted of it; not 0. Then try to take it. A late wish for an earlier owner doesn't replace the present owner's.
    pub fn want(&self, what: u32) {
        let before = self.handover.wanted.swap(what);
        if before != 0 && before != what && before == self.mark.load() {
            self.handover.want(before);
        }
    }

    /// Takes what is wanted; 0 if nothing is. For who has it.
    pub fn take_wanted(&self) -> u32 {
        self.handover.take_wanted()
    }
}
