//! Data that a device moves for a request, as far as it shows from outside.
//!
//! Commands that only name a range move none. Zeroes are different: some devices write them, others only record the range. So their time is
//! learned, as that of other commands is, and compared with the time of data of that length. Zeroes that take less than
//! [`RECORDED_PART`] of it are recorded only. Others count as the data that take as long. Until some were seen they count as all of their range.

use crate::disk::Command;
use plimsoll_base::{IoHead, Op, Time};

/// Work is counted in pieces of this.
pub(crate) const PIECE_BYTES: u64 = 16 << 10;
/// The time of a piece is that of requests of at least this number: a seek is none of its time.
const TRANSFER_PIECES: u64 = 4;
/// It falls by 1/2 to the power of the first, and rises by 1/2 to the power of the second, of a difference: the fastest transfers count.
const FALL_SHIFT: u32 = 2;
const RISE_SHIFT: u32 = 6;
/// Time of a piece in ns before any was seen: a gigabyte a second.
const PIECE_NS_GUESS: u64 = 16_000;
/// See the module's documentation.
const RECORDED_PART: u64 = 16;

/// Data that a request moves, as it was known when the request was sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Load {
    /// Bytes, or those that take as long.
    pub bytes: u64,
    /// The same in pieces; at least one.
    pub pieces: u64,
    /// Pieces outstanding when it was sent.
    in_front: u64,
    /// Zeroes of which nothing was known.
    is_unknown: bool,
}

/// Data of requests under way, and what was learned of them.
#[derive(Default)]
pub(crate) struct Loads {
    zeroes: Command,
    /// Time of a piece of a large transfer while the device had several, in ns; 0 before the first.
    piece_ns: u64,
    last_done: Time,
    /// Transfers whose answers came together last.
    together: Together,
    pieces: u64,
    /// Of those, pieces of zeroes of which nothing was known.
    unknown_pieces: u64,
}

/// Transfers whose answers came at one time: they share the time since the answers before, and none of them has one of its own.
#[derive(Clone, Copy, Default)]
struct Together {
    /// Time of the answers before, and the time since then that the device had one of these or more.
    after: Time,
    busy_ns: u64,
    pieces: u64,
    /// The time of a piece as it was known before them.
    before_ns: u64,
}

fn pieces_of(bytes: u64) -> u64 {
    bytes.div_ceil(PIECE_BYTES).max(1)
}

impl Loads {
    /// Pieces under way.
    pub(crate) fn pieces(&self) -> u64 {
        self.pieces
    }

    /// Time for which zeroes of which nothing is known may keep the device, in ns: as if all of them were written.
    pub(crate) fn unknown_ns(&self) -> u64 {
        self.unknown_pieces.saturating_mul(self.transfer_ns())
    }

    fn transfer_ns(&self) -> u64 {
        if self.piece_ns == 0 { PIECE_NS_GUESS } else { self.piece_ns }
    }

    /// The load of a request that would be sent now.
    pub(crate) fn of(&self, head: &IoHead) -> Load {
        let learned = (head.op == Op::WriteZeroes).then(|| self.zeroes.time_ns(head.len));
        let bytes = match (head.op, learned.flatten()) {
            (Op::Read | Op::Write, _) => head.len,
            (Op::WriteZeroes, None) => head.len,
            (Op::WriteZeroes, Some(ns)) => match (ns as u64 / self.transfer_ns()).saturating_mul(PIECE_BYTES) {
                few if few < head.len / RECORDED_PART => 0,
                bytes => bytes.min(head.len),
            },
            _ => 0,
        };
        let is_unknown = learned == Some(None);
        Load { bytes, pieces: pieces_of(bytes), in_front: self.pieces, is_unknown }
    }

    /// A request with this load is under way.
    pub(crate) fn sent(&mut self, load: &Load) {
        self.pieces += load.pieces;
        self.unknown_pieces += if load.is_unknown { load.pieces } else { 0 };
    }

    /// It was taken back before the device had it.
    pub(crate) fn withdrawn(&mut self, load: &Load) {
        self.pieces -= load.pieces;
        self.unknown_pieces -= if load.is_unknown { load.pieces } else { 0 };
    }

    /// The device has answered the request that was sent at `sent_at`.
    pub(crate) fn ended(&mut self, now: Time, sent_at: Time, head: &IoHead, load: &Load) {
        self.withdrawn(load);
        let busy_ns = now.since(self.last_done.max(sent_at)).as_nanos();
        if now > self.last_done {
            self.together = Together { after: self.last_done, busy_ns: 0, pieces: 0, before_ns: self.piece_ns };
        }
        let together = &mut self.together;
        together.busy_ns = together.busy_ns.max(now.since(together.after.max(sent_at)).as_nanos());
        self.last_done = now;
        match head.op {
            Op::WriteZeroes => {
                // A device that does several requests at once goes on with others meanwhile. So what was in front is taken from the time.
                let front_ns = load.in_front.saturating_mul(self.transfer_ns());
                let own_ns = now.since(sent_at).as_nanos().saturating_sub(front_ns).max(busy_ns);
                self.zeroes.learn(head.len, i64::try_from(own_ns).unwrap_or(i64::MAX));
            }
            Op::Read | Op::Write if load.pieces >= TRANSFER_PIECES && self.together.busy_ns > 0 => {
                self.together.pieces += load.pieces;
                let Together { busy_ns, pieces, before_ns, .. } = self.together;
                let each = (busy_ns / pieces).max(1);
                self.piece_ns = match before_ns {
                    0 => each,
                    ns if each < ns => ns - ((ns - each) >> FALL_SHIFT),
                    ns => ns + ((each.min(ns * 16) - ns) >> RISE_SHIFT),
                };
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_base::{Span, TenantId, VolumeKey};

    fn head(op: Op, len: u64) -> IoHead {
        IoHead::new(op, VolumeKey::POOL, TenantId(0), 0, len, Time::ZERO)
    }

    /// One request after the other: each takes what `takes` says.
    fn run(l: &mut Loads, now: &mut Time, n: u32, h: &IoHead, takes: Span) {
        for _ in 0..n {
            let load = l.of(h);
            l.sent(&load);
            let sent_at = *now;
            *now += takes;
            l.ended(*now, sent_at, h, &load);
        }
    }

    #[test]
    fn zeroes_count_as_the_data_that_take_as_long() {
        let (write, zeroes) = (head(Op::Write, 1 << 20), head(Op::WriteZeroes, 256 << 20));
        // A MiB in 2 ms. Zeroes as fast as data, four times as fast, and noted.
        for (took_ms, mib) in [(512, 256), (128, 64), (1, 0)] {
            let (mut l, mut now) = (Loads::default(), Time::ZERO);
            run(&mut l, &mut now, 50, &write, Span::from_millis(2));
            assert_eq!(l.of(&zeroes).bytes, 256 << 20, "until they are known they are data");
            run(&mut l, &mut now, 4, &zeroes, Span::from_millis(took_ms));
            let got = l.of(&zeroes).bytes >> 20;
            assert!(got.abs_diff(mib) <= mib / 50, "{got} MiB for {took_ms} ms");
            // Small ones are of another kind, and unknown.
            assert_eq!(l.of(&head(Op::WriteZeroes, 1 << 20)).pieces, 64);
            run(&mut l, &mut now, 1, &zeroes, Span::from_secs(3600));
            assert!(l.of(&zeroes).bytes >> 20 <= 4 * mib.max(8), "one stall isn't what they take");
            assert_eq!((l.pieces(), l.unknown_ns()), (0, 0));
        }
        assert_eq!(Loads::default().of(&head(Op::Trim, 1 << 40)), Loads::default().of(&head(Op::Flush, 0)));
    }

    /// Seeks are no part of what a transfer takes, and zeroes of which nothing is known keep the device as long as data would.
    #[test]
    fn unknown_zeroes_may_be_written() {
        let (mut l, mut now) = (Loads::default(), Time::ZERO);
        run(&mut l, &mut now, 50, &head(Op::Read, 4096), Span::from_millis(10));
        let load = l.of(&head(Op::WriteZeroes, 1 << 30));
        l.sent(&load);
        assert_eq!(l.unknown_ns(), PIECE_NS_GUESS << 16);
        l.withdrawn(&load);
        run(&mut l, &mut now, 50, &head(Op::Read, 1 << 20), Span::from_millis(10));
        l.sent(&load);
        let unknown = Span::from_nanos(l.unknown_ns());
        assert!((Span::from_secs(10)..Span::from_secs(11)).contains(&unknown), "{unknown} for a GiB");
    }

    /// A device that answers eight transfers at once every 16 ms moves each in 2 ms, whichever of them was sent last.
    #[test]
    fn answers_that_come_together_share_their_time() {
        let (mut l, mut now) = (Loads::default(), Time::ZERO);
        let (read, zeroes) = (head(Op::Read, 1 << 20), head(Op::WriteZeroes, 1 << 30));
        for batch in 0..50 {
            let sent: Vec<(Time, Load)> = (0..8)
                .map(|n| {
                    let load = l.of(&read);
                    l.sent(&load);
                    (now + Span::from_millis(n), load)
                })
                .collect();
            now += Span::from_millis(16);
            sent.iter().rev().for_each(|(sent_at, load)| l.ended(now, *sent_at, &read, load));
            let load = l.of(&zeroes);
            l.sent(&load);
            let unknown = Span::from_nanos(l.unknown_ns());
            l.withdrawn(&load);
            assert!(
                (Span::from_millis(2040)..Span::from_millis(2060)).contains(&unknown),
                "{unknown} for a GiB after {batch} batches"
            );
        }
    }

    /// Others that end while zeroes are written take none of their time away.
    #[test]
    fn zeroes_beside_others_have_their_time() {
        let (mut l, mut now) = (Loads::default(), Time::ZERO);
        let (read, zeroes) = (head(Op::Read, 65_536), head(Op::WriteZeroes, 64 << 20));
        run(&mut l, &mut now, 50, &read, Span::from_micros(200));
        for _ in 0..4 {
            let load = l.of(&zeroes);
            l.sent(&load);
            let sent_at = now;
            run(&mut l, &mut now, 1000, &read, Span::from_micros(200));
            l.ended(now, sent_at, &zeroes, &load);
        }
        assert!(l.of(&zeroes).bytes >= 60 << 20, "{} bytes for 200 ms", l.of(&zeroes).bytes);
    }
}
