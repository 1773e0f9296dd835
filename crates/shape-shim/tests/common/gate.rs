//! A test's queries and changes of a server's gate.

use super::{Server, tid};
use plimsoll_base::Time;
use plimsoll_shape::gate::{Counters, Knobs};
use plimsoll_shape::profile::Profile;
use plimsoll_shape::segment::{Guard, monotonic};
use plimsoll_shape::tend::Woken;
use std::process::{Child, Command};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// A process that was stopped; it ends with this.
pub struct Stopped(Child);

impl Drop for Stopped {
    fn drop(&mut self) {
        let _ = self.0.kill(); // it can't have ended
        let _ = self.0.wait();
    }
}

impl Server {
    fn gate<T>(&self, f: impl FnOnce(&mut plimsoll_shape::gate::Gate<'_>) -> T) -> T {
        f(&mut self.segment.lock(tid(), monotonic()).gate())
    }

    pub fn counters(&self) -> Counters {
        self.gate(|g| g.head.counters)
    }

    /// Forgets what the preparation counted, once it is over: an answer is out before its request has ended.
    pub fn reset(&self) {
        self.await_inside((0, 0, 0, 0));
        self.gate(|g| g.head.counters = Counters::default());
    }

    /// P as it holds now; 0 while everything passes.
    pub fn p(&self) -> u32 {
        self.gate(|g| if g.head.knobs.open == 0 { g.head.knobs.p } else { 0 })
    }

    /// (ordinary places taken, over, lent, waiting)
    pub fn inside(&self) -> (u32, u32, u32, u32) {
        self.gate(|g| (g.head.normal, g.head.over, g.head.lent, g.head.waiting))
    }

    /// Changes knobs as a controller would: woken are those it lets in.
    pub fn set(&self, f: impl Fn(&mut Knobs)) {
        let mut granted = Vec::new();
        self.gate(|g| {
            let mut knobs = g.head.knobs;
            f(&mut knobs);
            self.segment.control().p_wanted.store(knobs.p, Ordering::Relaxed);
            g.set_knobs(monotonic(), knobs);
            // A pool's own threads tell theirs.
            while self.launch.profile != Profile::MysqlPool
                && let Some(conn) = g.take_grant()
            {
                granted.push(Woken { conn, owner_pid: g.conns[conn.0 as usize].owner_pid });
            }
        });
        granted.iter().for_each(|w| w.wake(&self.segment));
    }

    /// Breaks the gate, as a mistake of ours would: who looks for the next that waits finds nobody.
    pub fn break_gate(&self, p: u32) {
        self.gate(|g| (g.head.waiting, g.head.knobs.p) = (g.head.waiting + 5, p));
    }

    /// Breaks a user's entry: when its next request is to wait, that fails within the gate.
    pub fn break_user(&self, user: &str) {
        self.gate(|g| {
            let at = g.known_users().iter().position(|u| u.name() == user).unwrap();
            g.users[at].waiting = u32::MAX;
        });
    }

    /// Dies with the lock in its hand: the next one repairs the gate.
    pub fn die_in_the_lock(&self) {
        // An id that no process has, as the largest is far below.
        std::mem::forget(self.segment.lock(0x3fff_ffff, monotonic()));
    }

    /// A process is stopped with the lock in its hand, until the guard is dropped. Nothing of the gate can be asked meanwhile.
    pub fn stopped_in_the_lock(&self) -> (Stopped, Guard<'_>) {
        let child = Command::new("sleep").arg("600").spawn().unwrap();
        rustix::process::kill_process(rustix::process::Pid::from_child(&child), rustix::process::Signal::STOP).unwrap();
        let guard = self.segment.lock(child.id(), monotonic());
        (Stopped(child), guard)
    }

    /// Takes every entry of the users' table that may be had, for users that were here at that time and have no connection.
    pub fn fill_users(&self, name: &str, at: Time) {
        self.gate(|g| (0..).take_while(|i| g.user(at, &format!("{name}{i}")).is_some()).count());
    }

    /// Changes a user's weight, in thousandths.
    pub fn set_weight(&self, user: &str, milli: u32) {
        self.gate(|g| {
            let at = g.known_users().iter().position(|u| u.name() == user).unwrap();
            g.users[at].weight_milli = milli;
        });
    }

    /// Returns the number of connections that the gate knows.
    pub fn known(&self) -> u32 {
        self.gate(|g| g.known_users().iter().map(|u| u.conns).sum())
    }

    /// Users and how many transactions of theirs ended.
    pub fn users(&self) -> Vec<(String, u64)> {
        self.gate(|g| g.known_users().iter().map(|u| (u.name().into_owned(), u.finished)).collect())
    }

    /// Waits until as many are inside as `inside()` would say; fails after twenty seconds.
    pub fn await_inside(&self, wanted: (u32, u32, u32, u32)) {
        self.await_that(|s| s.inside() == wanted);
    }

    /// Waits until it holds; fails after twenty seconds.
    pub fn await_that(&self, mut holds: impl FnMut(&Server) -> bool) {
        let end = Instant::now() + Duration::from_secs(20);
        while !holds(self) {
            assert!(Instant::now() < end, "inside: {:?}, {:?}", self.inside(), self.counters());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Nothing is inside or waits, within twenty seconds.
    pub fn assert_empty(&self) {
        self.await_inside((0, 0, 0, 0));
        self.gate(|g| g.check());
    }
}
