//! The node's pools by number, which come and go while it serves.

use super::error::Result;
use super::pool::RunningPool;
use crate::config::PoolConfig;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, RwLock};
use std::time::{Duration, Instant};
use tokio::sync::watch;

type Slots = Vec<Option<Arc<RunningPool>>>;
/// Each with the moment of its removal.
type Leaving = Vec<(Arc<RunningPool>, Instant)>;

/// See the module's documentation. A number is one pool's only: the slot of a pool that was removed stays empty.
pub struct Pools {
    slots: RwLock<Arc<Slots>>,
    /// Stands for a pool that was removed: it answers nobody.
    removed: Arc<RunningPool>,
    /// Counts changes.
    changes: watch::Sender<u64>,
    /// Pools that were removed and whose devices aren't closed yet.
    leaving: Mutex<Leaving>,
    left: Condvar,
    /// Names of pools that are being opened on a thread of their own.
    opening: Mutex<BTreeSet<String>>,
    /// Pools whose devices hadn't answered when the start or the reload stopped waiting for them, with the moment of its beginning.
    late: Mutex<BTreeMap<String, (PoolConfig, Instant)>>,
}

impl Pools {
    /// Without any.
    pub(super) fn new() -> Result<Pools> {
        Ok(Pools {
            slots: RwLock::default(),
            removed: Arc::new(RunningPool::absent("(removed)", "-".into(), "the pool was removed".into())?),
            changes: watch::Sender::new(0),
            leaving: Mutex::default(),
            left: Condvar::new(),
            opening: Mutex::default(),
            late: Mutex::default(),
        })
    }

    fn slots(&self) -> Arc<Slots> {
        self.slots.read().expect("no panic while held").clone()
    }

    fn change<T>(&self, change: impl FnOnce(&mut Slots) -> T) -> T {
        let changed = {
            let mut slots = self.slots.write().expect("no panic while held");
            change(Arc::make_mut(&mut slots))
        };
        self.changes.send_modify(|n| *n += 1);
        changed
    }

    /// The pool of a number. One that was removed answers nobody.
    pub fn get(&self, number: usize) -> Arc<RunningPool> {
        self.slots().get(number).cloned().flatten().unwrap_or_else(|| self.removed.clone())
    }

    /// The pools that are there, with their numbers.
    pub fn all(&self) -> Vec<(usize, Arc<RunningPool>)> {
        let slots = self.slots();
        slots.iter().enumerate().filter_map(|(number, pool)| Some((number, pool.clone()?))).collect()
    }

    /// The pools that are there, each with its place of `views`, a list by number. Not those that came while the views were taken: a
    /// pool without a view is one that doesn't answer.
    pub fn with<'a, V>(&self, views: &'a [Option<V>]) -> Vec<(usize, Arc<RunningPool>, Option<&'a V>)> {
        let view = |number: usize| views.get(number).and_then(Option::as_ref);
        let all = self.all().into_iter().map(|(number, pool)| (number, pool, view(number)));
        all.filter(|(_, pool, view)| view.is_some() || pool.may_be_silent()).collect()
    }

    /// The pool of a name, with its number.
    pub fn named(&self, name: &str) -> Option<(usize, Arc<RunningPool>)> {
        self.all().into_iter().find(|(_, p)| p.name == name)
    }

    /// One more than the largest number.
    pub fn numbers(&self) -> usize {
        self.slots().len()
    }

    /// Gives a pool its number. A pool of its name that couldn't be opened leaves its number to this one.
    pub(super) fn put(&self, pool: RunningPool) -> usize {
        self.change(|slots| {
            let is_old = |p: &Option<Arc<RunningPool>>| p.as_ref().is_some_and(|p| p.name == pool.name);
            let number = slots.iter().position(is_old).unwrap_or_else(|| {
                slots.push(None);
                slots.len() - 1
            });
            slots[number] = Some(Arc::new(pool));
            number
        })
    }

    /// Forgets the pools that couldn't be opened and aren't wanted any more.
    pub(super) fn forget_failed(&self, is_wanted: impl Fn(&str) -> bool) {
        self.change(|slots| {
            for slot in slots {
                let is_gone = |p: &Arc<RunningPool>| p.failed.is_some() && !is_wanted(&p.name);
                slot.take_if(|p| is_gone(p));
            }
        });
    }

    /// Takes a pool out, whose devices aren't closed yet.
    pub(super) fn take(&self, number: usize) -> Option<Arc<RunningPool>> {
        // In this order: its name is in one of the lists at any time.
        let pool = self.slots().get(number).cloned().flatten()?;
        self.leaves(pool.clone());
        self.change(|slots| slots[number] = None);
        Some(pool)
    }

    /// Notes that a pool isn't served any more, and its devices aren't closed yet.
    pub(super) fn leaves(&self, pool: Arc<RunningPool>) {
        self.leaving().push((pool, Instant::now()));
    }

    /// Pools that were removed and whose devices aren't closed yet.
    pub fn leaving(&self) -> MutexGuard<'_, Leaving> {
        self.leaving.lock().expect("no panic while held")
    }

    /// Names of pools that are being opened on a thread of their own.
    pub(super) fn opening(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.opening.lock().expect("no panic while held")
    }

    /// Notes a pool whose device hadn't answered when the start or the reload, which began then, stopped waiting for it.
    pub(super) fn is_late(&self, section: &PoolConfig, since: Instant) {
        let name = section.name.get_ref().clone();
        self.late.lock().expect("no panic while held").insert(name, (section.clone(), since));
    }

    /// Notes that the device of such a pool has answered.
    pub(super) fn has_answered(&self, name: &str) {
        self.late.lock().expect("no panic while held").remove(name);
    }

    /// Names of the pools whose devices haven't answered yet.
    pub fn late_names(&self) -> Vec<String> {
        self.late.lock().expect("no panic while held").keys().cloned().collect()
    }

    /// Section with which a pool is still being opened, and the time for which its device hasn't answered.
    pub fn late(&self, name: &str) -> Option<(PoolConfig, Duration)> {
        let late = self.late.lock().expect("no panic while held");
        late.get(name).map(|(section, since)| (section.clone(), since.elapsed()))
    }

    /// Notes that a pool that was removed has closed its devices.
    pub(super) fn has_left(&self, name: &str) {
        self.leaving().retain(|(p, _)| p.name != name);
        self.left.notify_all();
    }

    /// Blocks until each pool that was removed has closed its devices.
    pub(super) fn wait_for_leaving(&self) {
        let leaving = self.leaving();
        drop(self.left.wait_while(leaving, |leaving| !leaving.is_empty()));
    }

    /// Hears of each change of the list.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Views are taken pool by pool, which takes seconds where one hangs.
    #[tokio::test]
    async fn a_pool_that_came_while_views_were_taken_is_none_that_does_not_answer() {
        let pools = Pools::new().unwrap();
        let pool = |name: &str, failed: Option<&str>| {
            let mut pool = RunningPool::absent(name, "-".into(), String::new()).unwrap();
            pool.failed = failed.map(Into::into);
            pool
        };
        pools.put(pool("there", None));
        pools.put(pool("repaired", Some("it couldn't be opened")));
        let of = |views: &[Option<()>]| {
            let with = pools.with(views).into_iter();
            with.map(|(_, p, view)| (p.name.clone(), p.failed.is_some(), view.is_some())).collect::<Vec<_>>()
        };
        let there = ("there".to_string(), false, true);
        assert_eq!(of(&[Some(()), None]), [there.clone(), ("repaired".to_string(), true, false)]);
        pools.put(pool("repaired", None));
        pools.put(pool("new", None));
        assert_eq!(of(&[Some(()), None]), std::slice::from_ref(&there));
        // One that is asked and doesn't answer is named.
        pools.named("new").unwrap().1.view_of_pool().await.unwrap_err();
        assert_eq!(of(&[Some(()), None, None]), [there, ("new".to_string(), false, false)]);
    }
}
