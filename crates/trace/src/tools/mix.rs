//! Several traces as one, as if their tenants shared the hardware.

use crate::error::TraceError;
use crate::record::{Op, Tables, TraceRecord};
use crate::stream::RecordStream;
use crate::tools::rerate::Speed;
use crate::tools::window::Busy;
use plimsoll_base::{Span, Time};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Destination of an input's devices.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Placement {
    /// Each device becomes one of the mix, called `label:device`.
    Apart {
        /// Name of the input.
        label: String,
    },
    /// All go to one region of one device of the mix.
    Onto {
        /// The device.
        device: String,
        /// First byte of the region.
        start: u64,
        /// Bytes of the region, at least 1. Addresses beyond it wrap around; a request that would cross its end is
        /// moved to end there, and one longer than the region is cut.
        bytes: u64,
    },
}

/// One input of a mix.
pub struct MixInput<S> {
    /// The trace.
    pub stream: S,
    /// Its pace in the mix.
    pub speed: Speed,
    /// Time in the mix of the input's time zero.
    pub starts_at: Time,
    /// Destination of its devices.
    pub placement: Placement,
}

struct Input<S> {
    input: MixInput<S>,
    /// The mix's number of each of its devices, and of each of its contexts.
    devices: Vec<Option<u32>>,
    contexts: Vec<Option<Option<u32>>>,
    next: Option<TraceRecord>,
}

/// The inputs merged by arrival; at one instant, in the order of the inputs. Memory: that of the inputs.
pub struct Mix<S> {
    inputs: Vec<Input<S>>,
    /// Arrival of each input's next record.
    heads: BinaryHeap<Reverse<(Time, usize)>>,
    tables: Tables,
    error: Option<TraceError>,
}

impl<S: RecordStream> Mix<S> {
    /// Mixes `inputs`.
    ///
    /// # Panics
    /// If a region has no bytes, or reaches beyond 2^63.
    pub fn new(inputs: Vec<MixInput<S>>) -> Mix<S> {
        let inputs = inputs.into_iter().map(|input| {
            if let Placement::Onto { start, bytes, .. } = input.placement {
                assert!(bytes > 0, "a region of no bytes");
                assert!(start.checked_add(bytes).is_some_and(|end| end <= i64::MAX as u64), "a region beyond 2^63");
            }
            Input { input, devices: Vec::new(), contexts: Vec::new(), next: None }
        });
        let inputs: Vec<_> = inputs.collect();
        let mut mix = Mix { inputs, heads: BinaryHeap::new(), tables: Tables::new(), error: None };
        for i in 0..mix.inputs.len() {
            mix.pull(i);
        }
        mix
    }

    /// Reads the next record of input `i`; keeps its error for the next call.
    fn pull(&mut self, i: usize) {
        let input = &mut self.inputs[i];
        match input.input.stream.next_record() {
            None => input.next = None,
            Some(Err(e)) => self.error = self.error.take().or(Some(e)),
            Some(Ok(r)) => {
                let at = input.input.starts_at + input.input.speed.apply(r.arrived_at).since(Time::ZERO);
                input.next = Some(TraceRecord { arrived_at: at, ..r });
                self.heads.push(Reverse((at, i)));
            }
        }
    }
}

impl<S: RecordStream> Input<S> {
    /// The record in the mix's terms; `None` if the mix's devices are too many.
    fn place(&mut self, r: TraceRecord, tables: &mut Tables) -> Option<TraceRecord> {
        let device = match cached(&mut self.devices, r.device) {
            Some(d) => *d,
            slot => {
                let name = self.input.stream.tables().devices.get(r.device).unwrap_or("?");
                let number = match &self.input.placement {
                    Placement::Apart { label } => tables.devices.intern(format!("{label}:{name}").as_bytes())?,
                    Placement::Onto { device, .. } => tables.devices.intern(device.as_bytes())?,
                };
                *slot.insert(number)
            }
        };
        let context = r.context.and_then(|c| match cached(&mut self.contexts, c) {
            Some(known) => *known,
            slot => {
                let name = self.input.stream.tables().contexts.get(c).unwrap_or("?");
                *slot.insert(tables.contexts.intern(name.as_bytes()))
            }
        });
        let placed = TraceRecord { device, context, ..r };
        Some(match self.input.placement {
            Placement::Onto { start, bytes, .. } if r.op != Op::Flush => {
                let len = r.len.min(bytes);
                TraceRecord { offset: start + (r.offset % bytes).min(bytes - len), len, ..placed }
            }
            _ => placed,
        })
    }
}

/// The slot of number `n`, made if need be.
fn cached<T: Copy>(slots: &mut Vec<Option<T>>, n: u32) -> &mut Option<T> {
    let n = n as usize;
    if slots.len() <= n {
        slots.resize(n + 1, None);
    }
    &mut slots[n]
}

impl<S: RecordStream> RecordStream for Mix<S> {
    fn next_record(&mut self) -> Option<Result<TraceRecord, TraceError>> {
        if let Some(e) = self.error.take() {
            self.heads.clear();
            return Some(Err(e));
        }
        let Reverse((_, i)) = self.heads.pop()?;
        let r = self.inputs[i].next.take()?;
        let placed = self.inputs[i].place(r, &mut self.tables);
        self.pull(i);
        Some(placed.ok_or_else(|| {
            self.heads.clear();
            let file = format!("input {i} of the mix");
            let what = format!("more than {} devices in the mix", Tables::DEVICES_MAX);
            TraceError { file, at: crate::Position::File, what, fix: "place inputs onto regions".into() }
        }))
    }

    fn tables(&self) -> &Tables {
        &self.tables
    }
}

/// Choice of the 5 minutes of a trace that go into one of Manylogs' mixes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pick {
    /// The busiest window by this measure.
    Busiest(Busy),
    /// A window at random.
    Random,
}

/// A mix of Manylogs' Table I(b): what to pick from which of the traces T1 to T10 of Table I(a).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ManylogsMix {
    /// `W1` to `W5`.
    pub name: &'static str,
    /// The windows, and the numbers of the traces they are from, 1 to 10. A trace may occur several times.
    pub parts: &'static [(Pick, u8)],
}

/// The length of their windows.
pub const MANYLOGS_WINDOW: Span = Span::from_secs(300);

const MOST_READ: Pick = Pick::Busiest(Busy::Reads);
const MOST_WRITE: Pick = Pick::Busiest(Busy::Writes);

/// Manylogs Table I(b) as printed. W1 has six members there, though the text speaks of five traces a mix; W2's "4 most-read" of
/// write-heavy traces is printed so too. The authors' method of re-rating isn't stated: the caller chooses a rate that doesn't
/// overload the disk.
pub const MANYLOGS_MIXES: [ManylogsMix; 5] = [
    ManylogsMix {
        name: "W1",
        parts: &[(MOST_WRITE, 7), (MOST_READ, 1), (MOST_READ, 1), (MOST_READ, 1), (MOST_READ, 1), (MOST_READ, 1)],
    },
    ManylogsMix {
        name: "W2",
        parts: &[(MOST_READ, 1), (MOST_READ, 7), (MOST_READ, 8), (MOST_READ, 9), (MOST_READ, 10)],
    },
    ManylogsMix {
        name: "W3",
        parts: &[(MOST_READ, 1), (Pick::Random, 2), (Pick::Random, 3), (Pick::Random, 5), (Pick::Random, 6)],
    },
    ManylogsMix {
        name: "W4",
        parts: &[(MOST_WRITE, 7), (MOST_READ, 3), (MOST_READ, 4), (MOST_READ, 5), (MOST_READ, 6)],
    },
    ManylogsMix {
        name: "W5",
        parts: &[(MOST_READ, 1), (Pick::Random, 2), (Pick::Random, 4), (Pick::Random, 6), (Pick::Random, 8)],
    },
];
