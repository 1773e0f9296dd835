//! Volumes that are being deleted: their requests end, the layers forget them, their space is zeroed, the zeroes are flushed.

use super::command::Reply;
use plimsoll_base::{IoError, VolumeKey};
use plimsoll_stack::Extent;
use std::collections::BTreeMap;

struct Deleting {
    key: VolumeKey,
    extents: Vec<Extent>,
    reply: Reply<Result<(), IoError>>,
    /// The layers were notified.
    forgotten: bool,
}

/// The next step of some deletion.
#[derive(PartialEq, Eq, Debug)]
pub enum Step {
    /// The layers forget the volume.
    Forget(VolumeKey),
    /// The volume's space is zeroed, as this job.
    Zero {
        /// The volume.
        key: VolumeKey,
        /// The job's number.
        job: u64,
        /// The space.
        extents: Vec<Extent>,
    },
}

/// See the module's documentation.
#[derive(Default)]
pub struct Deletions {
    waiting: Vec<Deleting>,
    zeroing: BTreeMap<u64, Reply<Result<(), IoError>>>,
    jobs: u64,
}

impl Deletions {
    /// Begins to delete a volume that takes no more requests.
    pub fn begin(&mut self, key: VolumeKey, extents: Vec<Extent>, reply: Reply<Result<(), IoError>>) {
        self.waiting.push(Deleting { key, extents, reply, forgotten: false });
    }

    /// Returns the next step that can be taken now: a volume waits while it `has_requests` of clients, and while layers are `using` it.
    pub fn next(
        &mut self,
        has_requests: impl Fn(VolumeKey) -> bool,
        is_used: impl Fn(VolumeKey) -> bool,
    ) -> Option<Step> {
        for i in 0..self.waiting.len() {
            let d = &mut self.waiting[i];
            if has_requests(d.key) {
                continue;
            }
            if !std::mem::replace(&mut d.forgotten, true) {
                return Some(Step::Forget(d.key));
            }
            if !is_used(d.key) {
                let Deleting { key, extents, reply, .. } = self.waiting.swap_remove(i);
                self.jobs += 1;
                self.zeroing.insert(self.jobs, reply);
                return Some(Step::Zero { key, job: self.jobs, extents });
            }
        }
        None
    }

    /// True if some volume's space is being zeroed.
    #[inline]
    pub fn is_zeroing(&self) -> bool {
        !self.zeroing.is_empty()
    }

    /// A job has ended: its volume is deleted, or must be deleted again.
    pub fn zeroed(&mut self, job: u64, result: Result<(), IoError>) {
        let reply = self.zeroing.remove(&job).expect("each job is reported once");
        let _ = reply.send(result); // whoever asked may have gone
    }

    /// The pool ends: what isn't being zeroed yet stays in deletion, and the next start goes on.
    pub fn stop(&mut self) {
        for d in self.waiting.drain(..) {
            let _ = d.reply.send(Err(IoError::Unavailable)); // whoever asked may have gone
        }
    }

    /// True if nothing is being deleted.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.zeroing.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::oneshot::channel;

    fn key(id: u32) -> VolumeKey {
        VolumeKey { id, generation: 1 }
    }

    #[test]
    fn a_volume_is_zeroed_after_its_last_request_and_its_layers() {
        let mut all = Deletions::default();
        let (reply, mut answer) = channel();
        all.begin(key(1), vec![Extent { device_offset: 0, len: 4096 }], reply);
        assert_eq!(all.next(|_| true, |_| false), None, "clients' requests end first");
        assert_eq!(all.next(|_| false, |_| true), Some(Step::Forget(key(1))));
        assert_eq!(all.next(|_| false, |_| true), None, "then the layers' own");
        assert!(!all.is_zeroing());
        let extents = vec![Extent { device_offset: 0, len: 4096 }];
        assert_eq!(all.next(|_| false, |_| false), Some(Step::Zero { key: key(1), job: 1, extents }));
        assert!(all.is_zeroing() && answer.try_recv().is_err());
        all.zeroed(1, Ok(()));
        assert!(all.is_empty());
        assert_eq!(answer.try_recv(), Ok(Ok(())));
    }

    #[test]
    fn a_volume_that_waits_keeps_no_other_waiting() {
        let mut all = Deletions::default();
        let answers: Vec<_> = (1..=3)
            .map(|id| {
                let (reply, answer) = channel();
                all.begin(key(id), Vec::new(), reply);
                answer
            })
            .collect();
        let busy = |k: VolumeKey| k == key(1);
        let mut zeroed = Vec::new();
        while let Some(step) = all.next(busy, |_| false) {
            if let Step::Zero { key, job, .. } = step {
                zeroed.push((key.id, job));
            }
        }
        zeroed.sort_unstable();
        assert_eq!(zeroed.iter().map(|z| z.0).collect::<Vec<_>>(), [2, 3]);
        all.stop();
        assert!(all.is_zeroing() && !all.is_empty(), "what is being zeroed goes on");
        zeroed.iter().for_each(|(_, job)| all.zeroed(*job, Err(IoError::Device)));
        let got: Vec<_> = answers.into_iter().map(|mut a| a.try_recv().expect("each is answered")).collect();
        assert_eq!(got, [Err(IoError::Unavailable), Err(IoError::Device), Err(IoError::Device)]);
    }
}
