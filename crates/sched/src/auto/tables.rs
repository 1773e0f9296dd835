//! Two sums over the same small tables: how long a read looks, and how likely it looks late. Each table is looked up by two or three
//! things that can be seen, and corrected a little by every read that ends. Integers only.

/// Tables, and rows of each.
pub(super) const TABLES: usize = 18;
pub(super) const ROWS: usize = 128;
/// A row of each table.
pub(super) type Rows = [u8; TABLES];

/// Sums of times are kept in 1/256 of a logarithm's steps.
const FINE_BITS: u32 = 8;
/// 1 in the fixed point of log-odds and of chances, as bits.
const ONE_BITS: u32 = 12;
/// Log-odds beyond this tell nothing more.
const ODDS_MAX: i32 = 8 << ONE_BITS;
/// A row takes over 1/2 to the power of this of an error: the first reads more than the later ones.
const TIME_SHIFT: u32 = 7;
const ODDS_SHIFT: u32 = 5;
/// Reads of a row after which it moves by its least.
const SETTLED: u8 = 64;

#[derive(Clone, Copy, Default)]
struct Row {
    /// A part of a logarithm of a time.
    time: i32,
    /// A part of the log-odds of being late.
    odds: i32,
    reads: u8,
}

/// The tables.
pub(super) struct Tables {
    rows: Box<[[Row; ROWS]; TABLES]>,
    time: i32,
    odds: i32,
    reads: u32,
}

/// The chance, in 1/4096, of these log-odds: a quarter of the table's steps apart, linear in between.
fn chance(odds: i32) -> i32 {
    /// 1 / (1 + e^-x) for x from 0 to 8 in steps of a half.
    const AT: [i32; 17] =
        [2048, 2549, 2994, 3349, 3608, 3786, 3902, 3976, 4022, 4051, 4069, 4079, 4086, 4090, 4092, 4094, 4095];
    let x = odds.unsigned_abs().min(ODDS_MAX as u32 - 1);
    let (at, along) = ((x >> (ONE_BITS - 1)) as usize, (x & ((1 << (ONE_BITS - 1)) - 1)) as i32);
    let up = AT[at] + (((AT[at + 1] - AT[at]) * along) >> (ONE_BITS - 1));
    if odds < 0 { (1 << ONE_BITS) - up } else { up }
}

impl Tables {
    /// Every read looks alike.
    pub(super) fn new() -> Tables {
        Tables { rows: Box::new([[Row::default(); ROWS]; TABLES]), time: 0, odds: -(2 << ONE_BITS), reads: 0 }
    }

    /// The logarithm of a read's time, and its log-odds of being late in 1/4096.
    pub(super) fn of(&self, rows: &Rows) -> (i32, i32) {
        let at = |(table, &r): (&[Row; ROWS], &u8)| table[usize::from(r)];
        let (time, odds) = self.rows.iter().zip(rows).map(at).fold((0, 0), |s, r| (s.0 + r.time, s.1 + r.odds));
        ((self.time + time) >> FINE_BITS, (self.odds + odds).clamp(-ODDS_MAX, ODDS_MAX - 1))
    }

    /// A read took so long, as a logarithm, and was late or not.
    pub(super) fn learn(&mut self, rows: &Rows, took_log: i32, late: bool) {
        let (time, odds) = self.of(rows);
        let off = (took_log - time) << FINE_BITS;
        let wrong = if late { 1 << ONE_BITS } else { 0 } - chance(odds);
        self.reads = self.reads.saturating_add(1);
        // The first reads weigh as in a plain mean.
        self.time += off >> (u32::BITS - self.reads.leading_zeros()).min(TIME_SHIFT);
        self.odds += wrong >> ODDS_SHIFT;
        for (table, &r) in self.rows.iter_mut().zip(rows) {
            let row = &mut table[usize::from(r)];
            row.reads = row.reads.saturating_add(1).min(SETTLED);
            let settles = u32::from(row.reads == SETTLED) + u32::from(row.reads >= SETTLED / 8);
            row.time += off >> (TIME_SHIFT - 2 + settles);
            row.odds += wrong >> (ODDS_SHIFT - 2 + settles);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_base::Rng;

    #[test]
    fn chances_are_those_of_the_logistic_function() {
        for odds in [-30_000, -9_000, -4_096, -100, 0, 1, 3_333, 8_192, 40_000] {
            let x = f64::from(odds) / f64::from(1 << ONE_BITS);
            let want = 4096.0 / (1.0 + (-x).exp());
            assert!((f64::from(chance(odds)) - want).abs() < 40.0, "{x}: {} for {want}", chance(odds));
        }
    }

    /// Two causes, each of which makes a read late more often, and longer: both sums tell them apart.
    #[test]
    fn causes_are_told_apart() {
        let (mut t, mut rng) = (Tables::new(), Rng::new(1, "tables"));
        let mut draw = |t: &mut Tables| {
            let mut rows = [0; TABLES];
            (rows[1], rows[7]) = (rng.below(2) as u8, rng.below(2) as u8);
            let chance = 0.01 + 0.3 * f64::from(rows[1]) + 0.6 * f64::from(rows[7]);
            let late = rng.chance(chance);
            t.learn(&rows, 1000 + 400 * i32::from(rows[1]) + 800 * i32::from(rows[7]), late);
        };
        (0..20_000).for_each(|_| draw(&mut t));
        let of = |a, b| {
            let mut rows = [0; TABLES];
            (rows[1], rows[7]) = (a, b);
            t.of(&rows)
        };
        let all = [of(0, 0), of(1, 0), of(0, 1), of(1, 1)];
        assert!(all.windows(2).all(|w| w[0].1 < w[1].1), "the more causes, the likelier: {all:?}");
        for (got, want) in all.iter().zip([1000, 1400, 1800, 2200]) {
            assert!((got.0 - want).abs() < 60, "{} for {want}", got.0);
        }
    }
}
