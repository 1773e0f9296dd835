//! Array and channel time: units that do one operation at a time, channels that carry one page at a time.
//!
//! ```text
//!  read:     array ─► channel (page register stays taken while it waits)
//!  program:  channel ─► array
//!  copy:     array ─► channel out and in ─► array      (copy-back: array only)
//!  erase:    array
//! ```
//! A unit has at most one instant at which something ends, so a tournament tree over the units is the whole event
//! queue: its root is the next event, and ties go to the lower unit. Events come in order of time, so a channel
//! that serves first come first is one number: when it's free.

use super::ftl::Step;
use super::spec::FlashSpec;

/// "No operation", "no unit".
pub(crate) const NONE: u32 = u32::MAX;

/// Kind of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Read,
    Program,
    Copy,
    Erase,
}

/// Owner of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Owner {
    /// The request that waits for it, or [`NONE`].
    pub parent: u32,
    /// It holds a page of the write buffer, counted in this epoch; [`NONE`] if it doesn't.
    pub epoch: u32,
}

impl Owner {
    pub(crate) const DRIVE: Owner = Owner { parent: NONE, epoch: NONE };
}

#[derive(Clone, Copy, Debug)]
struct OpSlot {
    kind: Kind,
    class: u8,
    owner: Owner,
    page: u32,
    next: u32,
}

/// An operation that has ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ended {
    pub kind: Kind,
    pub owner: Owner,
    pub page: u32,
    pub started_ns: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Idle,
    /// In the array, the channel still before it.
    Array,
    /// The remaining steps need no shared resource, or have it already.
    Last,
}

/// A queue threaded through the operations.
#[derive(Clone, Copy, Debug)]
struct List {
    first: u32,
    last: u32,
}

const EMPTY: List = List { first: NONE, last: NONE };

/// Outstanding work of a unit: read-only sight for a layer that manages the flash itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outstanding {
    /// Array reads, those of copies included.
    pub reads: u32,
    /// Array programs by class of page, those of copies included.
    pub programs: [u32; 9],
    /// Erases.
    pub erases: u32,
}

#[derive(Clone, Debug)]
struct Unit {
    phase: Phase,
    current: u32,
    queue: List,
    reads: List,
    reads_in_a_row: u32,
    outstanding: Outstanding,
    /// Operations, the one under way included, that a request waits for.
    waited_for: u32,
    busy_since_ns: u64,
}

#[derive(Clone, Copy, Debug)]
struct Channel {
    free_ns: u64,
    /// Operations of its units that aren't finished.
    outstanding: u32,
    /// Those of them that read.
    reads: u32,
}

/// The array of a drive.
#[derive(Clone, Debug)]
pub(crate) struct Engine {
    ops: Vec<OpSlot>,
    free: u32,
    units: Vec<Unit>,
    channels: Vec<Channel>,
    tree: Tree,
    /// Only units with an operation that a request waits for: what all others do is of interest to nobody outside.
    waited: Tree,
    classes: Vec<u8>,
    pages_per_block: u32,
    read_ns: u64,
    program_ns: Vec<u64>,
    erase_ns: u64,
    read_transfer_ns: u64,
    write_transfer_ns: u64,
    copy_back: bool,
    reads_first_max: u32,
}

impl Engine {
    pub(crate) fn new(spec: &FlashSpec) -> Engine {
        let ns = |us: f64| (us * 1e3).round() as u64;
        let t = &spec.timing;
        let unit = Unit {
            phase: Phase::Idle,
            current: NONE,
            queue: EMPTY,
            reads: EMPTY,
            reads_in_a_row: 0,
            outstanding: Outstanding::default(),
            waited_for: 0,
            busy_since_ns: 0,
        };
        Engine {
            ops: Vec::new(),
            free: NONE,
            units: vec![unit; spec.units() as usize],
            channels: vec![Channel { free_ns: 0, outstanding: 0, reads: 0 }; spec.geometry.channels as usize],
            tree: Tree::new(spec.units() as usize),
            waited: Tree::new(spec.units() as usize),
            classes: spec.page_classes(),
            pages_per_block: spec.geometry.pages_per_block,
            read_ns: ns(t.read_us),
            program_ns: t.program_us.iter().map(|us| ns(*us)).collect(),
            erase_ns: ns(t.erase_us),
            read_transfer_ns: ns(t.read_transfer_us),
            write_transfer_ns: ns(t.write_transfer_us),
            copy_back: t.copy_back,
            reads_first_max: t.reads_first_max,
        }
    }

    /// Units follow each other channel by channel, so neighbours in the stripe don't share one.
    pub(crate) fn channel_of(&self, unit: u32) -> u32 {
        unit % self.channels.len() as u32
    }

    pub(crate) fn outstanding(&self, unit: u32) -> &Outstanding {
        &self.units[unit as usize].outstanding
    }

    /// Returns the start of the unit's current operation; `None` if it has none.
    pub(crate) fn busy_since_ns(&self, unit: u32) -> Option<u64> {
        let u = &self.units[unit as usize];
        (u.phase != Phase::Idle).then_some(u.busy_since_ns)
    }

    pub(crate) fn channel_outstanding(&self, channel: u32) -> u32 {
        self.channels[channel as usize].outstanding
    }

    pub(crate) fn channel_reads(&self, channel: u32) -> u32 {
        self.channels[channel as usize].reads
    }

    pub(crate) fn is_idle(&self, unit: u32) -> bool {
        self.units[unit as usize].phase == Phase::Idle
    }

    pub(crate) fn next_ns(&self) -> u64 {
        self.tree.min()
    }

    /// No operation that a request waits for ends before this.
    pub(crate) fn next_waited_ns(&self) -> u64 {
        self.waited.min()
    }

    fn class(&self, page: u32) -> u8 {
        if self.program_ns.len() == 1 {
            return 0;
        }
        self.classes[(page % self.pages_per_block) as usize]
    }

    /// Queues one step of `unit`; `may_pass` lets a read go before waiting programs.
    pub(crate) fn push(&mut self, unit: u32, step: Step, owner: Owner, may_pass: bool) {
        let (kind, page) = match step {
            Step::Read { page } => (Kind::Read, page),
            Step::Program { page } => (Kind::Program, page),
            Step::Copy { to, .. } => (Kind::Copy, to),
            Step::Erase { block } => (Kind::Erase, block),
        };
        let class = if matches!(kind, Kind::Program | Kind::Copy) { self.class(page) } else { 0 };
        let slot = OpSlot { kind, class, owner, page, next: NONE };
        let op = if self.free == NONE {
            self.ops.push(slot);
            (self.ops.len() - 1) as u32
        } else {
            let op = self.free;
            self.free = self.ops[op as usize].next;
            self.ops[op as usize] = slot;
            op
        };
        let u = &mut self.units[unit as usize];
        u.outstanding.count(kind, class, 1);
        if owner.parent != NONE {
            u.waited_for += 1;
            if u.waited_for == 1 && u.phase != Phase::Idle {
                self.waited.set(unit as usize, self.tree.at(unit as usize));
            }
        }
        let list = if kind == Kind::Read && may_pass && self.reads_first_max > 0 { &mut u.reads } else { &mut u.queue };
        if list.first == NONE {
            list.first = op;
        } else {
            self.ops[list.last as usize].next = op;
        }
        list.last = op;
        let channel = self.channel_of(unit) as usize;
        self.channels[channel].outstanding += 1;
        self.channels[channel].reads += u32::from(kind == Kind::Read);
    }

    /// Starts the next operation of an idle unit, if there is one. Must follow the end of its last one.
    pub(crate) fn start(&mut self, unit: u32, now_ns: u64) {
        let max = self.reads_first_max;
        let u = &mut self.units[unit as usize];
        debug_assert_eq!(u.phase, Phase::Idle);
        let pass = u.reads.first != NONE && (u.queue.first == NONE || u.reads_in_a_row < max);
        u.reads_in_a_row = if pass { u.reads_in_a_row + 1 } else { 0 };
        let list = if pass { &mut u.reads } else { &mut u.queue };
        let op = list.first;
        if op == NONE {
            self.tree.set(unit as usize, u64::MAX);
            return;
        }
        let slot = self.ops[op as usize];
        list.first = slot.next;
        (u.current, u.busy_since_ns) = (op, now_ns);
        let program_ns = self.program_ns[usize::from(slot.class)];
        let (phase, at_ns) = match slot.kind {
            Kind::Read => (Phase::Array, now_ns + self.read_ns),
            Kind::Copy if self.copy_back => (Phase::Last, now_ns + self.read_ns + program_ns),
            Kind::Copy => (Phase::Array, now_ns + self.read_ns),
            Kind::Erase => (Phase::Last, now_ns + self.erase_ns),
            Kind::Program => (Phase::Last, self.over_channel(unit, now_ns, self.write_transfer_ns) + program_ns),
        };
        self.until(unit, phase, at_ns);
    }

    fn until(&mut self, unit: u32, phase: Phase, at_ns: u64) {
        let u = &mut self.units[unit as usize];
        u.phase = phase;
        self.tree.set(unit as usize, at_ns);
        if u.waited_for > 0 {
            self.waited.set(unit as usize, at_ns);
        }
    }

    /// Takes the unit's channel for `transfer_ns` as soon as it's free; gives the end.
    fn over_channel(&mut self, unit: u32, now_ns: u64, transfer_ns: u64) -> u64 {
        let channel = self.channel_of(unit) as usize;
        let free_ns = &mut self.channels[channel].free_ns;
        *free_ns = now_ns.max(*free_ns) + transfer_ns;
        *free_ns
    }

    /// Performs the step that is due at [`Engine::next_ns`]. Returns its unit, and the unit's operation if that has ended. After an
    /// end the unit is idle, and the caller must call [`Engine::start`].
    pub(crate) fn step(&mut self) -> (u32, Option<Ended>) {
        let now_ns = self.tree.min();
        let unit = self.tree.first() as u32;
        let Unit { phase, current, .. } = self.units[unit as usize];
        if phase == Phase::Last {
            return (unit, Some(self.end(unit, current)));
        }
        debug_assert_eq!(phase, Phase::Array, "an idle unit has no event");
        let OpSlot { kind, class, .. } = self.ops[current as usize];
        let at_ns = if kind == Kind::Read {
            self.over_channel(unit, now_ns, self.read_transfer_ns)
        } else {
            let program_ns = self.program_ns[usize::from(class)];
            self.over_channel(unit, now_ns, self.read_transfer_ns + self.write_transfer_ns) + program_ns
        };
        self.until(unit, Phase::Last, at_ns);
        (unit, None)
    }

    fn end(&mut self, unit: u32, op: u32) -> Ended {
        let OpSlot { kind, class, owner, page, .. } = self.ops[op as usize];
        self.ops[op as usize].next = self.free;
        self.free = op;
        let u = &mut self.units[unit as usize];
        let started_ns = u.busy_since_ns;
        (u.current, u.phase) = (NONE, Phase::Idle);
        u.outstanding.count(kind, class, -1);
        if owner.parent != NONE {
            u.waited_for -= 1;
            if u.waited_for == 0 {
                self.waited.set(unit as usize, u64::MAX);
            }
        }
        let channel = self.channel_of(unit) as usize;
        self.channels[channel].outstanding -= 1;
        self.channels[channel].reads -= u32::from(kind == Kind::Read);
        Ended { kind, owner, page, started_ns }
    }
}

impl Outstanding {
    #[inline]
    fn count(&mut self, kind: Kind, class: u8, change: i32) {
        let add = |n: &mut u32| *n = n.wrapping_add_signed(change);
        if matches!(kind, Kind::Read | Kind::Copy) {
            add(&mut self.reads);
        }
        if matches!(kind, Kind::Program | Kind::Copy) {
            add(&mut self.programs[usize::from(class)]);
        }
        if kind == Kind::Erase {
            add(&mut self.erases);
        }
    }
}

/// A tournament over the units' next instants: the winner is the earliest, ties go to the lower unit.
#[derive(Clone, Debug)]
struct Tree {
    leaves: usize,
    /// Node `i` plays `2i` against `2i + 1`; leaves begin at `leaves`.
    at_ns: Vec<u64>,
}

impl Tree {
    fn new(units: usize) -> Tree {
        let leaves = units.next_power_of_two();
        Tree { leaves, at_ns: vec![u64::MAX; 2 * leaves] }
    }

    fn set(&mut self, unit: usize, at_ns: u64) {
        let mut node = self.leaves + unit;
        self.at_ns[node] = at_ns;
        while node > 1 {
            let winner = self.at_ns[node].min(self.at_ns[node ^ 1]);
            node /= 2;
            if self.at_ns[node] == winner {
                break;
            }
            self.at_ns[node] = winner;
        }
    }

    fn at(&self, unit: usize) -> u64 {
        self.at_ns[self.leaves + unit]
    }

    fn min(&self) -> u64 {
        self.at_ns[1]
    }

    /// The winner's unit.
    fn first(&self) -> usize {
        let mut node = 1;
        while node < self.leaves {
            node = 2 * node + usize::from(self.at_ns[2 * node] != self.at_ns[node]);
        }
        node - self.leaves
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn spec(copy_back: bool) -> FlashSpec {
        let mut s = FlashSpec::by_name("mittos-openchannel").expect("embedded");
        (s.geometry.channels, s.geometry.chips_per_channel) = (2, 3);
        (s.geometry.pages_per_block, s.geometry.blocks_per_plane) = (4, 64);
        s.timing.program_pattern = vec![("1122".into(), 1)];
        s.timing.copy_back = copy_back;
        s
    }

    /// Stage of an operation of the naive array.
    #[derive(Clone, Copy, PartialEq, Debug)]
    enum At {
        Array(u64),
        Waits,
        Channel(u64),
        Program(u64),
    }

    /// The same array with queues for everything and a search for the next event: ends of (unit, number) in order.
    fn naive(ops: &[(u64, u32, Kind, u32)], copy_back: bool) -> Vec<(u32, u32, u64)> {
        const US: u64 = 1000;
        let program_ns = |page: u32| if page % 4 < 2 { 1000 * US } else { 2000 * US };
        let mut queues: Vec<Vec<u32>> = vec![Vec::new(); 6];
        let mut at: Vec<Option<At>> = vec![None; 6];
        let mut channels: Vec<Vec<u32>> = vec![Vec::new(); 2];
        let (mut ends, mut arrived) = (Vec::new(), 0);
        loop {
            let event = (0..6u32)
                .filter_map(|u| match at[u as usize]? {
                    At::Waits => None,
                    At::Array(t) | At::Channel(t) | At::Program(t) => Some((t, u)),
                })
                .min();
            let arrival = ops.get(arrived).map(|o| o.0);
            let (now, unit) = match (event, arrival) {
                (None, None) => return ends,
                (Some(e), Some(a)) if e.0 <= a => e,
                (Some(e), None) => e,
                (_, Some(a)) => {
                    let unit = ops[arrived].1;
                    queues[unit as usize].push(arrived as u32);
                    arrived += 1;
                    (a, unit)
                }
            };
            let u = unit as usize;
            let channel = u % 2;
            let mut wants = false;
            if let Some(op) = queues[u].first().copied() {
                let (_, _, kind, page) = ops[op as usize];
                let inside = kind == Kind::Erase || kind == Kind::Copy && copy_back;
                match at[u] {
                    Some(At::Array(t)) if t <= now && inside => at[u] = Some(At::Program(t)),
                    Some(At::Array(t)) if t <= now => wants = true,
                    Some(At::Channel(t)) if t <= now => {
                        channels[channel].remove(0);
                        if let Some(&next) = channels[channel].first() {
                            let k = ops[queues[next as usize][0] as usize].2;
                            at[next as usize] = Some(At::Channel(now + if k == Kind::Copy { 120 } else { 60 } * US));
                        }
                        let more = if kind == Kind::Read { 0 } else { program_ns(page) };
                        at[u] = Some(At::Program(now + more));
                    }
                    _ => {}
                }
                if at[u] == Some(At::Program(now)) {
                    ends.push((unit, op, now));
                    queues[u].remove(0);
                    at[u] = None;
                }
            }
            if at[u].is_none()
                && let Some(op) = queues[u].first().copied()
            {
                let (_, _, kind, page) = ops[op as usize];
                match kind {
                    Kind::Program => wants = true,
                    Kind::Erase => at[u] = Some(At::Array(now + 6000 * US)),
                    Kind::Copy if copy_back => at[u] = Some(At::Array(now + 40 * US + program_ns(page))),
                    Kind::Read | Kind::Copy => at[u] = Some(At::Array(now + 40 * US)),
                }
            }
            if wants {
                channels[channel].push(unit);
                let k = ops[queues[u][0] as usize].2;
                let transfer = if k == Kind::Copy { 120 } else { 60 } * US;
                at[u] = Some(if channels[channel].len() == 1 { At::Channel(now + transfer) } else { At::Waits });
            }
        }
    }

    fn engine_ends(ops: &[(u64, u32, Kind, u32)], copy_back: bool) -> Vec<(u32, u32, u64)> {
        let mut e = Engine::new(&spec(copy_back));
        let (mut ends, mut next) = (Vec::new(), 0);
        loop {
            let arrival = ops.get(next).map_or(u64::MAX, |o| o.0);
            let now = e.next_ns().min(arrival);
            if now == u64::MAX {
                break;
            }
            if e.next_ns() == now {
                let (unit, ended) = e.step();
                if let Some(x) = ended {
                    ends.push((unit, x.owner.parent, now));
                    e.start(unit, now);
                }
            } else {
                let (_, unit, kind, page) = ops[next];
                let step = match kind {
                    Kind::Read => Step::Read { page },
                    Kind::Program => Step::Program { page },
                    Kind::Copy => Step::Copy { from: 0, to: page },
                    Kind::Erase => Step::Erase { block: page },
                };
                e.push(unit, step, Owner { parent: next as u32, epoch: NONE }, false);
                if e.is_idle(unit) {
                    e.start(unit, now);
                }
                next += 1;
            }
        }
        assert!((0..6).all(|u| *e.outstanding(u) == Outstanding::default() && e.busy_since_ns(u).is_none()));
        assert_eq!((e.channel_outstanding(0), e.channel_outstanding(1)), (0, 0));
        assert_eq!((e.channel_reads(0), e.channel_reads(1)), (0, 0));
        ends
    }

    proptest! {
        /// One number for a channel and one instant for a unit give what explicit queues give.
        #[test]
        fn ends_are_those_of_explicit_queues(
            ops in prop::collection::vec((0u64..400, 0u32..6, 0u8..4, 0u32..8), 1..80),
            copy_back in any::<bool>(),
        ) {
            let kinds = [Kind::Read, Kind::Program, Kind::Copy, Kind::Erase];
            // Odd instants, so that nothing arrives just when something ends.
            let mut ops: Vec<_> =
                ops.into_iter().map(|(at, unit, k, page)| (at * 37_001 + 1, unit, kinds[k as usize], page)).collect();
            ops.sort_by_key(|o| o.0);
            let sorted = |mut ends: Vec<(u32, u32, u64)>| {
                ends.sort_unstable();
                ends
            };
            prop_assert_eq!(sorted(engine_ends(&ops, copy_back)), sorted(naive(&ops, copy_back)));
        }
    }

    #[test]
    fn the_tree_gives_the_earliest_and_the_lowest() {
        let mut t = Tree::new(5);
        assert_eq!(t.min(), u64::MAX);
        for (unit, at) in [(3, 50), (1, 70), (4, 50), (0, 90)] {
            t.set(unit, at);
        }
        assert_eq!((t.min(), t.first()), (50, 3));
        t.set(3, 60);
        assert_eq!((t.min(), t.first()), (50, 4));
        t.set(4, u64::MAX);
        t.set(3, u64::MAX);
        assert_eq!((t.min(), t.first()), (70, 1));
    }

    /// Reads pass waiting programs, but not for ever.
    #[test]
    fn reads_pass_a_few_at_a_time() {
        let mut s = spec(false);
        s.timing.reads_first_max = 2;
        let mut e = Engine::new(&s);
        for i in 0..3 {
            e.push(0, Step::Program { page: i }, Owner { parent: i, epoch: NONE }, false);
        }
        for i in 10..15 {
            e.push(0, Step::Read { page: 0 }, Owner { parent: i, epoch: NONE }, true);
        }
        e.start(0, 0);
        let mut order = Vec::new();
        while e.next_ns() != u64::MAX {
            let now = e.next_ns();
            if let (unit, Some(x)) = e.step() {
                order.push(x.owner.parent);
                e.start(unit, now);
            }
        }
        assert_eq!(order, [10, 11, 0, 12, 13, 1, 14, 2]);
    }
}
