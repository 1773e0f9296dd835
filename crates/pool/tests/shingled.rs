//! Scattered logs over the bands of a host-managed drive: power is lost in the middle of everything that they do, and an oracle says of
//! each sector what it may hold. The drive is the zoned model, or a device that keeps its zones' pointers: both refuse a write that isn't
//! at its zone's pointer. Then the same with mistakes planted: each must be found.

use plimsoll_bands::{Bands, BandsConfig, Planted as BandsPlanted};
use plimsoll_base::*;
use plimsoll_device::smr::zoned::ZoneSpec;
use plimsoll_device::{DeviceOptions, DeviceSpec, Zones, ZonesSpec, profile};
use plimsoll_logs::{CleanConfig, Layout, Logs, LogsConfig, LogsControl, Planted as LogsPlanted, Shape};
use plimsoll_pool::{BandsPlan, LogsPlan, ModelPlan, PoolPlan, build, logs_layout, seen, zoned, zones_layout};
use plimsoll_stack::sim::oracle::{Ask, Oracle};
use plimsoll_stack::sim::{DiskFaults, SimDisk, SimPool};
use plimsoll_stack::{Extent, Front, FrontVolume, Layer, LayerState, Map, Message, Offer};
use std::collections::BTreeMap;

const SECTOR: u64 = 512;
const ZONE: u64 = 16 << 10;
/// One cylinder more than the zones that are used.
const DEVICE_BYTES: u64 = 60 * ZONE;

fn ms(n: u64) -> Span {
    Span::from_millis(n)
}

/// A disk of a megabyte: two surfaces, short tracks.
fn drive() -> DeviceSpec {
    let mut spec = profile::by_name("constellation-es3-1tb").unwrap();
    let g = &mut spec.geometry;
    (g.surfaces, g.cylinders) = (2, 40);
    g.zones.truncate(1);
    let zone = &mut g.zones[0];
    (zone.first_cylinder, zone.last_cylinder, zone.sectors_per_track, zone.spares) = (0, 39, 64, 0);
    let zones = ZoneSpec { zone_bytes: ZONE, conventional: 0, conventional_every: 4, open_max: 4 };
    DeviceSpec::Zoned(Box::new(spec), zones)
}

#[derive(Clone, Copy, Default)]
struct Mistakes {
    logs: Option<LogsPlanted>,
    bands: Option<BandsPlanted>,
}

fn plan(seed: u64, mistakes: Mistakes) -> PoolPlan {
    let patience = ms([0, 5, 50][seed as usize % 3]);
    let bands = BandsConfig {
        buffer_bytes: [24 << 10, 200 << 10][seed as usize % 2],
        io_bytes: 4 << 10,
        run_bytes: [8 << 10, ZONE][seed as usize / 3 % 2],
        patience,
        copy_patience: patience * 4,
        quiet: patience,
        resets: true,
        planted: mistakes.bands,
    };
    let clean = CleanConfig {
        idle_after: Some(ms(20)),
        batch_bytes: 16 << 10,
        when_used_percent: 0,
        when_idle: !seed.is_multiple_of(5),
        ..CleanConfig::default()
    };
    let logs = LogsConfig {
        logged_write_bytes: 4096,
        record_bytes_max: 8192,
        clean,
        image_every: ms(500),
        adaptive: false,
        swap_reach_groups: 0,
        off_below: Span::ZERO,
        witness_after: ms(5),
        planted: mistakes.logs,
        ..LogsConfig::default()
    };
    // Every fourth drive has no times, and keeps its pointers over a power loss.
    let keeps = seed % 4 == 1;
    let zones = ZonesSpec { zone_bytes: ZONE, conventional_every: 4, salt: seed, planted: None };
    PoolPlan {
        zones: keeps.then_some(zones),
        logs: Some(LogsPlan { shape: Shape { extents_max: 256, ..Shape::default() }, config: logs }),
        bands: Some(BandsPlan { zone_bytes: ZONE, free_every: 4, spares: 2, log_bytes: ZONE, salt: 0, config: bands }),
        model: (!keeps).then(|| ModelPlan { spec: drive(), options: DeviceOptions { seed, mismatch: 0.0 } }),
        ..PoolPlan::new()
    }
}

fn content(_: u32, sector: u64, version: u64) -> Vec<u8> {
    let words = if version == 0 { [0; 2] } else { [sector, version] };
    words.map(u64::to_le_bytes).concat().repeat(SECTOR as usize / 16)
}

fn empty_disk(seed: u64, faults: DiskFaults) -> SimDisk {
    let us = Span::from_micros;
    SimDisk::new(DEVICE_BYTES, (us(1), us(200)), seed, faults)
}

fn offer_of(disk: &SimDisk) -> Offer {
    let block = disk.block_bytes() as u32;
    Offer {
        size_bytes: disk.size_bytes(),
        block_bytes: block,
        io_bytes_max: 64 << 20,
        atomic_bytes: 512,
        queue_max: 64,
    }
}

/// The logs' layout, and a freshly formatted disk: the logs' pages lie in the unshingled zones that are shown as their head.
fn formatted(plan: &PoolPlan, seed: u64, faults: DiskFaults) -> (Layout, SimDisk) {
    let mut disk = empty_disk(seed, faults);
    let offer = offer_of(&disk);
    if let Some(spec) = plan.zones {
        let (at, bytes) = zones_layout(spec, offer).unwrap().format();
        disk.write_durably(at, &bytes);
    }
    let device = seen(plan.model.as_ref(), zoned(plan.zones, offer).unwrap()).unwrap().offer;
    let (layout, places) = logs_layout(plan.logs.as_ref().unwrap(), plan.bands.as_ref(), device).unwrap();
    let places = places.expect("bands are planned");
    plimsoll_bands::format_device(&places).into_iter().for_each(|(at, bytes)| disk.write_durably(at, &bytes));
    for (at, bytes) in plimsoll_logs::format_device(&layout) {
        let mut done = 0;
        for place in places.of(at, at + bytes.len() as u64) {
            let plimsoll_bands::Place::Free { at, len } = place else { panic!("logs' pages in a band: {place:?}") };
            disk.write_durably(at, &bytes[done..done + len as usize]);
            done += len as usize;
        }
    }
    (layout, disk)
}

struct Life {
    pool: SimPool,
    oracle: Oracle,
}

/// A pool over a disk as it is.
fn started(plan: &PoolPlan, disk: SimDisk, oracle: Oracle, sectors: u64, checked: bool) -> Result<Life, String> {
    let pool = SimPool::with_stack(vec![disk], |offers| build(plan, offers).unwrap());
    let mut pool = if checked { pool } else { pool.unchecked() };
    let volume = FrontVolume { size_bytes: sectors * SECTOR, read_only: false };
    let key = oracle.key(0);
    pool.with_layer(|f: &mut Front, _| f.set_volume(key, volume));
    pool.with_layer(|m: &mut Map, _| m.set_volume(key, &[Extent { device_offset: 0, len: sectors * SECTOR }]));
    if pool.start() != LayerState::Ready {
        let (logs, bands) = (pool.stack().layer::<Logs>().unwrap().problem(), pool.stack().layer::<Bands>().unwrap());
        return Err(format!("it isn't ready: logs {logs:?}, bands {:?}", bands.problem()));
    }
    Ok(Life { pool, oracle })
}

impl Life {
    /// Reads everything.
    fn all(&mut self, sectors: u64) -> Result<Vec<Vec<u8>>, String> {
        let (len, now) = (sectors * SECTOR, self.pool.now());
        let head = IoHead::new(Op::Read, self.oracle.key(0), TenantId(1), 0, len, now);
        self.pool.offer(now, Io::new(head, Data::Absent));
        let c = loop {
            if let Some(c) = self.pool.next_done() {
                break c;
            }
            self.pool.step().ok_or("the read never ends")?;
        };
        if !c.outcome.is_done() {
            return Err(format!("the read ended {:?}", c.outcome));
        }
        let mut bytes = vec![0; len as usize];
        c.io.data.copy_to(&mut bytes);
        Ok(vec![bytes])
    }

    fn ask(&mut self, ask: Ask) {
        let now = self.pool.now();
        let io = self.oracle.ask(ask, now);
        self.pool.offer(now, io);
    }

    fn hear(&mut self, may_fail: bool) -> Result<(), String> {
        while let Some(c) = self.pool.next_done() {
            if !c.outcome.is_done() && may_fail {
                self.oracle.failed(&c);
            } else {
                self.oracle.ended(&c)?;
            }
        }
        let refused = self.pool.stack().layer::<Zones>().and_then(|z| z.refusal());
        if let Some(refused) = refused {
            return Err(format!("the zones refused a {refused}"));
        }
        let failed = self.pool.stack().layer::<Bands>().unwrap().counters().failed;
        if failed > 0 && !may_fail { Err(format!("{failed} copies of bands failed")) } else { Ok(()) }
    }

    /// Names the work under way.
    fn phase(&mut self) -> &'static str {
        let copying = self.pool.stack().layer::<Bands>().unwrap().status().copying.is_some();
        let a = self.pool.stack().layer::<Logs>().unwrap().activity();
        match (a.cleaning.is_some(), a.image, copying) {
            (true, _, true) => "cleaning, band copied",
            (true, true, false) => "cleaning, table",
            (true, false, false) => "cleaning",
            (false, _, true) => "band copied",
            (false, true, false) => "table",
            (false, false, false) => "other",
        }
    }
}

/// The client's next request; `None`: time passes.
fn next_ask(rng: &mut Rng, (base, span): (u64, u64), sectors: u64) -> Option<Ask> {
    let first = base + rng.below(span);
    let most = if rng.chance(0.15) { 80 } else { 8 };
    let len = (1 + rng.below(most)).min(sectors - first);
    let op = match rng.below(20) {
        0..10 => Op::Write,
        10 => [Op::WriteZeroes, Op::Trim][rng.below(2) as usize],
        11..14 => Op::Read,
        14 | 15 => Op::Flush,
        _ => return None,
    };
    let (first, len) = if op == Op::Flush { (0, 0) } else { (first, len) };
    Some(Ask { op, volume: 0, first, len, fua: op == Op::Write && rng.chance(0.25) })
}

#[derive(Default)]
struct Tally {
    losses: u64,
    lives: u64,
    copied: u64,
    checkpoints: u64,
    swaps: u64,
    phases: BTreeMap<&'static str, u64>,
}

/// Power losses on copies of the running pool's disk, starts, and the oracle's verdict; some lives go on and lose it again.
fn cut(
    life: &mut Life,
    plan: &PoolPlan,
    sectors: u64,
    rng: &mut Rng,
    t: &mut Tally,
    checked: bool,
) -> Result<(), String> {
    let (mut disk, mut oracle) = (life.pool.disk(0).clone(), life.oracle.clone());
    for n in 0..3 {
        t.losses += 1;
        disk.lose_power();
        disk.set_faults(DiskFaults::default());
        let mut next = started(plan, disk, oracle, sectors, checked)?;
        let found = next.all(sectors)?;
        next.oracle.check(&found).map_err(|e| format!("life {n}: {e}"))?;
        if n == 2 || !rng.chance(0.2) {
            return Ok(());
        }
        t.lives += 1;
        for _ in 0..rng.below(80) {
            if let Some(ask) = next_ask(rng, (0, sectors), sectors) {
                next.ask(ask);
            }
            next.pool.step();
            next.hear(false)?;
        }
        (disk, oracle) = (next.pool.disk(0).clone(), next.oracle);
    }
    Ok(())
}

fn run(seed: u64, mistakes: Mistakes, cuts: f64, t: &mut Tally) -> Result<(), String> {
    let plan = plan(seed, mistakes);
    // A planted mistake is the oracle's to find, not the stack's.
    let checked = mistakes.logs.is_none() && mistakes.bands.is_none();
    let mut rng = Rng::new(seed, "shingled");
    let at = Some(1 + rng.below(60));
    let faults = match seed % 8 {
        3 => DiskFaults { flush_fails_at: at, ..DiskFaults::default() },
        6 => DiskFaults { fua_fails_at: at, ..DiskFaults::default() },
        _ => DiskFaults::default(),
    };
    let faulty = matches!(seed % 8, 3 | 6);
    let (layout, disk) = formatted(&plan, seed, faults);
    let sectors = layout.home_bytes / SECTOR;
    let mut life = started(&plan, disk, Oracle::new(1, sectors, content), sectors, checked)?;
    let narrow = (rng.below(sectors - 150), 150);
    let span = [(0, sectors), narrow, narrow][rng.below(3) as usize];
    let mut lost = false;
    for _ in 0..250 {
        match next_ask(&mut rng, span, sectors) {
            Some(ask) => life.ask(ask),
            None => {
                if rng.chance(0.1) {
                    let now = life.pool.now();
                    let asked = Message::encode(&LogsControl::Checkpoint);
                    life.pool.with_layer(|l: &mut Logs, out| Layer::told(l, now, &asked, out));
                }
                // Sometimes so long that idle time begins, and is used.
                let most = if rng.chance(0.2) { 300 } else { 30 };
                for _ in 0..rng.below(most) {
                    life.pool.step();
                    if !lost && life.pool.disk(0).has_failed() {
                        lost = true;
                        life.oracle.device_lost();
                    }
                    life.hear(faulty)?;
                    if rng.chance(cuts) {
                        *t.phases.entry(life.phase()).or_default() += 1;
                        cut(&mut life, &plan, sectors, &mut rng, t, checked)?;
                    }
                }
            }
        }
        life.hear(faulty)?;
    }
    t.copied += life.pool.stack().layer::<Bands>().unwrap().counters().copied;
    let counters = life.pool.stack().layer::<Logs>().unwrap().counters();
    (t.checkpoints, t.swaps) = (t.checkpoints + counters.checkpoints, t.swaps + counters.swaps);
    Ok(())
}

/// Many more with `PLIMSOLL_CRASH_SEEDS=500`.
#[test]
fn nothing_promised_is_lost_at_any_instant() {
    let seeds = std::env::var("PLIMSOLL_CRASH_SEEDS").map_or(24, |n| n.parse().expect("a number"));
    let mut t = Tally::default();
    for seed in 0..seeds {
        run(seed, Mistakes::default(), 0.1, &mut t).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
    }
    println!("{} power losses ({} after an earlier one), {:?}", t.losses, t.lives, t.phases);
    println!("{} bands copied, {} checkpoints, {} swaps", t.copied, t.checkpoints, t.swaps);
    assert!(t.losses > 2000 && t.lives > 200 && t.copied > 200 && t.checkpoints > 50 && t.swaps > 0);
    for phase in ["cleaning, band copied", "cleaning, table", "cleaning", "band copied", "table", "other"] {
        assert!(t.phases.get(phase).copied().unwrap_or(0) > 10, "hardly any power loss during {phase}");
    }
}

/// Tests of the test: mistakes of each of the two layers that show only, or also, in both together. An assertion that ends a run finds
/// nothing.
#[test]
fn every_planted_mistake_is_found() {
    let bands = |m| Mistakes { bands: Some(m), ..Mistakes::default() };
    let logs = |m| Mistakes { logs: Some(m), ..Mistakes::default() };
    let of_bands = [BandsPlanted::MapBeforeData, BandsPlanted::InPlace, BandsPlanted::FlushNotPassed];
    let of_logs = [LogsPlanted::ImageNotFlushed, LogsPlanted::ResetTooEarly, LogsPlanted::KillTooEarly];
    let planted: Vec<(String, Mistakes)> = BandsPlanted::OF_COPIES
        .into_iter()
        .chain(of_bands)
        .map(|m| (format!("bands: {m:?}"), bands(m)))
        .chain(of_logs.into_iter().map(|m| (format!("logs: {m:?}"), logs(m))))
        .collect();
    let mut missed = Vec::new();
    for (name, mistakes) in planted {
        let found = (0..200).find_map(|seed| {
            let run = || run(seed, mistakes, 0.1, &mut Tally::default());
            let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run));
            ended.ok()?.err().map(|e| (seed, e))
        });
        match found {
            Some((seed, e)) => println!("{name}: seed {seed}: {e}"),
            None => missed.push(name),
        }
    }
    assert!(missed.is_empty(), "not found: {missed:?}");
}

/// The logs have the data of their copies until the bands are written: a client that flushes meanwhile waits for none of them.
#[test]
fn a_clients_flush_ends_while_a_band_is_copied() {
    let plan = plan(7, Mistakes::default());
    let (layout, disk) = formatted(&plan, 1, DiskFaults::default());
    let sectors = layout.home_bytes / SECTOR;
    let mut life = started(&plan, disk, Oracle::new(1, sectors, content), sectors, true).unwrap();
    let bands_copied = |life: &mut Life| life.pool.stack().layer::<Bands>().unwrap().counters().copied;
    for n in 0..8 {
        life.ask(Ask { op: Op::Write, volume: 0, first: n * 100, len: 2, fua: true });
    }
    let mut ended = 0;
    while ended < 8 {
        life.pool.step().expect("writes end");
        while life.pool.next_done().is_some() {
            ended += 1;
        }
    }
    let (now, asked) = (life.pool.now(), Message::encode(&LogsControl::Checkpoint));
    life.pool.with_layer(|l: &mut Logs, out| Layer::told(l, now, &asked, out));
    while life.phase() != "cleaning, band copied" {
        life.pool.step().expect("a band is copied");
    }
    let before = bands_copied(&mut life);
    life.ask(Ask { op: Op::Flush, volume: 0, first: 0, len: 0, fua: false });
    let ended = loop {
        if let Some(c) = life.pool.next_done() {
            break c;
        }
        life.pool.step().expect("the flush ends");
    };
    assert!(ended.io.op == Op::Flush && ended.outcome.is_done());
    assert_eq!(bands_copied(&mut life), before, "it waited for a band's copy");
    life.pool.run();
    assert!(bands_copied(&mut life) > before);
}
