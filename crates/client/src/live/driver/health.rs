//! Connections that come and go, and whether their replicas may be read.

use super::{Driver, News};
use crate::live::link::{For, Link, LinkState, Open, Pending};
use crate::live::stream::Stream;
use plimsoll_base::{Span, Time};
use plimsoll_nbd::client::Opened;
use plimsoll_nbd::promise::Promise;
use plimsoll_nbd::wire::{Command, NoteKind};
use std::sync::Arc;
use std::time::Duration;

/// A count is a recent one for this long: replicas are asked every second.
const LATELY: Span = Span::from_secs(3);

impl Driver {
    /// A link is connected. Fails where its export can't be a replica of the others'.
    pub fn attach(&mut self, link: usize, stream: Arc<Stream>, opened: &Opened) -> Result<(), String> {
        if self.stopped {
            return Err(super::ENDED.into());
        }
        let new = Open::new(self.now(), stream, opened);
        if !new.promises && !self.options.foreign {
            let what = "the server doesn't know deadlines, refusals and counts of changes (x-plimsoll:promise): it isn't a Plimsoll node";
            return Err(format!("{what}. The option `foreign` reads it without them"));
        }
        if let Some(size) = self.size_bytes.filter(|s| *s != new.size_bytes) {
            return Err(format!(
                "it has {} bytes, the other replicas have {size}: it isn't one of them",
                new.size_bytes
            ));
        }
        self.links[link].state = if new.promises { LinkState::Opening } else { LinkState::Up };
        self.links[link].open = Some(new);
        // It may have missed all changes that others have reported since its last answer.
        self.links[link].known_then = self.known();
        self.changed.notify_waiters();
        self.ask_health(link);
        Ok(())
    }

    /// A link's connection has ended, and what was under way on it will not be answered.
    pub fn lose(&mut self, link: usize, why: &str) {
        let l = &mut self.links[link];
        l.state = LinkState::Down(why.to_string());
        l.stuck.notify_one();
        let address = &l.address;
        for (_, p) in l.open.take().map_or_else(Default::default, |open| open.pending) {
            match p.what {
                For::Try { get, number } => {
                    self.news.push_back(News::Failed { get, number, why: format!("{address}: {why}") });
                }
                For::Probe { get } => self.news.push_back(News::ProbeLost { get }),
                For::Health { .. } => {}
            }
        }
        self.changed.notify_waiters();
        self.settle();
    }

    /// Looks after a link: asks how its replica is, and gives up one that says nothing. Why, if so.
    pub fn tend(&mut self, link: usize) -> Result<(), String> {
        let now = self.now();
        let stall = self.options.stall;
        let Some(open) = &self.links[link].open else { return Err("the connection broke".into()) };
        if !open.pending.is_empty() && Duration::from(now.since(open.heard_at)) > stall {
            return Err(format!("hangs: it has sent nothing for {stall:?}"));
        }
        self.ask_health(link);
        Ok(())
    }

    fn ask_health(&mut self, link: usize) {
        let now = self.now();
        let l = &mut self.links[link];
        let (required, claimed) = (l.known_then, l.generation);
        let Some(open) = l.open.as_mut().filter(|o| o.promises) else { return };
        if !open.pending.values().any(|p| matches!(p.what, For::Health { .. })) {
            let length = open.block_bytes.max(512);
            open.submit(now, For::Health { required, claimed }, Command::BlockStatus, (0, length), Promise::default());
            self.touched.push(link);
            self.settle();
        }
    }

    pub(super) fn health(&mut self, now: Time, link: usize, p: &Pending, required: u64, claimed: u64) {
        let said = p.note(NoteKind::Behind).map(|n| n > 0);
        let generation = p.generation().unwrap_or(0);
        // The count of a replica that is or was marked may be another's since: its resync or its operator has given it.
        let anyones = said == Some(true) || self.links[link].marked;
        if !anyones && generation > self.generation_max(now, link, generation) {
            self.refuse(link, generation);
            return;
        }
        let l = &mut self.links[link];
        if p.generation().is_some() {
            (l.confirmed, l.confirmed_at, l.refused) = (generation, Some(now), None);
        }
        let mark = match (said, &p.error) {
            (_, Some(error)) => Some(error.clone()),
            (Some(true), None) => Some("may lack acknowledged writes: `plimsoll volume resync` brings it up".into()),
            _ => None,
        };
        // An earlier answer claimed more changes than there are: nobody else can have seen these, and nobody need. A mark tells of a
        // killed node instead, which has forgotten changes that others have and that were read.
        let retracts = mark.is_none() && generation < claimed;
        // An operator has said that what it has is right, whatever others had.
        let anew = mark.is_none() && l.marked;
        // An error alone doesn't tell.
        l.marked = said.unwrap_or(l.marked && p.error.is_some());
        (l.generation, l.counts) = (generation, 0);
        if anew {
            self.forget_the_absent();
        }
        let required = required.min(self.known());
        let state = match mark {
            Some(why) => LinkState::Behind(why),
            None if generation < required => behind(generation, required),
            None => LinkState::Up,
        };
        let l = &mut self.links[link];
        l.counts = if state == LinkState::Up { generation } else { 0 };
        if std::mem::replace(&mut l.state, state.clone()) != state {
            self.changed.notify_waiters();
        }
        let known = self.known();
        self.links[link].known_then = known;
        if anew || retracts {
            self.floor = self.floor.min(known);
        }
    }

    /// The most changes that a link's replica can have seen, if it says that it has seen `generation`. Any number, before its first count.
    fn generation_max(&self, now: Time, link: usize, generation: u64) -> u64 {
        let possible = |l: &Link| Some(super::generation_max(l.confirmed, now.since(l.confirmed_at?)));
        let Some(own) = possible(&self.links[link]) else { return u64::MAX };
        // After a resync it has the count of a replica that was asked, too.
        let others = self.links.iter().enumerate().filter(|(i, _)| *i != link).map(|(_, l)| l);
        if self.links[link].refused.is_none_or(|refused| generation < refused) {
            return others.filter_map(possible).fold(own, u64::max);
        }
        // A count that was too large doesn't become right by waiting: somebody else must have reached it.
        let lately = |l: &&Link| l.state == LinkState::Up && l.confirmed_at.is_some_and(|at| now.since(at) < LATELY);
        others.filter(lately).map(|l| super::generation_max(l.confirmed, LATELY)).max().unwrap_or(0)
    }

    /// A replica named more changes than it can have seen: it isn't read.
    fn refuse(&mut self, link: usize, generation: u64) {
        let l = &mut self.links[link];
        let (known, more) = (l.confirmed, "no volume is changed so often");
        l.state =
            LinkState::Behind(format!("says {generation} changes, but had {known} when it was last asked: {more}"));
        l.refused = Some(l.refused.map_or(generation, |before| before.min(generation)));
        l.counts = 0;
        self.changed.notify_waiters();
    }

    /// The most changes that a replica has seen which is read, or was when its connection ended.
    fn known(&self) -> u64 {
        self.links.iter().map(|l| l.counts).max().unwrap_or(0)
    }

    /// Drops the generations of replicas that can't be asked now: they may be out of date, and must not keep all others from
    /// being read.
    fn forget_the_absent(&mut self) {
        self.links.iter_mut().filter(|l| l.open.is_none()).for_each(|l| l.counts = 0);
    }

    /// Replicas that have seen fewer changes than another aren't read. Only what has been asked again since tells that
    /// changes weren't just on their way.
    pub fn compare(&mut self) {
        let most = self.links.iter().filter(|l| l.state == LinkState::Up).map(|l| l.generation).max().unwrap_or(0);
        for l in self.links.iter_mut().filter(|l| l.state == LinkState::Up) {
            if l.open.as_ref().is_some_and(|o| o.promises) && l.generation < most {
                l.state = behind(l.generation, most);
                l.counts = 0;
            }
        }
    }
}

fn behind(generation: u64, required: u64) -> LinkState {
    LinkState::Behind(format!(
        "has seen {generation} changes, another replica {required}: `plimsoll volume resync` brings it up"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::live::options::Options;

    fn driver(replicas: usize) -> Driver {
        let policy = crate::PolicyKind::Base.build(&crate::PolicySettings::default()).unwrap();
        Driver::new(vec!["one".into(); replicas], policy, Options::default())
    }

    fn at(seconds: u64) -> Time {
        Time::ZERO + Span::from_secs(seconds)
    }

    /// A replica answers a probe: its count (`None`: an error) and its mark.
    fn says(driver: &mut Driver, now: Time, link: usize, generation: Option<u64>, behind: u32) {
        let (required, claimed) = (driver.links[link].known_then, driver.links[link].generation);
        let what = For::Health { required, claimed };
        let mut p =
            Pending { what, data: Vec::new(), offset: 0, length: 512, notes: Vec::new(), note_chunks: 0, error: None };
        match generation {
            Some(g) => p.heard(vec![
                (NoteKind::GenerationLow, g as u32),
                (NoteKind::GenerationHigh, (g >> 32) as u32),
                (NoteKind::Behind, behind),
            ]),
            None => p.error = Some("broken".into()),
        }
        driver.health(now, link, &p, required, claimed);
    }

    fn up(driver: &Driver) -> Vec<bool> {
        driver.links.iter().map(|l| l.state == LinkState::Up).collect()
    }

    #[test]
    fn a_count_that_was_too_large_is_never_taken_later() {
        const WRONG: u64 = 1 << 32;
        let mut d = driver(2);
        (0..2).for_each(|link| says(&mut d, at(0), link, Some(5), 0));
        for s in 1..2000 {
            says(&mut d, at(s), 0, Some(WRONG), 0);
            says(&mut d, at(s), 1, Some(5 + s), 0);
            assert_eq!(up(&d), [false, true], "after {s} s");
        }
        // Nor where nobody else is connected: the others come back.
        d.links[1].state = LinkState::Down("gone".into());
        says(&mut d, at(3000), 0, Some(WRONG + 7), 0);
        says(&mut d, at(3000), 1, Some(5000), 0);
        assert_eq!(up(&d), [false, true]);
        // A possible one ends it.
        says(&mut d, at(3001), 0, Some(5000), 0);
        assert_eq!(up(&d), [true, true]);
    }

    #[test]
    fn a_large_count_is_taken_after_a_long_time_and_with_others() {
        const MANY: u64 = 1 << 32;
        let mut d = driver(2);
        (0..2).for_each(|link| says(&mut d, at(0), link, Some(5), 0));
        says(&mut d, at(1), 0, Some(MANY), 0);
        assert_eq!(up(&d), [false, true]);
        // The client was away.
        says(&mut d, at(3600), 1, Some(MANY), 0);
        says(&mut d, at(3600), 0, Some(MANY + 1), 0);
        assert_eq!(up(&d), [true, true]);
    }

    #[test]
    fn a_kill_lowers_no_bound_and_an_operators_word_does() {
        let bound = |mut d: Driver, then: [(usize, u64); 2]| {
            says(&mut d, at(0), 0, Some(100), 0);
            says(&mut d, at(0), 1, Some(99), 0);
            d.floor = 100; // the first was read
            says(&mut d, at(1), 0, Some(50), 1);
            says(&mut d, at(1), 0, None, 0);
            says(&mut d, at(2), 1, Some(99), 0);
            assert_eq!((d.floor, up(&d)), (100, vec![false, true]), "the first was killed");
            then.iter().for_each(|(link, generation)| says(&mut d, at(3), *link, Some(*generation), 0));
            (d.floor, up(&d))
        };
        assert_eq!(bound(driver(2), [(0, 99), (1, 99)]), (99, vec![true, true]), "resynced from the second");
        assert_eq!(bound(driver(2), [(0, 50), (0, 50)]), (50, vec![true, true]), "trusted while the second is away");
        assert_eq!(bound(driver(2), [(1, 100), (1, 101)]), (100, vec![false, true]), "the writer went on");
        // It was killed and resynced before it was asked again.
        let mut d = driver(2);
        (0..2).for_each(|link| says(&mut d, at(0), link, Some(100 - link as u64), 0));
        d.floor = 100;
        says(&mut d, at(1), 0, Some(99), 0);
        assert_eq!(d.floor, 99);
    }

    #[test]
    fn a_resync_and_an_error_leave_a_replicas_count_free() {
        const MANY: u64 = 1 << 32;
        let mut d = driver(1);
        says(&mut d, at(0), 0, Some(5), 0);
        says(&mut d, at(1), 0, Some(5), 1);
        says(&mut d, at(2), 0, Some(MANY), 0); // from a peer that the client doesn't know
        assert_eq!(up(&d), [true]);
        says(&mut d, at(3), 0, None, 0);
        assert_eq!(up(&d), [false]);
        says(&mut d, at(4), 0, Some(MANY), 0);
        assert_eq!(up(&d), [true], "an error has no count");
    }
}
