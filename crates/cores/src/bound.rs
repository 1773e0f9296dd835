//! How much best effort may write (ours, beyond QWin).
//!
//! QWin gives best effort every core that the objectives don't need at the moment. On a drive that is nearly full that isn't
//! all they need: what best effort writes the drive must make room for, later, and reads then wait behind its erases,
//! whatever cores they have. So the bytes that best effort may write in a second follow the share of requests that are late: each
//! objective allows a share (1 % at p99). When more than four fifths of that is used up, best effort's writes are cut by a quarter;
//! when none uses half of it, they may grow by a sixty-fourth, again and again. Only writes are held, and what waits
//! behind them in their tenant's queue.

use plimsoll_base::{Objective, Span, Time};

/// Late requests that an objective allows in the window over which its share is counted.
const LATE_IN_WINDOW: u64 = 16;
/// Of its allowance, in thousandths: more than this is too much, less than that leaves room.
const TOO_MUCH: u64 = 800;
const ROOM: u64 = 500;
/// No less than this is left to best effort, in bytes a second: it must end some time.
const RATE_MIN: u64 = 1 << 20;
/// Unused rate is saved up for so long.
const SAVED: Span = Span::from_millis(10);
const SECOND_NS: u128 = 1_000_000_000;

/// Late requests of one objective of one queue.
#[derive(Clone, Copy, Default)]
struct Late {
    all: u64,
    late: u64,
    /// Since when, in requests, it was last judged.
    unjudged: u64,
}

impl Late {
    fn window(o: &Objective) -> u64 {
        LATE_IN_WINDOW * 10_000 / u64::from(10_000 - o.percentile_bp.min(9_999))
    }

    /// Thousandths of what the objective allows in a window that were used up.
    fn used_permille(&self, o: &Objective) -> u64 {
        let allowed = self.all.max(Late::window(o)) * u64::from(10_000 - o.percentile_bp.min(9_999));
        self.late * 10_000 * 1000 / allowed
    }
}

/// What best effort may write.
pub struct WriteBound {
    /// Bytes a second; none while nothing is bounded.
    rate: Option<u64>,
    /// What may be written now; less than nothing after a large write.
    saved: i64,
    counted_at: Time,
    /// What was written, and since when.
    written: u64,
    since: Time,
    /// By queue and objective.
    late: Vec<Vec<Late>>,
    cuts: u64,
}

impl Default for WriteBound {
    fn default() -> WriteBound {
        WriteBound {
            rate: None,
            saved: 0,
            counted_at: Time::ZERO,
            written: 0,
            since: Time::ZERO,
            late: Vec::new(),
            cuts: 0,
        }
    }
}

fn bytes_in(rate: u64, time: Span) -> i64 {
    i64::try_from(u128::from(rate) * u128::from(time.as_nanos()) / SECOND_NS).unwrap_or(i64::MAX)
}

impl WriteBound {
    /// When best effort may write again; [`Time::ZERO`]: now.
    pub fn may_write_at(&self, now: Time) -> Time {
        let Some(rate) = self.rate else { return Time::ZERO };
        let saved = self.saved_at(now, rate);
        if saved > 0 {
            return Time::ZERO;
        }
        let missing = 1 + u128::from(saved.unsigned_abs());
        now + Span::from_nanos((missing * SECOND_NS).div_ceil(u128::from(rate)) as u64)
    }

    fn saved_at(&self, now: Time, rate: u64) -> i64 {
        let more = bytes_in(rate, now.since(self.counted_at));
        self.saved.saturating_add(more).min(bytes_in(rate, SAVED).max(1))
    }

    /// Best effort writes `len` bytes now.
    pub fn wrote(&mut self, now: Time, len: u64) {
        self.written += len;
        if let Some(rate) = self.rate {
            self.saved = self.saved_at(now, rate) - len as i64;
            self.counted_at = now;
        }
    }

    /// Bytes a second that best effort may write; `None` while it isn't bounded.
    pub fn rate(&self) -> Option<u64> {
        self.rate
    }

    /// How often it was cut.
    pub fn cuts(&self) -> u64 {
        self.cuts
    }

    /// A request of latency-critical queue `at` ended `response` after it came.
    pub fn ended(&mut self, now: Time, at: usize, objectives: &[Objective], response: Span) {
        if self.late.len() <= at {
            self.late.resize_with(at + 1, Vec::new);
        }
        self.late[at].resize(objectives.len(), Late::default());
        let (mut too_much, mut room) = (false, None);
        for (l, o) in self.late[at].iter_mut().zip(objectives) {
            l.all += 1;
            l.unjudged += 1;
            let window = Late::window(o);
            if l.all >= 2 * window {
                (l.all, l.late) = (l.all / 2, l.late / 2);
            }
            if response > o.bound {
                // It's cut as soon as that is known, and grows slowly.
                l.late += 1;
                too_much |= l.used_permille(o) > TOO_MUCH;
            }
            if l.all >= window / 4 && l.unjudged >= window / 8 {
                l.unjudged = 0;
                room = Some(room.unwrap_or(true) && l.used_permille(o) < ROOM);
            }
        }
        if too_much {
            self.cut(now);
        } else if room == Some(true) {
            self.grow(now);
        }
    }

    /// What was written since the last decision, in bytes a second.
    fn pace(&mut self, now: Time) -> u64 {
        let time = u128::from(now.since(self.since).as_nanos().max(1));
        let pace = (u128::from(self.written) * SECOND_NS / time) as u64;
        (self.written, self.since) = (0, now);
        pace
    }

    fn cut(&mut self, now: Time) {
        let pace = self.pace(now);
        let rate = self.rate.map_or(pace, |r| r.min(pace.max(r / 2)));
        self.rate = Some((rate / 4 * 3).max(RATE_MIN));
        self.cuts += 1;
        // What is late already says nothing of what the cut does.
        self.late.iter_mut().flatten().for_each(|l| *l = Late::default());
        (self.saved, self.counted_at) = (0, now);
    }

    fn grow(&mut self, now: Time) {
        let pace = self.pace(now);
        let Some(rate) = self.rate else { return };
        (self.saved, self.counted_at) = (self.saved_at(now, rate), now);
        // What isn't used needn't grow: it would say nothing of what the drive stands.
        if pace >= rate / 2 {
            self.rate = Some(rate.saturating_add(rate / 64));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const P99: [Objective; 1] = [Objective { percentile_bp: 9900, bound: Span::from_millis(5) }];

    /// A drive on which one request in fifty is late while best effort writes more than 50 MB/s: the bound settles there, and
    /// goes when nobody is late any more.
    #[test]
    fn writes_are_cut_to_what_the_objective_stands() {
        let mut b = WriteBound::default();
        let (mut now, mut written, mut late, mut n) = (Time::ZERO, 0u64, 0, 0u64);
        let mut history = Vec::new();
        for i in 0..400_000u64 {
            now += Span::from_micros(100);
            // 200 MB/s are asked for, in pieces of 20 kB.
            if b.may_write_at(now) == Time::ZERO {
                b.wrote(now, 20_000);
                written += 20_000;
            }
            n += 1;
            if i % 1_000 == 999 {
                history.push(written as f64 / 1e5);
                (written, n) = (0, 0);
            }
            let pace = history.last().copied().unwrap_or(200.0);
            let heals = i > 300_000;
            let is_late = !heals && pace > 50.0 && n % 50 == 0;
            late += u64::from(is_late && (100_000..300_000).contains(&i));
            b.ended(now, 0, &P99, if is_late { Span::from_millis(9) } else { Span::from_millis(1) });
        }
        assert!(late < 2_000, "{late} of 200,000 are late: 1 % is allowed");
        let settled = history[100..300].iter().sum::<f64>() / 200.0;
        assert!((25.0..75.0).contains(&settled), "{settled} MB/s: {history:?}");
        assert!(history[399] > 150.0, "{history:?}");
        assert!(b.cuts() > 2 && b.rate().is_none_or(|r| r > 150_000_000));
    }

    #[test]
    fn a_bound_is_a_rate_and_tells_when() {
        let mut b = WriteBound { rate: Some(1_000_000), ..WriteBound::default() };
        let at = |ms| Time::ZERO + Span::from_millis(ms);
        assert_eq!(b.may_write_at(at(50)), Time::ZERO);
        b.wrote(at(50), 110_000);
        // 10 ms were saved up: 10,000 bytes; 100,000 are owed.
        let again = b.may_write_at(at(50));
        assert!(again > at(149) && again < at(151), "{again:?}");
        assert_eq!(b.may_write_at(again), Time::ZERO);
    }
}
