//! A modelled Ceph cluster: OSDs on hosts in racks, each with a queue of its own, and few of them slow.

use plimsoll_base::{Rng, Span, Time};
use plimsoll_sched::osds::{Bucket, Crush, Level, OsdMap, OsdPlace};

/// Bytes of an object.
pub const OBJECT_BYTES: u64 = 4 << 20;
/// Requests that an OSD serves at once.
const SERVERS: usize = 4;
/// Mean time of a read at an OSD that is well, and the spread of its logarithm.
const SERVICE: Span = Span::from_micros(250);
const SPREAD: f64 = 0.5;
/// Time of a read on the network and in the libraries.
pub const ON_THE_WAY: Span = Span::from_micros(300);
/// Share of an OSD's capacity that the reads of other gateways take.
const LOAD: f64 = 0.4;
/// Other gateways' reads that are older than this have left no trace. At an OSD that stops or is near its capacity, traces stay for longer.
const MEMORY: Span = Span::from_millis(10);
const MEMORY_OF_SLOW: Span = Span::from_millis(400);
/// A slow OSD stops for the first part of each period.
const PERIOD: Span = Span::from_millis(100);
const STOPPED: Span = Span::from_millis(30);
/// Copies of an object.
const COPIES: usize = 3;
/// Racks of a cluster that has enough hosts.
const RACKS: u16 = 8;

/// The fault of an OSD.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// It serves nothing for 30 of every 100 ms.
    Stops,
    /// Each request takes twice as long.
    Worn,
}

/// The shape of a cluster.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shape {
    /// Number of OSDs.
    pub osds: u16,
    /// OSDs of a host.
    pub of_host: u16,
    /// Placement groups.
    pub groups: u32,
    /// OSDs that are slow.
    pub slow: u16,
}

impl Shape {
    fn hosts(self) -> u16 {
        self.osds / self.of_host
    }

    /// The rack of an OSD. A small cluster has a host in each rack.
    pub fn rack(self, osd: u16) -> u16 {
        self.host(osd) % self.hosts().min(RACKS)
    }

    /// The host of an OSD.
    pub fn host(self, osd: u16) -> u16 {
        osd / self.of_host
    }

    /// OSDs of each group, the primary first: in racks of their own, as CRUSH places them, but at random.
    fn acting(self, rng: &mut Rng) -> Vec<Vec<u16>> {
        let mut group = || {
            let mut of: Vec<u16> = Vec::new();
            while of.len() < COPIES {
                let osd = rng.below(u64::from(self.osds)) as u16;
                if of.iter().all(|o| self.rack(*o) != self.rack(osd)) {
                    of.push(osd);
                }
            }
            of
        };
        (0..self.groups).map(|_| group()).collect()
    }

    /// The hosts and the racks.
    pub fn crush(self) -> Crush {
        let level = |name: &str, of: &dyn Fn(u16) -> u16| {
            let mut level = Level::new();
            for osd in 0..self.osds {
                level.entry(format!("{name}{}", of(osd))).or_default().insert(u32::from(osd));
            }
            (name.to_string(), level)
        };
        Crush { levels: vec![level("host", &|osd| self.host(osd)), level("rack", &|osd| self.rack(osd))] }
    }

    /// Map of an image in the cluster.
    pub fn map(self, seed: u64) -> OsdMap {
        let place = |n: u16| OsdPlace { number: u32::from(n), host: format!("host{}", self.host(n)), port: None };
        OsdMap {
            epoch: 1,
            prefix: "rbd_data.1".into(),
            object_bytes: OBJECT_BYTES,
            start: 0,
            acting: self.acting(&mut Rng::new(seed, "groups")),
            osds: (0..self.osds).map(place).collect(),
        }
    }
}

#[derive(Clone)]
struct Osd {
    free_at: [Time; SERVERS],
    others: Rng,
    seen_until: Time,
    /// With the offset of its periods.
    fault: Option<(Fault, Span)>,
}

impl Osd {
    /// Index of the server that is free first.
    fn first_free(&self) -> usize {
        (0..SERVERS).min_by_key(|s| self.free_at[*s]).expect("there are servers")
    }

    /// The end of work of this length that may begin at `start`.
    fn end(&self, start: Time, work: Span) -> Time {
        match self.fault {
            None => start + work,
            Some((Fault::Worn, _)) => start + work * 2,
            Some((Fault::Stops, offset)) => {
                let (mut at, mut left) = (start, work);
                loop {
                    let into = Span::from_nanos((at + offset).as_nanos() % PERIOD.as_nanos());
                    at += STOPPED.saturating_sub(into);
                    let runs = PERIOD - into.max(STOPPED);
                    if left <= runs {
                        return at + left;
                    }
                    at += runs;
                    left -= runs;
                }
            }
        }
    }

    fn take(&mut self, now: Time, work: Span) -> Time {
        let server = self.first_free();
        let end = self.end(now.max(self.free_at[server]), work);
        self.free_at[server] = end;
        end
    }

    /// Plays the other gateways' reads up to `now`.
    fn advance(&mut self, now: Time) {
        let memory = if self.fault.is_some() { MEMORY_OF_SLOW } else { MEMORY };
        let mut at = self.seen_until.max(Time::ZERO + now.since(Time::ZERO).saturating_sub(memory));
        let between = SERVICE.as_nanos() as f64 / (LOAD * SERVERS as f64);
        loop {
            at += Span::from_nanos((self.others.exp1() * between) as u64);
            if at > now {
                break;
            }
            let work = service(&mut self.others);
            self.take(at, work);
        }
        // An exponential gap has no memory: the next one may begin here.
        self.seen_until = now;
    }
}

/// The time of a read at an OSD that is well and free.
pub fn service(rng: &mut Rng) -> Span {
    Span::from_nanos((SERVICE.as_nanos() as f64 * (SPREAD * rng.normal() - SPREAD * SPREAD / 2.0).exp()) as u64)
}

/// Gives the OSDs of a map the ports of the handles that read from these buckets.
pub fn read_from(map: &mut OsdMap, crush: &Crush, buckets: &[Bucket]) {
    for osd in &mut map.osds {
        osd.port = buckets.iter().position(|b| crush.has(b, osd.number)).map(|at| at as u8 + 1);
    }
}

/// See the module's documentation.
#[derive(Clone)]
pub struct Cluster {
    osds: Vec<Osd>,
}

impl Cluster {
    /// A cluster whose OSDs are well but for `shape.slow` of them with this fault.
    pub fn new(shape: Shape, fault: Option<Fault>, seed: u64) -> Cluster {
        let mut rng = Rng::new(seed, "osds");
        let mut osd = |_| Osd {
            free_at: [Time::ZERO; SERVERS],
            others: rng.split("others"),
            seen_until: Time::ZERO,
            fault: None,
        };
        let mut osds: Vec<Osd> = (0..shape.osds).map(&mut osd).collect();
        let mut order: Vec<u16> = (0..shape.osds).collect();
        rng.shuffle(&mut order);
        for n in &order[..usize::from(shape.slow)] {
            let offset = Span::from_nanos(rng.below(PERIOD.as_nanos()));
            osds[usize::from(*n)].fault = fault.map(|f| (f, offset));
        }
        Cluster { osds }
    }

    /// Returns whether an OSD has the fault.
    pub fn is_slow(&self, osd: u16) -> bool {
        self.osds[usize::from(osd)].fault.is_some()
    }

    /// A read comes to an OSD: when it ends there. Time must not go back.
    pub fn read(&mut self, now: Time, osd: u16, work: Span) -> Time {
        let osd = &mut self.osds[usize::from(osd)];
        osd.advance(now);
        osd.take(now, work)
    }

    /// The time at which a read would end there.
    pub fn would_end(&mut self, now: Time, osd: u16, work: Span) -> Time {
        let osd = &mut self.osds[usize::from(osd)];
        osd.advance(now);
        osd.end(now.max(osd.free_at[osd.first_free()]), work)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: Shape = Shape { osds: 30, of_host: 3, groups: 1024, slow: 1 };

    fn ms(n: u64) -> Time {
        Time::ZERO + Span::from_millis(n)
    }

    #[test]
    fn copies_are_in_racks_of_their_own() {
        let map = SHAPE.map(1);
        assert!(map.is_sound() && map.acting.len() == 1024);
        for of in &map.acting {
            let mut racks: Vec<u16> = of.iter().map(|o| SHAPE.rack(*o)).collect();
            racks.sort_unstable();
            racks.dedup();
            assert_eq!(racks.len(), COPIES);
        }
    }

    #[test]
    fn an_osd_that_stops_works_in_the_rest_of_its_period() {
        let osd = Osd {
            free_at: [Time::ZERO; SERVERS],
            others: Rng::new(1, "o"),
            seen_until: Time::ZERO,
            fault: Some((Fault::Stops, Span::ZERO)),
        };
        assert_eq!(osd.end(ms(0), Span::from_millis(1)), ms(31));
        assert_eq!(osd.end(ms(29), Span::from_millis(1)), ms(31));
        assert_eq!(osd.end(ms(40), Span::from_millis(1)), ms(41));
        assert_eq!(osd.end(ms(99), Span::from_millis(2)), ms(131), "one before the stop, one after");
        assert_eq!(osd.end(ms(30), Span::from_millis(140)), ms(200), "70 in each period");
    }

    #[test]
    fn other_gateways_take_their_share_however_seldom_one_looks() {
        // Reads wait for others' at rates of looking that differ a hundredfold, and for about as long.
        let mean = |gap: Span| {
            let mut cluster = Cluster::new(Shape { slow: 0, ..SHAPE }, None, 7);
            let (mut now, mut waited, mut rng) = (Time::ZERO, Span::ZERO, Rng::new(3, "reads"));
            for _ in 0..20_000 {
                now += gap;
                let work = service(&mut rng);
                waited += cluster.would_end(now, 5, work).since(now) - work;
            }
            1000.0 * waited.as_millis_f64() / 20_000.0
        };
        let (often, seldom) = (mean(Span::from_micros(500)), mean(Span::from_millis(50)));
        assert!(often > 1.0 && (often / seldom - 1.0).abs() < 0.25, "{often} us, {seldom} us");
    }
}
