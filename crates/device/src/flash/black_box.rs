//! A drive whose inside can't be seen.

use plimsoll_base::Time;

use super::{Flash, FlashOptions, FlashSpec, FtlStats};
use crate::disk::SpecError;
use crate::model::{Done, Model, Request};

/// A [`Flash`] as a commodity drive: blocks in, completions out, and the counters that such drives report. Its inner work is
/// hidden, so it reports no event of that work.
#[derive(Clone, Debug)]
pub struct BlackBox(Flash);

impl BlackBox {
    /// Builds the drive that `spec` describes. The error names the key at fault.
    pub fn new(spec: &FlashSpec, options: FlashOptions) -> Result<BlackBox, SpecError> {
        Flash::new(spec, options).map(BlackBox)
    }

    /// Host and internal writes, as a drive's SMART page gives them.
    pub fn stats(&self) -> FtlStats {
        self.0.stats()
    }
}

impl Model for BlackBox {
    fn size_bytes(&self) -> u64 {
        self.0.size_bytes()
    }
    fn block_bytes(&self) -> u32 {
        self.0.block_bytes()
    }
    fn submit(&mut self, now: Time, req: Request) {
        self.0.submit(now, req);
    }
    fn next_event(&self) -> Time {
        self.0.next_completion()
    }
    fn advance(&mut self, now: Time, done: &mut Vec<Done>) {
        self.0.advance(now, done);
    }
    fn outstanding(&self) -> usize {
        self.0.outstanding()
    }
    fn queue_max(&self) -> usize {
        self.0.queue_max()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flash::History;
    use crate::model::Op;
    use plimsoll_base::Rng;

    /// 20,000 requests in a closed loop of 24: every completion, and how often the model was advanced.
    fn run(drive: &mut impl Model, seed: u64) -> (Vec<Done>, u64) {
        let mut rng = Rng::new(seed, "hidden or seen");
        let pages = drive.size_bytes() / 4096;
        let (mut now, mut tag, mut all, mut done, mut advances) = (Time::ZERO, 0, Vec::new(), Vec::new(), 0);
        while all.len() < 20_000 {
            while drive.outstanding() < 24 {
                let op = match rng.below(100) {
                    0 => Op::Flush,
                    1..4 => Op::Trim,
                    4..8 => Op::Write { fua: true },
                    8..60 => Op::Write { fua: false },
                    _ => Op::Read,
                };
                let (offset, len) =
                    if op == Op::Flush { (0, 0) } else { (rng.below(pages - 4) * 4096, 2048 << rng.below(3)) };
                tag += 1;
                drive.submit(now, Request { tag, op, offset, len });
            }
            now = drive.next_event();
            drive.advance(now, &mut done);
            advances += 1;
            assert!(done.iter().all(|d| d.at == now), "a completion was due before it was asked for");
            all.append(&mut done);
        }
        (all, advances)
    }

    #[test]
    fn hidden_work_is_passed_over_and_changes_nothing() {
        for (profile, unprotected) in [("nvme-modern", true), ("vf-sata-60g", false), ("mittos-openchannel", false)] {
            let mut spec = FlashSpec::by_name(profile).expect("embedded");
            if unprotected {
                spec.buffer.pages = 64;
            }
            let history = History::Aged { overwrites_permille: 1500 };
            let options = FlashOptions { seed: 3, history, bytes_max: Some(1 << 30), ..FlashOptions::default() };
            let (seen, events) = run(&mut Flash::new(&spec, options).expect("valid"), 3);
            let (hidden, advances) = run(&mut BlackBox::new(&spec, options).expect("valid"), 3);
            assert_eq!(seen, hidden, "{profile}");
            println!("{profile}: {events} events, {advances} asked for");
            assert!(advances <= events);
        }
    }
}
