//! Forecasts against what then happened: the accounting that the accuracy experiments share (MittOS §7.6, MT-M28).
//!
//! Every request runs; what would have been refused, at once or later, is only expected late. A read is judged by whether it
//! was expected late and whether it was.

use crate::experiment::LabError;
use plimsoll_base::{Completion, LatencyHistogram, Op, Span, Time};
use plimsoll_replay::{Limits, Pool, open_loop_watched};
use plimsoll_sched::Cfq;
use plimsoll_trace::record::{Tables, TraceRecord};
use plimsoll_trace::stream::Held;
use std::collections::BTreeMap;

/// A read that ended, as the accounting needs it.
#[derive(Clone, Copy)]
pub(crate) struct Read {
    pub arrived_at: Time,
    pub expected_at: Time,
    pub done_at: Time,
    /// Time of the first flag after it had been accepted, if there was one.
    pub flagged_at: Option<Time>,
}

impl Read {
    /// Returns the forecast and the actual time, in ms.
    pub(crate) fn times_ms(&self) -> (f64, f64) {
        let ms = |t: Time| t.since(self.arrived_at).as_millis_f64();
        (ms(self.expected_at), ms(self.done_at))
    }
}

/// Replays `records` and keeps its reads in the order of their arrivals.
pub(crate) fn replay_reads(pool: &mut Pool, records: &[TraceRecord], limits: &Limits) -> Result<Vec<Read>, LabError> {
    let mut reads = Vec::new();
    let mut watch = |now: Time, c: &Completion| {
        if c.io.op == Op::Read {
            let (arrived_at, expected_at) = (c.io.arrived_at, c.io.expected_at);
            reads.push((c.io.id, Read { arrived_at, expected_at, done_at: now, flagged_at: None }));
        }
    };
    let mut source = Held::new(records.to_vec(), Tables::new());
    open_loop_watched(pool, &mut source, limits, &mut |_, _| {}, &mut watch)?;
    let flagged = pool.stack.layer::<Cfq>().map_or(&[][..], Cfq::flagged);
    let mut flagged_at = BTreeMap::new();
    // The first time counts.
    flagged.iter().for_each(|(id, at)| {
        flagged_at.entry(*id).or_insert(*at);
    });
    let mut reads: Vec<Read> =
        reads.into_iter().map(|(id, r)| Read { flagged_at: flagged_at.get(&id).copied(), ..r }).collect();
    reads.sort_by_key(|r| r.arrived_at);
    Ok(reads)
}

/// The p95 of the reads that arrived before `until`.
pub(crate) fn p95(reads: &[Read], until: Time) -> Span {
    let mut h = LatencyHistogram::new();
    reads.iter().filter(|r| r.arrived_at < until).for_each(|r| h.record(r.done_at.since(r.arrived_at)));
    h.percentile(95.0)
}

/// Late reads by the time of their flag, in percent of the late ones.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub(crate) struct Leads {
    /// At admission: the whole deadline ahead.
    pub at_admission: f64,
    /// Later, with the lead left.
    pub ahead: f64,
    /// With less of it left, or after the deadline.
    pub too_late: f64,
    /// Never.
    pub never: f64,
}

impl Leads {
    /// Of late reads by `deadline`, where a flag is of use `lead` before it; `None` if none was late.
    pub(crate) fn of(reads: &[Read], deadline: Span, lead: Span) -> Option<Leads> {
        let (mut l, mut late) = (Leads::default(), 0.0);
        for r in reads.iter().filter(|r| r.done_at > r.arrived_at + deadline) {
            let due = r.arrived_at + deadline;
            late += 1.0;
            *match r.flagged_at {
                _ if r.expected_at <= due => &mut l.never,
                None => &mut l.at_admission,
                Some(at) if at + lead <= due => &mut l.ahead,
                Some(_) => &mut l.too_late,
            } += 1.0;
        }
        let percent = |n: f64| 100.0 * n / late;
        (late > 0.0).then(|| Leads {
            at_admission: percent(l.at_admission),
            ahead: percent(l.ahead),
            too_late: percent(l.too_late),
            never: percent(l.never),
        })
    }
}

/// Reads, of which those that were flagged with less than `lead` left count as never flagged: nobody could have gone elsewhere in time.
pub(crate) fn with_lead(reads: &[Read], deadline: Span, lead: Span) -> Vec<Read> {
    let in_time = |r: &Read| r.flagged_at.is_none_or(|at| at + lead <= r.arrived_at + deadline);
    let taken = |r: &Read| if in_time(r) { *r } else { Read { expected_at: r.arrived_at, ..*r } };
    reads.iter().map(taken).collect()
}

/// Reads that came from `from` on.
pub(crate) fn from(reads: &[Read], from: Time) -> &[Read] {
    &reads[reads.partition_point(|r| r.arrived_at < from)..]
}

/// Beside rows of [`Verdict::inaccuracy`].
pub(crate) const NOTHING: &str = "no value where no read was late and none was flagged";

/// Verdicts over the judged reads.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Verdict {
    pub reads: u64,
    pub late: u64,
    pub false_positives: u64,
    pub false_negatives: u64,
    /// Sum over the wrong ones of how far the prediction was off, in ns.
    wrong_by_ns: u64,
}

impl Verdict {
    pub(crate) fn of(reads: &[Read], deadline: Span) -> Verdict {
        let mut v = Verdict::default();
        for r in reads {
            let due = r.arrived_at + deadline;
            let (flagged, late) = (r.expected_at > due, r.done_at > due);
            v.reads += 1;
            v.late += u64::from(late);
            v.false_positives += u64::from(flagged && !late);
            v.false_negatives += u64::from(!flagged && late);
            if flagged != late {
                v.wrong_by_ns += r.expected_at.since(r.done_at).max(r.done_at.since(r.expected_at)).as_nanos();
            }
        }
        v
    }

    pub(crate) fn percent(&self, n: u64) -> f64 {
        100.0 * n as f64 / self.reads.max(1) as f64
    }

    pub(crate) fn wrong(&self) -> u64 {
        self.false_positives + self.false_negatives
    }

    /// Wrong forecasts in percent of the reads; `None` if no read was late and none was flagged, as then there was nothing to tell apart.
    pub(crate) fn inaccuracy(&self) -> Option<f64> {
        (self.late + self.false_positives > 0).then(|| self.percent(self.wrong()))
    }

    pub(crate) fn late_percent(&self) -> f64 {
        self.percent(self.late)
    }

    /// Returns the mean error of the wrong ones, in ms; `None` if none was wrong.
    pub(crate) fn wrong_by_ms(&self) -> Option<f64> {
        (self.wrong() > 0).then(|| self.wrong_by_ns as f64 / 1e6 / self.wrong() as f64)
    }

    /// Late reads that weren't flagged, in percent of the late.
    pub(crate) fn missed_percent(&self) -> Option<f64> {
        (self.late > 0).then(|| 100.0 * self.false_negatives as f64 / self.late as f64)
    }

    /// Flagged reads that weren't late, in percent of those in time.
    pub(crate) fn needless_percent(&self) -> Option<f64> {
        let others = self.reads - self.late;
        (others > 0).then(|| 100.0 * self.false_positives as f64 / others as f64)
    }
}

/// Percent of the reads in time that a black box may flag.
pub(crate) const NEEDLESS: f64 = 1.0;

/// Returns the result of a limit on the forecast that is chosen afterwards: the percent of the late reads that are missed, if
/// no more than `needless_percent` of the others are flagged. No rule on the same forecast separates them better.
pub(crate) fn missed_in_hindsight(reads: &[Read], deadline: Span, needless_percent: f64) -> Option<f64> {
    let late = |r: &Read| r.done_at > r.arrived_at + deadline;
    let all_late = reads.iter().filter(|r| late(r)).count();
    let allowed = ((reads.len() - all_late) as f64 * needless_percent / 100.0) as usize;
    let mut sorted: Vec<&Read> = reads.iter().collect();
    sorted.sort_by_key(|r| std::cmp::Reverse(r.expected_at.since(r.arrived_at)));
    let (mut needless, mut found, mut best) = (0, 0, 0);
    // A limit separates only reads that were forecast differently.
    for same in sorted.chunk_by(|a, b| a.expected_at.since(a.arrived_at) == b.expected_at.since(b.arrived_at)) {
        found += same.iter().filter(|r| late(r)).count();
        needless += same.iter().filter(|r| !late(r)).count();
        if needless > allowed {
            break;
        }
        best = found;
    }
    (all_late > 0).then(|| 100.0 * (all_late - best) as f64 / all_late as f64)
}

/// Number of groups that a calibration is reported over.
const GROUPS: usize = 10;

/// The calibration error of predicted times, in percent: reads in tenths by what was predicted for them; over the tenths, the
/// mean of how far the mean of what they took lies from the mean prediction, each by its reads.
pub(crate) fn calibration_percent(reads: &[Read]) -> Option<f64> {
    let mut times: Vec<(f64, f64)> = reads.iter().map(Read::times_ms).collect();
    times.sort_by(|a, b| a.0.total_cmp(&b.0));
    let all: f64 = times.iter().map(|t| t.1).sum();
    if all <= 0.0 {
        return None;
    }
    let off = times.chunks(times.len().div_ceil(GROUPS)).map(|group| {
        let (predicted, took) = group.iter().fold((0.0, 0.0), |a, t| (a.0 + t.0, a.1 + t.1));
        (predicted - took).abs()
    });
    Some(100.0 * off.sum::<f64>() / all)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(expected_ms: u64, took_ms: u64) -> Read {
        let at = |ms| Time::ZERO + Span::from_millis(ms);
        Read { arrived_at: Time::ZERO, expected_at: at(expected_ms), done_at: at(took_ms), flagged_at: None }
    }

    #[test]
    fn the_four_cases_are_told_apart() {
        let reads = [read(5, 5), read(5, 15), read(15, 5), read(15, 15), read(25, 12)];
        let v = Verdict::of(&reads, Span::from_millis(10));
        assert_eq!((v.reads, v.late, v.false_positives, v.false_negatives), (5, 3, 1, 1));
        assert_eq!((v.inaccuracy(), v.late_percent(), v.wrong_by_ms()), (Some(40.0), 60.0, Some(10.0)));
        assert_eq!((v.missed_percent(), v.needless_percent()), (Some(100.0 / 3.0), Some(50.0)));
        // Reads in time that nobody flagged show nothing; one that was flagged is wrong about something.
        let in_time = [read(5, 5), read(5, 6), read(15, 7)];
        let [unflagged, flagged] = [&in_time[..2], &in_time[..]].map(|r| Verdict::of(r, Span::from_millis(10)));
        assert_eq!((unflagged.inaccuracy(), flagged.inaccuracy()), (None, Some(100.0 / 3.0)));
        let none = Verdict::of(&[], Span::ZERO);
        assert_eq!((none.wrong_by_ms(), none.missed_percent(), none.needless_percent()), (None, None, None));
    }

    #[test]
    fn a_flag_counts_by_when_it_was_set() {
        let at = |ms| Some(Time::ZERO + Span::from_millis(ms));
        let flagged = |r: Read, ms| Read { flagged_at: at(ms), ..r };
        // Late by a deadline of 10 ms: known at admission, 6 ms ahead, 1 ms ahead, 5 ms after, never; and one in time.
        let late = read(11, 15);
        let reads = [late, flagged(late, 4), flagged(late, 9), flagged(late, 15), read(5, 15), read(5, 5)];
        let (deadline, lead) = (Span::from_millis(10), Span::from_millis(2));
        let l = Leads::of(&reads, deadline, lead).unwrap();
        assert_eq!((l.at_admission, l.ahead, l.too_late, l.never), (20.0, 20.0, 40.0, 20.0));
        let v = Verdict::of(&with_lead(&reads, deadline, lead), deadline);
        assert_eq!((v.false_negatives, v.false_positives), (3, 0));
        assert_eq!(Leads::of(&reads[5..], deadline, lead), None);
    }

    /// The obvious way: every limit there is.
    #[test]
    fn hindsight_finds_the_best_limit() {
        let mut rng = plimsoll_base::Rng::new(1, "hindsight");
        for _ in 0..200 {
            let reads: Vec<Read> = (0..60).map(|_| read(rng.below(20), rng.below(20))).collect();
            let late = |r: &&Read| r.done_at > r.arrived_at + Span::from_millis(15);
            let all = reads.iter().filter(late).count();
            let with = |limit| {
                let flagged = || reads.iter().filter(|r| r.expected_at >= Time::ZERO + Span::from_millis(limit));
                let needless = flagged().filter(|r| !late(r)).count();
                (needless * 10 <= reads.len() - all).then(|| all - flagged().filter(late).count())
            };
            let obvious = (0..=20).filter_map(with).min().map(|missed| 100.0 * missed as f64 / all as f64);
            assert_eq!(missed_in_hindsight(&reads, Span::from_millis(15), 10.0), obvious.filter(|_| all > 0));
        }
    }

    #[test]
    fn calibration_sees_bias_and_not_noise() {
        // Each prediction is off by half, either way as often: well calibrated.
        let fair: Vec<Read> = (0..1000).map(|i| read(100, if i % 2 == 0 { 50 } else { 150 })).collect();
        assert!(calibration_percent(&fair).unwrap() < 1.0);
        let short: Vec<Read> = (0..1000).map(|i| read(50 + i / 10, 2 * (50 + i / 10))).collect();
        assert!((calibration_percent(&short).unwrap() - 50.0).abs() < 1.0);
        // Too long where it's short and too short where it's long cancels in the mean, not here.
        let flat: Vec<Read> = (0..1000).map(|i| read(100 + i / 500, if i < 500 { 50 } else { 150 })).collect();
        assert!(calibration_percent(&flat).unwrap() > 45.0);
    }
}
