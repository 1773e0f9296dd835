//! Joint control with the storage below (AppleS §3.4 sketches it for balancers). While a volume's node forecasts long waits,
//! fewer transactions are let in: more would hold their locks and pages while they queue there.
//!
//! The law is multiplicative down and additive up, as for congestion. The forecast grows with the transactions in the database.
//! So its quotient to the wanted wait estimates the surplus.

use plimsoll_base::Span;

/// P is never pressed below this part of itself.
pub const LEAST_MILLI: u32 = 100;
/// A step down: at most to this part.
const DOWN_MOST_MILLI: u64 = 700;
/// A step up.
const UP_MILLI: u32 = 50;

/// By how much P is lowered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pressure {
    wanted: Span,
    milli: u32,
}

impl Pressure {
    /// `wanted`: forecast waits up to this are fine.
    pub fn new(wanted: Span) -> Pressure {
        Pressure { wanted: wanted.max(Span::from_nanos(1)), milli: 1000 }
    }

    /// Takes a forecast in, about every 100 ms. Returns the factor of P in thousandths, [`LEAST_MILLI`] to 1000.
    pub fn forecast(&mut self, wait: Span) -> u32 {
        if wait > self.wanted {
            let part = (u128::from(self.wanted.as_nanos()) * 1000 / u128::from(wait.as_nanos())) as u64;
            self.milli = (u64::from(self.milli) * part.max(DOWN_MOST_MILLI) / 1000) as u32;
        } else if wait.scale(2, 1) < self.wanted {
            self.milli += UP_MILLI;
        }
        self.milli = self.milli.clamp(LEAST_MILLI, 1000);
        self.milli
    }

    /// Nothing is known of the storage any more: P stands alone.
    pub fn silent(&mut self) -> u32 {
        self.milli = 1000;
        self.milli
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Storage whose queue is what is let in beyond what it serves at once.
    #[test]
    fn it_settles_where_the_wait_is_what_was_wanted() {
        let mut p = Pressure::new(Span::from_millis(10));
        let mut served = 40;
        let mut waits = Vec::new();
        for i in 0..600 {
            if i == 300 {
                served = 8;
            }
            let inside = 64 * p.milli / 1000;
            let wait = Span::from_millis(u64::from(inside.saturating_sub(served)) * 2);
            p.forecast(wait);
            waits.push(wait.as_millis_f64());
        }
        let mean = |w: &[f64]| w.iter().sum::<f64>() / w.len() as f64;
        assert!(mean(&waits[100..300]) <= 11.0 && mean(&waits[400..]) <= 11.0, "{waits:?}");
        assert!(mean(&waits[400..]) >= 3.0, "and it isn't left idle: {waits:?}");
    }

    #[test]
    fn it_comes_back_when_the_storage_is_free_or_silent_and_has_a_floor() {
        let mut p = Pressure::new(Span::from_millis(5));
        for _ in 0..50 {
            p.forecast(Span::from_secs(9));
        }
        assert_eq!(p.milli, LEAST_MILLI);
        assert_eq!((0..18).map(|_| p.forecast(Span::ZERO)).last(), Some(1000));
        p.forecast(Span::from_secs(1));
        assert_eq!(p.silent(), 1000);
    }
}
