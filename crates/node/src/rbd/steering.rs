//! Reads of a pool on an RBD image, steered: its layer receives the cluster's map, and again when it changes. A handle is opened for each CRUSH
//! host that has the image's objects, or for each rack, if those reach more. A pool is served without them: whatever is missing is asked for again and again.

use super::maps::{Answers, Layout, NoMap, epoch, news};
use super::{HANDLES_MAX, handle_at};
use crate::config::DeviceConfig;
use crate::engine::{Command, Device, PoolGone, PoolHandle, RbdDevice};
use plimsoll_rbd::{Cluster, Image};
use plimsoll_sched::osds::{Bucket, OsdMap, OsdsControl};
use plimsoll_stack::Addressed;
use std::collections::BTreeSet;
use std::io;
use std::ops::Range;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// The epoch is asked for this often.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// After a change the map is read this many times: the manager hears of new acting sets some seconds later.
const READS_AFTER_CHANGE: u32 = 4;
/// Looks from one reading to the next are at most this many. All groups of the cluster may be in an answer: one that goes on changing isn't asked
/// for them every two seconds.
const GAP_MAX: u32 = 8;
/// While reads aren't steered, each look of this number is one more attempt.
const LOOKS_BETWEEN_ATTEMPTS: u32 = 5;

/// Decides at which looks the map is read: at a change of its epoch, and some times more, at growing distances as long as it goes on changing.
#[derive(Default)]
struct Pace {
    /// Readings that are left.
    left: u32,
    /// Looks from the last reading to the next.
    gap: u32,
    /// Looks until then.
    until: u32,
}

impl Pace {
    /// The epoch was looked at. Returns whether the map is read now.
    fn look(&mut self, has_changed: bool) -> bool {
        if has_changed {
            self.left = READS_AFTER_CHANGE;
        }
        self.until = self.until.saturating_sub(1);
        if self.until > 0 {
            return false;
        }
        if self.left == 0 {
            self.gap = 0; // quiet for a whole gap
            return false;
        }
        self.left -= 1;
        self.gap = (self.gap * 2).clamp(1, GAP_MAX);
        self.until = self.gap;
        true
    }
}

/// A pool on an image, as far as steering concerns it.
pub(crate) struct Steering {
    /// Its name.
    pub pool: String,
    /// The cluster.
    pub cluster: Arc<Cluster>,
    /// The image. The thread ends with it.
    pub image: Weak<Image>,
    /// The device's section.
    pub device: DeviceConfig,
    /// Beginning and bytes of the pool's region in the image.
    pub home: (u64, u64),
    /// The pool's devices that are places for handles.
    pub places: Range<usize>,
}

/// The reason why not all reads can be steered as wanted.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Fault {
    /// It may pass: handles that are steered to go on being used.
    Passes(String),
    /// No read may be steered.
    Lasts(String),
}

/// Returns the reason to report, if reads aren't steered from now on. Handles have their ports only if there is none.
fn unsteered(is_steered: bool, fault: Option<&Fault>) -> Option<String> {
    match fault {
        Some(Fault::Passes(_)) if is_steered => None,
        Some(Fault::Passes(why) | Fault::Lasts(why)) => Some(why.clone()),
        None => None,
    }
}

/// The reason why no handle can steer, by a map with the ports of the handles that are open: buckets have other names now, and a place that was
/// given away has its handle until the pool ends. Handles for buckets that others have overtaken since, by the replicas there, are good.
fn unreached(map: &OsdMap) -> Option<Fault> {
    let reached: BTreeSet<u8> = map.osds.iter().filter_map(|osd| osd.port).collect();
    (reached.len() < 2).then(|| {
        Fault::Lasts(
            "the handles that are open are for CRUSH buckets that no longer have the image's objects: restart the node"
                .into(),
        )
    })
}

/// State that a pool's layer has received.
#[derive(Default)]
struct Sent {
    map: Option<OsdMap>,
    unsteered: Option<Option<String>>,
    /// A fault that may pass is there: the next attempt is made though reads are steered.
    is_again: bool,
    /// Buckets that are read from by a handle of their own, in the order of the places.
    buckets: Vec<Bucket>,
}

impl Steering {
    /// Tells the pool's layer the map, and again when it changes, from a thread that ends with the image.
    ///
    /// # Errors
    /// If there is no thread for it.
    pub fn follow(self, handle: PoolHandle) -> io::Result<()> {
        let follow = move || {
            let mut sent = Sent::default();
            let (mut known, mut pace, mut number) = (None, Pace::default(), 0);
            while self.image.strong_count() > 0 {
                let now = epoch(&self.cluster);
                let is_unsteered = sent.unsteered != Some(None) || sent.is_again;
                let is_due = pace.look(now.is_some() && now != known);
                if is_due || is_unsteered && number % LOOKS_BETWEEN_ATTEMPTS == 0 {
                    let Ok(epoch) = self.look(&mut sent, &handle) else { return };
                    known = epoch.or(known);
                }
                number += 1;
                std::thread::sleep(LOOK_EVERY);
            }
        };
        std::thread::Builder::new().name("rbd-maps".into()).spawn(follow).map(drop)
    }

    /// Reads the map, opens the handles that are missing, and tells the layer. Returns the map's epoch if it could be read.
    fn look(&self, sent: &mut Sent, handle: &PoolHandle) -> Result<Option<u64>, PoolGone> {
        let read = self.read(&sent.buckets);
        let (map, layout, answers, is_steerable) = match read {
            Ok(read) => read,
            Err(why) => {
                // The map that is known goes on being used, and so do its handles.
                if sent.map.is_none() {
                    self.tell_unsteered(Some(why.to_string()), sent, handle)?;
                } else {
                    tracing::warn!(
                        pool = self.pool,
                        error = %why,
                        "the cluster's map can't be read: forecasts go by the one before"
                    );
                }
                return Ok(None);
            }
        };
        let level = sent.buckets.first().map(|b| b.level.clone());
        let fault = match is_steerable {
            Ok(()) => self.open_missing(&answers.to_read_from(&map, HANDLES_MAX, level.as_deref()), sent, handle)?,
            Err(fault) => Some(fault),
        };
        // Handles that were opened just now have their ports.
        let with_ports = answers.map(&layout, &sent.buckets).unwrap_or_else(|_| map.clone());
        let fault = fault.or_else(|| unreached(&with_ports));
        let unsteered = unsteered(sent.unsteered == Some(None), fault.as_ref());
        sent.is_again = fault.is_some() && unsteered.is_none();
        if let (Some(Fault::Passes(why)), true) = (&fault, sent.is_again) {
            tracing::warn!(
                pool = self.pool,
                why,
                "reads are steered by the handles that are open; tried again every ten seconds"
            );
        }
        // None has a port while reads aren't said to be steered.
        let map = if unsteered.is_none() { with_ports } else { answers.map(&layout, &[]).unwrap_or(map) };
        let epoch = map.epoch;
        // Most looks after a change find nothing new: the pool's thread isn't bothered with those.
        if let Some(news) = news(&mut sent.map, map) {
            tell(&news, handle)?;
        }
        self.tell_unsteered(unsteered, sent, handle)?;
        Ok(Some(epoch))
    }

    /// Reads the image's facts and the cluster's map.
    ///
    /// # Errors
    /// The step that failed.
    fn read(&self, buckets: &[Bucket]) -> Result<(OsdMap, Layout, Answers, Result<(), Fault>), NoMap> {
        // The lock is free once nobody has the image: not longer than its facts take.
        let image = self.image.upgrade().ok_or(NoMap::Ends)?;
        let layout = Layout::of(&image, self.home.0)?.ok_or(NoMap::Striped)?;
        let is_whole = is_whole(&image);
        drop(image);
        let answers = Answers::ask(&self.cluster, layout.pool)?;
        let is_steerable = match answers.is_replicated(layout.pool) {
            true => is_whole,
            false => Err(Fault::Lasts("the image's data are in an erasure-coded pool".into())),
        };
        Ok((answers.map(&layout, buckets)?, layout, answers, is_steerable))
    }

    /// Opens handles for buckets that have none, as long as there are places. Returns the reason why reads aren't steered, if they aren't.
    fn open_missing(&self, wanted: &[Bucket], sent: &mut Sent, handle: &PoolHandle) -> Result<Option<Fault>, PoolGone> {
        if wanted.len() < 2 {
            return Ok(Some(Fault::Lasts("all copies are on one CRUSH host".into())));
        }
        for bucket in wanted {
            let number = self.places.start + sent.buckets.len();
            if sent.buckets.contains(bucket) || !self.places.contains(&number) {
                continue;
            }
            match handle_at(&self.device, bucket) {
                Ok(queue) => {
                    let (start, len) = self.home;
                    handle.send(Command::PutDevice { number, device: Device::Rbd(RbdDevice { queue, start, len }) })?;
                    sent.buckets.push(bucket.clone());
                }
                Err(why) => {
                    return Ok(Some(Fault::Passes(format!("the handle for {bucket} can't be opened: {why}"))));
                }
            }
        }
        Ok(None)
    }

    fn tell_unsteered(&self, why: Option<String>, sent: &mut Sent, handle: &PoolHandle) -> Result<(), PoolGone> {
        if sent.unsteered.as_ref() == Some(&why) {
            return Ok(());
        }
        let pool = &self.pool;
        match &why {
            Some(why) => {
                tracing::warn!(pool, why, "reads aren't steered past slow OSDs; tried again every ten seconds");
            }
            None => tracing::info!(pool, "reads are steered past slow OSDs"),
        }
        sent.unsteered = Some(why.clone());
        tell(&OsdsControl::Unsteered(why), handle)
    }
}

fn tell(message: &OsdsControl, handle: &PoolHandle) -> Result<(), PoolGone> {
    let (reply, _) = tokio::sync::oneshot::channel();
    handle.send(Command::Tell { to: Addressed::new(message), reply })
}

/// Returns whether an image has all its bytes itself. A handle that is opened read-only doesn't hear of a flattened clone, and would read the
/// parent's old bytes.
fn is_whole(image: &Image) -> Result<(), Fault> {
    match image.has_parent().map_err(|e| Fault::Passes(e.to_string()))? {
        true => Err(Fault::Lasts(format!("the image is a clone: `rbd flatten {}`", image.name()))),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_sched::osds::OsdPlace;

    /// Looks at which the map is read, if its epoch has changed at these.
    fn read_at(changed: impl Fn(u32) -> bool, looks: u32) -> Vec<u32> {
        let mut pace = Pace::default();
        (0..looks).filter(|look| pace.look(changed(*look))).collect()
    }

    #[test]
    fn a_map_that_goes_on_changing_is_read_ever_more_seldom() {
        assert!(read_at(|_| false, 100).is_empty());
        assert_eq!(read_at(|look| look == 3, 100), [3, 4, 6, 10]);
        assert_eq!(read_at(|look| look == 3 || look == 50, 100), [3, 4, 6, 10, 50, 51, 53, 57]);
        // Every two seconds for ten minutes: not 300 times. The last change is read, too.
        let often = read_at(|look| look < 300, 400);
        assert!(often.len() < 45 && often.iter().any(|look| *look >= 300), "{often:?}");
    }

    #[test]
    fn handles_for_buckets_that_are_gone_steer_nothing() {
        // With the ports of the OSDs that the map names. More buckets may have replicas than there are handles.
        let with = |ports: &[Option<u8>]| {
            let osd = |(number, port): (usize, &Option<u8>)| {
                let number = number as u32;
                OsdPlace { number, host: format!("h{number}"), port: *port }
            };
            OsdMap { osds: ports.iter().enumerate().map(osd).collect(), ..OsdMap::default() }
        };
        let many = [&[None; 10][..], &[Some(1), Some(3)]].concat();
        assert_eq!(unreached(&with(&many)), None);
        for gone in [&[None, Some(1), Some(1)][..], &[None, None], &[]] {
            assert!(matches!(unreached(&with(gone)), Some(Fault::Lasts(why)) if why.contains("restart the node")));
        }
    }

    #[test]
    fn a_fault_that_passes_does_not_end_steering() {
        let (passes, lasts) = (Fault::Passes("p".into()), Fault::Lasts("l".into()));
        assert_eq!(unsteered(true, Some(&passes)), None);
        assert_eq!(unsteered(false, Some(&passes)), Some("p".into()));
        assert_eq!(unsteered(true, Some(&lasts)), Some("l".into()));
        assert_eq!(unsteered(false, None), None);
    }
}
