//! A network hop: messages go through a link one after the other, then take their way.
//!
//! ```text
//!  send ─► link (first come, first served; bytes / bandwidth) ─► base delay + jitter ─► arrival
//! ```

use std::fmt;

use plimsoll_base::{Rng, Span, Time};
use serde::{Deserialize, Serialize};

/// Random addition to a hop's base delay, drawn for each message.
#[derive(Clone, Copy, Debug, PartialEq, Default, Deserialize, Serialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Jitter {
    /// Nothing.
    #[default]
    None,
    /// Evenly from 0 to `max_us`.
    Uniform {
        /// The most.
        max_us: f64,
    },
    /// Exponential.
    Exponential {
        /// Its mean.
        mean_us: f64,
    },
    /// Log-normal: most messages near the median, a few far out.
    LogNormal {
        /// The median.
        median_us: f64,
        /// Standard deviation of the logarithm.
        sigma: f64,
    },
}

/// A hop as it is written down.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct HopSpec {
    /// Delay of every message: MittOS's testbeds show 300 (MT-E8).
    pub base_us: f64,
    /// Random addition to the delay.
    #[serde(default)]
    pub jitter: Jitter,
    /// The link's rate, 10^6 bytes a second; 0 for no limit.
    #[serde(default)]
    pub mb_per_s: f64,
    /// Share of messages that never arrive.
    #[serde(default)]
    pub loss: f64,
    /// Messages may overtake each other, as datagrams do; otherwise jitter delays those behind too, as in a stream.
    #[serde(default)]
    pub reorders: bool,
}

/// Reason why a hop can't be built.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadHop(String);

impl fmt::Display for BadHop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
impl std::error::Error for BadHop {}

impl HopSpec {
    /// Refuses what no hop can be; the error names the key.
    pub fn check(&self) -> Result<(), BadHop> {
        let jitter: [(&str, f64, f64); 2] = match self.jitter {
            Jitter::None => [("jitter", 0.0, 0.0); 2],
            Jitter::Uniform { max_us } => [("jitter.max_us", max_us, 1e9); 2],
            Jitter::Exponential { mean_us } => [("jitter.mean_us", mean_us, 1e9); 2],
            Jitter::LogNormal { median_us, sigma } => {
                [("jitter.median_us", median_us, 1e9), ("jitter.sigma", sigma, 5.0)]
            }
        };
        let own = [("base_us", self.base_us, 1e9), ("mb_per_s", self.mb_per_s, 1e9), ("loss", self.loss, 1.0)];
        for (key, value, most) in own.into_iter().chain(jitter) {
            if !(0.0..=most).contains(&value) {
                return Err(BadHop(format!("{key} is {value}; it must lie between 0 and {most}")));
            }
        }
        Ok(())
    }
}

/// One direction of a network path.
#[derive(Clone, Debug)]
pub struct Hop {
    spec: HopSpec,
    rng: Rng,
    link_free: Time,
    last_arrival: Time,
    sent: u64,
    lost: u64,
}

impl Hop {
    /// The hop that `spec` describes; `seed` and `name` draw its jitter and losses.
    pub fn new(spec: HopSpec, seed: u64, name: &str) -> Result<Hop, BadHop> {
        spec.check()?;
        let rng = Rng::new(seed, name);
        Ok(Hop { spec, rng, link_free: Time::ZERO, last_arrival: Time::ZERO, sent: 0, lost: 0 })
    }

    /// Sends `bytes` at `now` (never earlier than the message before); gives the arrival, `None` if it's lost.
    pub fn send(&mut self, now: Time, bytes: u64) -> Option<Time> {
        let mut rng = self.rng.clone();
        let arrival = self.send_drawing(now, bytes, &mut rng);
        self.rng = rng;
        arrival
    }

    /// [`Hop::send`] with the message's own randomness: compared runs that send different messages on this hop still
    /// share the draws of those that both send.
    pub fn send_drawing(&mut self, now: Time, bytes: u64, rng: &mut Rng) -> Option<Time> {
        // Drawn for each message whatever becomes of it, so that runs which differ elsewhere share their draws.
        let (jitter, lost) = (self.draw(rng), rng.unit() < self.spec.loss);
        self.sent += 1;
        let start = now.max(self.link_free);
        if self.spec.mb_per_s > 0.0 {
            self.link_free = start + Span::from_secs_f64(bytes as f64 / (self.spec.mb_per_s * 1e6));
        } else {
            self.link_free = start;
        }
        if lost {
            self.lost += 1;
            return None;
        }
        let mut arrival = self.link_free + Span::from_millis_f64(self.spec.base_us / 1e3) + jitter;
        if !self.spec.reorders {
            arrival = arrival.max(self.last_arrival);
        }
        self.last_arrival = arrival;
        Some(arrival)
    }

    /// Returns the wait of a message sent at `now` for the link.
    pub fn queue_delay(&self, now: Time) -> Span {
        self.link_free.since(now)
    }

    /// Messages sent, and lost of them.
    pub fn counts(&self) -> (u64, u64) {
        (self.sent, self.lost)
    }

    fn draw(&self, rng: &mut Rng) -> Span {
        let us = match self.spec.jitter {
            Jitter::None => 0.0,
            Jitter::Uniform { max_us } => max_us * rng.unit(),
            Jitter::Exponential { mean_us } => mean_us * rng.exp1(),
            Jitter::LogNormal { median_us, sigma } => median_us * (sigma * rng.normal()).exp(),
        };
        Span::from_millis_f64(us / 1e3)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: HopSpec = HopSpec { base_us: 300.0, jitter: Jitter::None, mb_per_s: 0.0, loss: 0.0, reorders: false };

    fn at(us: u64) -> Time {
        Time::from_nanos(us * 1000)
    }

    #[test]
    fn messages_queue_for_the_link_then_take_the_base_delay() {
        let mut hop = Hop::new(HopSpec { mb_per_s: 100.0, ..PLAIN }, 1, "hop").expect("valid");
        assert_eq!(hop.send(at(0), 1_000_000), Some(at(10_300)));
        assert_eq!(hop.queue_delay(at(4_000)), Span::from_millis(6));
        assert_eq!(hop.send(at(4_000), 100), Some(at(10_301)));
        assert_eq!(hop.send(at(50_000), 0), Some(at(50_300)));
    }

    #[test]
    fn jitter_has_its_mean_and_streams_stay_in_order() {
        for (jitter, mean_us) in [
            (Jitter::Uniform { max_us: 100.0 }, 50.0),
            (Jitter::Exponential { mean_us: 80.0 }, 80.0),
            (Jitter::LogNormal { median_us: 100.0, sigma: 0.5 }, 100.0 * (0.125f64).exp()),
        ] {
            let mut hop = Hop::new(HopSpec { jitter, ..PLAIN }, 3, "hop").expect("valid");
            let n = 50_000;
            let took = |i: u64, hop: &mut Hop| hop.send(at(i * 100_000), 1).expect("no loss").since(at(i * 100_000));
            let mean = (0..n).map(|i| took(i, &mut hop)).sum::<Span>().as_millis_f64() * 1e3 / n as f64 - 300.0;
            assert!((mean / mean_us - 1.0).abs() < 0.02, "{jitter:?}: {mean}");
            // In a burst, streams keep their order and datagrams don't.
            let burst = |reorders| {
                let mut hop = Hop::new(HopSpec { jitter, reorders, ..PLAIN }, 3, "hop").expect("valid");
                let times: Vec<_> = (0..100).map(|_| hop.send(at(0), 1)).collect();
                times.is_sorted()
            };
            assert_eq!((burst(false), burst(true)), (true, false));
        }
    }

    #[test]
    fn losses_have_their_share_and_shift_no_other_draw() {
        let jitter = Jitter::Exponential { mean_us: 50.0 };
        let spec = HopSpec { jitter, loss: 0.1, ..PLAIN };
        let mut lossy = Hop::new(spec, 5, "hop").expect("valid");
        let mut whole = Hop::new(HopSpec { loss: 0.0, ..spec }, 5, "hop").expect("valid");
        for i in 0..10_000 {
            let (a, b) = (lossy.send(at(i * 100_000), 1), whole.send(at(i * 100_000), 1));
            assert!(a.is_none() || a == b);
        }
        let (sent, lost) = lossy.counts();
        assert!(sent == 10_000 && (900..1_100).contains(&lost), "{lost}");
    }

    #[test]
    fn what_cannot_be_is_refused() {
        for (spec, key) in [
            (HopSpec { base_us: -1.0, ..PLAIN }, "base_us"),
            (HopSpec { loss: 1.5, ..PLAIN }, "loss"),
            (HopSpec { jitter: Jitter::Uniform { max_us: f64::NAN }, ..PLAIN }, "jitter.max_us"),
        ] {
            assert!(Hop::new(spec, 1, "hop").unwrap_err().to_string().contains(key));
        }
        let text = "base_us = 300.0\njitter = { kind = \"log-normal\", median_us = 20.0, sigma = 0.4 }\n";
        let spec: HopSpec = toml::from_str(text).expect("parses");
        assert_eq!(spec.jitter, Jitter::LogNormal { median_us: 20.0, sigma: 0.4 });
        assert!(toml::from_str::<HopSpec>("base_us = 1.0\nspeed = 3").is_err());
    }
}
