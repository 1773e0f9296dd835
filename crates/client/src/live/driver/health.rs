//! Connections that come and go, and whether their replicas may be read.

use super::{Driver, News, generation_max};
use crate::live::link::{For, Link, LinkState, Open, Pending};
use crate::live::stream::Stream;
use plimsoll_nbd::client::Opened;
use plimsoll_nbd::promise::Promise;
use plimsoll_nbd::wire::{Command, NoteKind};
use std::sync::Arc;
use std::time::Duration;

impl Driver {
    /// A link is connected. Fails where its export can't be a replica of the others'.
    pub fn attach(&mut self, link: usize, stream: Arc<Stream>, opened: &Opened) -> Result<(), String> {
        let new = Open::new(self.now(), stream, opened);
        if let Some(size) = self.size_bytes.filter(|s| *s != new.size_bytes) {
            return Err(format!(
                "it has {} bytes, the other replicas have {size}: it isn't one of them",
                new.size_bytes
            ));
        }
        self.links[link].state = if new.promises { LinkState::Opening } else { LinkState::Up };
        self.links[link].open = Some(new);
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

    pub(super) fn health(&mut self, link: usize, p: &Pending, required: u64, claimed: u64) {
        let now = self.now();
        let generation = p.generation().unwrap_or(0);
        // After a resync it has the count of a replica that was asked, too.
        let possible = |l: &Link| l.confirmed_at.map(|at| generation_max(l.confirmed, now.since(at)));
        let most = self.links.iter().filter_map(possible).max().unwrap_or(u64::MAX);
        let l = &mut self.links[link];
        if l.confirmed_at.is_some() && generation > most {
            let (known, more) = (l.confirmed, "no volume is changed so often");
            l.state =
                LinkState::Behind(format!("says {generation} changes, but had {known} when it was last asked: {more}"));
            l.counts = 0;
            self.changed.notify_waiters();
            return;
        }
        (l.confirmed, l.confirmed_at) = (generation, Some(now));
        // An earlier answer claimed more changes than there are: nobody else can have seen these, and nobody need.
        let retracts = p.error.is_none() && generation < claimed;
        let mark = match (p.note(NoteKind::Behind), &p.error) {
            (_, Some(error)) => Some(error.clone()),
            (Some(1..), None) => Some("may lack acknowledged writes: `plimsoll volume resync` brings it up".into()),
            _ => None,
        };
        // An operator has said that what it has is right, whatever others had.
        let anew = mark.is_none() && l.marked;
        (l.marked, l.generation, l.counts) = (mark.is_some(), generation, 0);
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
