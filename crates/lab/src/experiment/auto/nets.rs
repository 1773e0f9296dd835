//! Networks that are trained offline, to compare with: LinnOS' features (OSDI '20) and Heimdall's (EuroSys '25), on the first half of a run,
//! judged on the second.
//!
//! LinnOS: requests outstanding, the same at the arrival of each of the last four reads, and the times of those reads, by
//! decimal digits. Heimdall: requests outstanding, size, and for each of the last three reads the requests outstanding, the
//! time and the throughput. Both networks are smaller than the papers' (one hidden layer of 32 instead of 256, or of 128 and
//! 16): with this number of reads more neurons change nothing.

use super::Ended;
use plimsoll_base::{Op, Rng, Span, Time};

/// The features of a network.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Features {
    LinnOs,
    Heimdall,
}

const HIDDEN: usize = 32;
/// Passes over the training part, and steps at most.
const PASSES: usize = 12;
const STEPS_MAX: usize = 400_000;
const RATE: f32 = 0.01;

/// A read as the network sees it, and what it took.
pub(super) struct Example {
    pub features: Vec<f32>,
    pub late: bool,
    pub arrived_at: Time,
}

fn digits(n: u64, count: u32) -> impl Iterator<Item = f32> {
    let n = n.min(10u64.pow(count) - 1);
    (0..count).rev().map(move |i| (n / 10u64.pow(i) % 10) as f32 / 10.0)
}

/// The reads of a run as examples, in the order of their arrivals.
pub(super) fn examples(all: &[Ended], kind: Features, deadline_ns: u64) -> Vec<Example> {
    // Everything that happens, in order: what has ended goes before what comes.
    let mut events: Vec<(Time, bool, usize)> = Vec::new();
    for (i, r) in all.iter().enumerate() {
        events.push((r.arrived_at, true, i));
        events.push((r.done_at.max(r.arrived_at + Span::from_nanos(1)), false, i));
    }
    events.sort_unstable();
    let mut outstanding = 0u64;
    // Of the last reads that have ended: outstanding when they came, microseconds, bytes.
    let mut past = [(0u64, 0u64, 0u64); 4];
    let mut came_with = vec![0; all.len()];
    let mut examples = Vec::new();
    for (_, comes, i) in events {
        let r = &all[i];
        let took = r.done_at.since(r.arrived_at);
        if !comes {
            outstanding -= 1;
            if r.op == Op::Read {
                past.rotate_right(1);
                past[0] = (came_with[i], took.as_micros(), r.len);
            }
            continue;
        }
        if r.op == Op::Read {
            let log = |x: u64| (x as f32 + 1.0).ln() / 10.0;
            let features = match kind {
                Features::LinnOs => {
                    let queues = past.iter().flat_map(|p| digits(p.0, 3));
                    let times = past.iter().flat_map(|p| digits(p.1, 4));
                    digits(outstanding, 3).chain(queues).chain(times).collect()
                }
                Features::Heimdall => {
                    let of = |p: &(u64, u64, u64)| [log(p.0), log(p.1), log(p.2 * 1_000_000 / p.1.max(1)) / 2.0];
                    [log(outstanding), log(r.len)].into_iter().chain(past[..3].iter().flat_map(of)).collect()
                }
            };
            examples.push(Example { features, late: took.as_nanos() > deadline_ns, arrived_at: r.arrived_at });
        }
        came_with[i] = outstanding;
        outstanding += 1;
    }
    examples
}

/// One hidden layer of rectified units, a logistic output.
pub(super) struct Net {
    inputs: usize,
    hidden: Vec<f32>,
    bias: [f32; HIDDEN],
    output: [f32; HIDDEN],
    output_bias: f32,
}

impl Net {
    fn forward(&self, x: &[f32]) -> ([f32; HIDDEN], f32) {
        let unit = |h: usize| {
            let weights = &self.hidden[h * self.inputs..(h + 1) * self.inputs];
            (self.bias[h] + weights.iter().zip(x).map(|(w, x)| w * x).sum::<f32>()).max(0.0)
        };
        let hidden: [f32; HIDDEN] = std::array::from_fn(unit);
        let z = self.output_bias + hidden.iter().zip(&self.output).map(|(h, w)| h * w).sum::<f32>();
        (hidden, 1.0 / (1.0 + (-z).exp()))
    }

    /// The chance that a read is late.
    pub(super) fn chance(&self, x: &[f32]) -> f32 {
        self.forward(x).1
    }

    /// Trained on `examples`, in an order that the seed draws.
    pub(super) fn trained(examples: &[Example], seed: u64) -> Option<Net> {
        let inputs = examples.first()?.features.len();
        let mut rng = Rng::new(seed, "net");
        let mut draw = |scale: f64| ((rng.unit() * 2.0 - 1.0) * scale) as f32;
        let scale = (6.0 / (inputs + HIDDEN) as f64).sqrt();
        let mut net = Net {
            inputs,
            hidden: (0..inputs * HIDDEN).map(|_| draw(scale)).collect(),
            bias: [0.1; HIDDEN],
            output: std::array::from_fn(|_| draw(0.3)),
            output_bias: -2.0,
        };
        let mut rng = Rng::new(seed, "order of examples");
        let steps = (examples.len() * PASSES).min(STEPS_MAX);
        for step in 0..steps {
            let e = &examples[rng.below(examples.len() as u64) as usize];
            let rate = RATE * (1.0 - step as f32 / steps as f32) + RATE / 50.0;
            let (hidden, chance) = net.forward(&e.features);
            let wrong = chance - if e.late { 1.0 } else { 0.0 };
            for (h, &value) in hidden.iter().enumerate() {
                let back = wrong * net.output[h];
                net.output[h] -= rate * wrong * value;
                if value > 0.0 {
                    net.bias[h] -= rate * back;
                    let weights = &mut net.hidden[h * inputs..(h + 1) * inputs];
                    weights.iter_mut().zip(&e.features).for_each(|(w, x)| *w -= rate * back * x);
                }
            }
            net.output_bias -= rate * wrong;
        }
        Some(net)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Late where either of two inputs is large but not both: no line tells them apart.
    #[test]
    fn a_net_learns_what_no_line_tells() {
        let mut rng = Rng::new(1, "xor");
        let draw = |_| {
            let (a, b) = (rng.chance(0.5), rng.chance(0.5));
            let features = vec![f32::from(u8::from(a)), f32::from(u8::from(b))];
            Example { features, late: a != b, arrived_at: Time::ZERO }
        };
        let examples: Vec<Example> = (0..20_000).map(draw).collect();
        let net = Net::trained(&examples, 1).expect("there are examples");
        let right = examples.iter().filter(|e| (net.chance(&e.features) > 0.5) == e.late).count();
        assert!(right > 19_000, "{right} of 20,000");
    }
}
