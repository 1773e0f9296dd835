//! A gateway's reads of an image, with an OSD chosen for each: as Ceph does it, or by the product's layer.

use super::cluster::{Cluster, OBJECT_BYTES, ON_THE_WAY, Shape, read_from, service};
use plimsoll_base::{Completion, Data, Io, IoHead, Op, Outcome, Rng, Span, TenantId, Time, VolumeKey};
use plimsoll_sched::osds::{Crush, OsdMap, Osds, OsdsControl};
use plimsoll_stack::sim::EventQueue;
use plimsoll_stack::{Addressed, Offer, Offered, Stack, StackConfig, Target};
use slab::Slab;

/// Handles beside the first one, as in the product.
const HANDLES: usize = 8;
const OBJECTS: u64 = 262_144;

/// Choice of an OSD for a read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Choice {
    /// The primary: Ceph's default.
    Default,
    /// One of the copies at random: Ceph's `balance`.
    Balance,
    /// The primary, and another copy if it doesn't answer for a while.
    Hedged,
    /// The layer, with handles of eight hosts.
    ByHosts,
    /// The layer, with eight handles as the product chooses them.
    Steered,
    /// The copy at which it ends first.
    Best,
}

impl Choice {
    pub const ALL: [Choice; 6] =
        [Choice::Default, Choice::Balance, Choice::Hedged, Choice::ByHosts, Choice::Steered, Choice::Best];

    pub fn name(self) -> &'static str {
        match self {
            Choice::Default => "default",
            Choice::Balance => "balance",
            Choice::Hedged => "hedged",
            Choice::ByHosts => "steered by hosts",
            Choice::Steered => "steered",
            Choice::Best => "the best",
        }
    }

    /// The handles' map, if it is the layer that chooses.
    fn steers_by(self, shape: Shape, map: &OsdMap) -> Option<OsdMap> {
        let all = shape.crush();
        let known = match self {
            Choice::ByHosts => Crush { levels: all.levels.into_iter().take(1).collect() },
            Choice::Steered => all,
            _ => return None,
        };
        let mut map = map.clone();
        let buckets = known.to_read_from(&map, HANDLES, None);
        read_from(&mut map, &known, &buckets);
        Some(map)
    }
}

/// A read to come: its time, its object, and what its tries take at a free OSD.
struct Arrival {
    at: Time,
    object: u64,
    work: [Span; 2],
    draw: u64,
}

/// A cluster and the reads that come.
pub struct Scene {
    shape: Shape,
    cluster: Cluster,
    arrivals: Vec<Arrival>,
    seed: u64,
    /// Time until a hedged read is sent again.
    pub hedge_after_ms: f64,
}

impl Scene {
    pub fn new(shape: Shape, cluster: Cluster, rate: f64, reads: usize, seed: u64) -> Scene {
        let mut rng = Rng::new(seed, "reads");
        let mut at = Time::ZERO;
        let mut arrival = |_| {
            // A read is known by its time, later.
            at += Span::from_nanos(1 + (rng.exp1() * 1e9 / rate) as u64);
            let (object, work) = (rng.below(OBJECTS), [service(&mut rng), service(&mut rng)]);
            Arrival { at, object, work, draw: rng.next_u64() }
        };
        Scene { shape, cluster, arrivals: (0..reads).map(&mut arrival).collect(), seed, hedge_after_ms: f64::INFINITY }
    }
}

/// A read that has ended.
#[derive(Clone, Copy, Default)]
pub struct Read {
    pub took: Span,
    /// Its primary has the fault.
    pub is_of_slow: bool,
}

/// All reads in the order in which they came.
pub struct Played {
    pub reads: Vec<Read>,
    pub tries: u64,
}

/// Plays a scene.
pub fn play(scene: &Scene, choice: Choice) -> Played {
    let map = scene.shape.map(scene.seed);
    let mut played = Played { reads: vec![Read::default(); scene.arrivals.len()], tries: 0 };
    for (read, a) in played.reads.iter_mut().zip(&scene.arrivals) {
        read.is_of_slow = scene.cluster.is_slow(map.acting[map.pg(a.object)][0]);
    }
    match choice.steers_by(scene.shape, &map) {
        Some(map) => Steered::new(scene, map).play(&mut played),
        None => plain(scene, choice, &map, &mut played),
    }
    played
}

/// Without the layer.
fn plain(scene: &Scene, choice: Choice, map: &OsdMap, played: &mut Played) {
    enum Event {
        Comes(usize),
        Hedge(usize),
    }
    let mut cluster = scene.cluster.clone();
    let mut ends = vec![Time::NEVER; scene.arrivals.len()];
    let mut queue = EventQueue::new();
    for (n, a) in scene.arrivals.iter().enumerate() {
        queue.add(a.at, Event::Comes(n));
    }
    let hedge_after = Span::from_nanos((scene.hedge_after_ms.min(1e6) * 1e6) as u64);
    while let Some((now, event)) = queue.pop() {
        let (Event::Comes(n) | Event::Hedge(n)) = event;
        let (a, mut try_no) = (&scene.arrivals[n], 0);
        let acting = &map.acting[map.pg(a.object)];
        let osd = match (choice, &event) {
            (_, Event::Hedge(_)) if ends[n] <= now => continue,
            (_, Event::Hedge(_)) => {
                try_no = 1;
                acting[1 + a.draw as usize % (acting.len() - 1)]
            }
            (Choice::Balance, _) => acting[a.draw as usize % acting.len()],
            (Choice::Best, _) => {
                let end = |osd: &&u16| cluster.would_end(now, **osd, a.work[0]);
                *acting.iter().min_by_key(end).expect("there are copies")
            }
            _ => acting[0],
        };
        played.tries += 1;
        let end = cluster.read(now, osd, a.work[try_no]) + ON_THE_WAY;
        ends[n] = ends[n].min(end);
        if choice == Choice::Hedged && try_no == 0 {
            queue.add(a.at + hedge_after, Event::Hedge(n));
        }
    }
    for ((read, a), end) in played.reads.iter_mut().zip(&scene.arrivals).zip(ends) {
        read.took = end.since(a.at);
    }
}

enum Event {
    Comes(usize),
    Ends(usize),
}

/// A stack of the layer alone, over a handle for each port.
struct Steered<'a> {
    scene: &'a Scene,
    map: OsdMap,
    cluster: Cluster,
    stack: Stack,
    /// Tries at OSDs, by the device that they came from.
    tries: Slab<(usize, Io)>,
    queue: EventQueue<Event>,
}

impl<'a> Steered<'a> {
    fn new(scene: &'a Scene, map: OsdMap) -> Steered<'a> {
        let size_bytes = OBJECTS * OBJECT_BYTES;
        let offer =
            Offer { size_bytes, block_bytes: 4096, io_bytes_max: OBJECT_BYTES, atomic_bytes: 4096, queue_max: 1 << 16 };
        let devices = 1 + HANDLES;
        let mut stack = Stack::new(StackConfig::default(), vec![offer; devices]);
        stack.push(Box::new(Osds::new()), (0..devices).map(Target::Device).collect());
        stack.start(Time::ZERO);
        let is_known = stack.tell(Time::ZERO, &Addressed::new(&OsdsControl::Map(map.clone())));
        assert!(is_known, "the layer takes the map");
        let mut queue = EventQueue::new();
        for (n, a) in scene.arrivals.iter().enumerate() {
            queue.add(a.at, Event::Comes(n));
        }
        Steered { scene, map, cluster: scene.cluster.clone(), stack, tries: Slab::new(), queue }
    }

    /// The OSD that a handle reads an object from: the primary, or the first copy in the handle's bucket.
    fn osd(&self, device: usize, offset: u64) -> u16 {
        let acting = &self.map.acting[self.map.pg(self.map.object(offset))];
        let is_there = |osd: &&u16| self.map.osds[usize::from(**osd)].port == Some(device as u8);
        if device == 0 { acting[0] } else { *acting.iter().find(is_there).unwrap_or(&acting[0]) }
    }

    fn play(mut self, played: &mut Played) {
        loop {
            let (next, wake) = (self.queue.next_at(), self.stack.next_wake());
            if next == Time::NEVER && (wake == Time::NEVER || self.stack.is_idle()) {
                return;
            }
            let now = next.min(wake);
            if wake <= next {
                self.stack.wake(now);
            } else {
                match self.queue.pop().expect("it has one").1 {
                    Event::Comes(n) => self.come(now, n),
                    Event::Ends(slot) => {
                        let (device, mut io) = self.tries.remove(slot);
                        io.data = Data::Zeroes;
                        self.stack.device_done(
                            now,
                            device,
                            Completion { io, outcome: Outcome::Done, dispatched_at: now },
                        );
                    }
                }
            }
            self.send(now, played);
            while let Some(done) = self.stack.next_done() {
                played.reads[done.io.tag as usize].took = now.since(done.io.arrived_at);
            }
        }
    }

    fn come(&mut self, now: Time, n: usize) {
        let offset = self.scene.arrivals[n].object * OBJECT_BYTES;
        let mut head = IoHead::new(Op::Read, VolumeKey::POOL, TenantId(1), offset, 4096, now);
        head.tag = n as u64;
        let offered = self.stack.offer(now, Io::new(head, Data::Absent));
        assert!(matches!(offered, Offered::Accepted(_)), "a read without a deadline isn't refused");
    }

    fn send(&mut self, now: Time, played: &mut Played) {
        while let Some((device, io)) = self.stack.next_device_io() {
            let osd = self.osd(device, io.offset);
            let read = self.read_of(&io);
            played.tries += 1;
            let end = self.cluster.read(now, osd, read) + ON_THE_WAY;
            let slot = self.tries.insert((device, io));
            self.queue.add(end, Event::Ends(slot));
        }
    }

    /// The work of a try: that of the read's first if none is under way for it, else of its second.
    fn read_of(&self, io: &Io) -> Span {
        let is_second = self.tries.iter().any(|(_, (_, other))| other.arrived_at == io.arrived_at);
        let at = self.scene.arrivals.binary_search_by_key(&io.arrived_at, |a| a.at).expect("it came then");
        self.scene.arrivals[at].work[usize::from(is_second)]
    }
}
