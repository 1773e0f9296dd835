//! A drawn pool: its layers, devices, volumes and tenants, and the node's configuration that has them.

use plimsoll_base::Rng;
use std::fmt::Write;

/// Bytes of the pool's device in a live node.
const DEVICE: &str = "64MiB";
/// Bytes of the cache's device in a live node.
const FAST: &str = "40MiB";

/// Planted lies of a live node's volatile devices, which the oracle must find.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Lies {
    /// Flushes make nothing durable.
    pub flush: bool,
    /// FUA is ignored.
    pub fua: bool,
}

/// `[pool.logs]`
#[derive(Clone, Debug)]
pub struct LogsPlan {
    logged_write_kib: u64,
    idle_ms: u64,
    clean_when_idle: bool,
    adaptive: bool,
    every_ms: Option<u64>,
}

/// `[pool.cache]`
#[derive(Clone, Debug)]
pub struct CachePlan {
    mode: &'static str,
    extent_kib: u64,
    weu_kib: u64,
    /// In WEUs.
    size_weus: u64,
    codec: &'static str,
    dedup: &'static str,
    fingerprints_percent: u64,
    per_volume: bool,
    eviction: &'static str,
    admission: &'static str,
    watermark_percent: u64,
    free_percent: u64,
    trim: bool,
    prefetch_kib: u64,
    /// It has NVRAM, part of its format.
    pub nvram: bool,
    model: Option<&'static str>,
}

impl CachePlan {
    fn part_weus(&self) -> u64 {
        self.size_weus / TENANTS.len() as u64
    }
}

/// `fence = { … }`
#[derive(Clone, Debug)]
pub struct FencePlan {
    slots: u64,
    slot_ms: u64,
    lend_permille: u64,
    steady: bool,
}

/// A volume of the plan.
#[derive(Clone, Debug)]
pub struct VolumePlan {
    /// Its name.
    pub name: &'static str,
    /// Bytes when it is made.
    pub size_bytes: u64,
    /// Its cache mode when it is made; the pool's if `None`.
    pub cache: Option<&'static str>,
    /// Its tenant: a place in [`TENANTS`].
    pub tenant: usize,
}

/// Names of the tenants.
pub const TENANTS: [&str; 3] = ["a", "b", "c"];
/// Bytes that a volume may grow to.
pub const VOLUME_BYTES_MAX: u64 = 1 << 20;
/// Names of pools, and of their volumes.
const NAMES: [(&str, [&str; 3]); 2] = [("p", ["v0", "v1", "v2"]), ("q", ["w0", "w1", "w2"])];

/// See the module's documentation.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The seed that it was drawn from.
    pub seed: u64,
    /// The pool's name.
    pub pool: &'static str,
    sched: &'static str,
    depth: u64,
    memory_kib: Option<u64>,
    cores: Option<(u64, &'static str, u64)>,
    /// Volumes may have limits.
    pub throttled: bool,
    /// Requests per second of the last volume, if it has a limit.
    pub limit_iops: Option<u64>,
    /// It runs live.
    is_live: bool,
    /// It serves its volumes over NVMe/TCP, too, as [`Plan::nqn`] says.
    pub nvme: bool,
    /// Scattered logs, if it has any; part of the device's format.
    pub logs: Option<LogsPlan>,
    /// A flash cache, if it has one.
    pub cache: Option<CachePlan>,
    /// Time slots, if it has any.
    pub fence: Option<FencePlan>,
    model: Option<&'static str>,
    /// The main device, and the cache's, lose what wasn't flushed when the node is killed.
    pub volatile: [bool; 2],
    lies: Lies,
    /// The classes of [`TENANTS`].
    classes: [&'static str; 3],
    /// The volumes.
    pub volumes: Vec<VolumePlan>,
}

fn one_of<T: Copy>(rng: &mut Rng, all: &[T]) -> T {
    all[rng.below(all.len() as u64) as usize]
}

const POLICIES: [&str; 9] = [
    "qwin",
    "qwin-window",
    "share-everything",
    "partial-sharing",
    "two-priorities",
    "cake",
    "shenango",
    "static",
    "mclock",
];
const MODES: [&str; 3] = ["off", "through", "back"];

impl Plan {
    /// Draws a plan. `live`: for a node in real time, where a modelled disk's seconds are real ones.
    pub fn draw(seed: u64, live: bool) -> Plan {
        Plan::drawn(&mut Rng::new(seed, "chaos plan"), seed, live, NAMES[0])
    }

    /// Draws the plan of a second pool for the same live node; about half of the nodes have one.
    pub fn draw_second(seed: u64) -> Option<Plan> {
        let rng = &mut Rng::new(seed, "chaos second plan");
        rng.chance(0.6).then(|| Plan::drawn(rng, seed, true, NAMES[1]))
    }

    fn drawn(rng: &mut Rng, seed: u64, live: bool, (pool, names): (&'static str, [&'static str; 3])) -> Plan {
        let disks: &[&'static str] =
            if live { &["nvme-modern"] } else { &["hdd-160g-7200", "hp-c2247a", "nvme-modern", "vf-sata-60g"] };
        let model = rng.chance(if live { 0.15 } else { 0.35 }).then(|| one_of(rng, disks));
        let cache = rng.chance(0.7).then(|| CachePlan {
            mode: "through",
            extent_kib: one_of(rng, &[4, 8, 8, 16, 32]),
            weu_kib: one_of(rng, &[128, 256]),
            size_weus: 0,
            codec: "none",
            dedup: "off",
            fingerprints_percent: 100,
            per_volume: false,
            eviction: "lru",
            admission: "all",
            watermark_percent: 30,
            free_percent: 0,
            trim: true,
            prefetch_kib: 0,
            nvram: rng.chance(0.3),
            model: rng.chance(0.15).then_some("nvme-modern"),
        });
        let logs = rng.chance(0.45).then_some(LogsPlan {
            logged_write_kib: 2,
            idle_ms: 2,
            clean_when_idle: true,
            adaptive: true,
            every_ms: None,
        });
        let mut volumes = Vec::new();
        for (tenant, name) in names.into_iter().enumerate() {
            let size_bytes = one_of(rng, &[192 << 10, (300 << 10) + 512, (500 << 10) + 1536]);
            let cache = (cache.is_some() && rng.chance(0.7)).then(|| one_of(rng, &MODES));
            volumes.push(VolumePlan { name, size_bytes, cache, tenant });
        }
        let mut plan = Plan {
            seed,
            pool,
            sched: "noop",
            depth: 8,
            memory_kib: None,
            cores: None,
            throttled: false,
            limit_iops: None,
            is_live: live,
            nvme: false,
            logs,
            cache,
            fence: None,
            model,
            volatile: [rng.chance(0.6), rng.chance(0.6)],
            lies: Lies::default(),
            classes: ["best-effort"; 3],
            volumes,
        };
        plan.draw_the_rest(rng, live);
        plan
    }

    /// Draws a plan for a later start: all that isn't part of a format may differ.
    #[must_use]
    pub fn otherwise(&self, rng: &mut Rng, live: bool) -> Plan {
        let mut plan = self.clone();
        if rng.chance(0.5) {
            plan.draw_the_rest(rng, live);
        }
        plan
    }

    /// The same with devices that lie: both volatile.
    #[must_use]
    pub fn lying(&self, lies: Lies) -> Plan {
        Plan { lies, volatile: [true; 2], ..self.clone() }
    }

    fn draw_the_rest(&mut self, rng: &mut Rng, live: bool) {
        let flash = self.model.is_some_and(|m| m.contains("nvme") || m.contains("sata"));
        let scheds: &[&'static str] = if flash {
            &["noop", "deadline", "cfq", "blackbox", "auto", "ssd", "ssd"]
        } else {
            &["noop", "deadline", "cfq", "blackbox", "auto"]
        };
        self.sched = one_of(rng, scheds);
        self.depth = one_of(rng, &[1, 2, 8, 32]);
        self.memory_kib = rng.chance(0.45).then(|| one_of(rng, &[16, 64, 256, 4096]));
        let policy = one_of(rng, &POLICIES);
        self.cores = rng.chance(0.35).then(|| (1 + rng.below(4), policy, 1 + rng.below(3)));
        // Slots last long: live, they would be most of a run.
        self.fence = rng.chance(if live { 0.12 } else { 0.25 }).then(|| FencePlan {
            slots: 3 + rng.below(4),
            slot_ms: one_of(rng, if live { &[20, 25] } else { &[20, 25, 40, 100] }),
            lend_permille: one_of(rng, &[0, 10, 1000]),
            steady: rng.chance(0.5),
        });
        self.classes = match self.cores {
            Some(_) => ["latency-critical", "best-effort", one_of(rng, &["best-effort", "latency-critical"])],
            None => ["best-effort"; 3],
        };
        if let Some(logs) = &mut self.logs {
            *logs = LogsPlan {
                logged_write_kib: one_of(rng, &[1, 2, 8, 16]),
                idle_ms: one_of(rng, &[2, 20, 500]),
                clean_when_idle: rng.chance(0.7),
                adaptive: rng.chance(0.5),
                every_ms: rng.chance(0.3).then(|| 20 + rng.below(300)),
            };
        }
        if let Some(c) = &mut self.cache {
            let per_volume = rng.chance(0.3);
            // Each volume has a part of four WEUs at least.
            let sizes: &[u64] = if per_volume { &[14, 30] } else { &[6, 8, 14, 30] };
            *c = CachePlan {
                mode: one_of(rng, &MODES),
                size_weus: one_of(rng, sizes),
                codec: one_of(rng, &["none", "lz4", "zstd"]),
                dedup: one_of(rng, &["off", "tenant", "pool"]),
                fingerprints_percent: one_of(rng, &[0, 25, 100]),
                per_volume,
                eviction: one_of(rng, &["lru", "live", "sieve", "s3fifo"]),
                // Of draws of its own: plans of seeds that found something stay as they were.
                admission: one_of(&mut Rng::new(self.seed, "admission"), &["all", "all", "second"]),
                watermark_percent: one_of(rng, &[5, 10, 30, 60]),
                free_percent: one_of(rng, &[0, 0, 20]),
                trim: rng.chance(0.8),
                prefetch_kib: one_of(rng, &[0, 64, 128]),
                ..c.clone()
            };
        }
        self.throttled = rng.chance(0.25);
        self.limit_iops = self.throttled.then(|| one_of(rng, &[500, 2000, 10_000]));
        self.nvme = live && rng.chance(0.5);
    }

    /// Bytes of the blocks that trims are cut to.
    pub fn block_bytes(&self) -> u64 {
        4096
    }

    /// True if the pool has a cache, so that its volumes have a cache mode.
    pub fn has_cache(&self) -> bool {
        self.cache.is_some()
    }

    /// Bytes of the cache that its configuration may be changed to while it serves.
    pub fn cache_sizes(&self) -> Option<[u64; 3]> {
        self.cache.as_ref().map(|c| {
            let least = if c.per_volume { c.part_weus() * TENANTS.len() as u64 } else { 6 };
            [least, least.max(10), 30].map(|weus| (weus * c.weu_kib) << 10)
        })
    }

    /// Bytes of the cache that each volume has where each has its own part.
    pub fn part_bytes(&self) -> u64 {
        self.cache.as_ref().map_or(0, |c| (c.part_weus() * c.weu_kib) << 10)
    }

    /// Returns two facts of the plan: the scheduler is CFQ; the policy of cores is one with slack (QWin).
    pub fn knobs(&self) -> (bool, bool) {
        (self.sched == "cfq", self.cores.is_some_and(|c| c.1.starts_with("qwin")))
    }

    /// True if faults may be injected. Only the live engine injects faults, beside the layers.
    pub fn injects(&self) -> bool {
        self.is_live
    }

    /// The NVMe subsystem of a volume.
    pub fn nqn(&self, volume: usize) -> String {
        format!("nqn.2026-11.chaos:{}", self.volumes[volume].name)
    }

    /// The most that `logged_write` may be set to.
    pub const LOGGED_WRITE_MAX: u64 = 16 << 10;

    /// One line for a report.
    pub fn summary(&self) -> String {
        let mut s = format!("seed {}: pool {}: {} depth {}", self.seed, self.pool, self.sched, self.depth);
        let mut add = |part: String| s += &format!(", {part}");
        if let Some(m) = self.model {
            add(format!("model {m}"));
        }
        if let Some(kib) = self.memory_kib {
            add(format!("memory {kib}KiB"));
        }
        if let Some((n, policy, _)) = self.cores {
            add(format!("{n} cores {policy}"));
        }
        if self.throttled {
            add(self.limit_iops.map_or("no limit".into(), |iops| format!("limit {iops}/s")));
        }
        if self.nvme {
            add("nvme".into());
        }
        if let Some(c) = &self.cache {
            let nvram = if c.nvram { " nvram" } else { "" };
            let sharing = if c.per_volume { " pervolume" } else { "" };
            add(format!(
                "cache {} extent {}KiB{nvram}{sharing} {} {} WEUs",
                c.mode, c.extent_kib, c.codec, c.size_weus
            ));
        }
        if self.logs.is_some() {
            add("logs".into());
        }
        if let Some(f) = &self.fence {
            add(format!("fence {}x{}ms", f.slots, f.slot_ms));
        }
        add(format!("volatile {:?}", self.volatile));
        s
    }

    /// The path of the pool's device, in the node's folder.
    pub fn device(&self) -> String {
        format!("{}-main.img", self.pool)
    }

    /// The configuration of a node with this pool.
    pub fn toml(&self) -> String {
        Plan::node_toml(&[self], &[true])
    }

    /// The configuration of a node with those of these pools that are in use. Tenants are those of the first.
    pub fn node_toml(plans: &[&Plan], used: &[bool]) -> String {
        let nvme = if plans.iter().any(|p| p.nvme) { "nvme_tcp = \"127.0.0.1:0\"\n" } else { "" };
        let mut t = format!(
            "[listen]\nunix = \"nbd.sock\"\n{nvme}[control]\nhttp = \"127.0.0.1:0\"\nunix = \"control.sock\"\n"
        );
        for (name, class) in TENANTS.iter().zip(plans[0].classes) {
            writeln!(t, "[[tenant]]\nname = \"{name}\"\nclass = \"{class}\"").expect("a string");
            if class == "latency-critical" {
                t += "objectives = [{ percentile = 99, within = \"20ms\" }]\n";
            }
        }
        for (plan, _) in plans.iter().zip(used).filter(|(_, used)| **used) {
            t += &plan.pool_toml();
        }
        t + "[[grant]]\npeer = \"local\"\nvolumes = [\"*\"]\ntenants = [\"*\"]\n"
    }

    /// The sections of the pool, its volumes and their subsystems.
    fn pool_toml(&self) -> String {
        let mut t = String::new();
        let mut line = |text: String| writeln!(t, "{text}").expect("a string");
        let lies = Lies { flush: self.lies.flush, fua: self.lies.fua };
        let volatile = |on: bool, seed: u64| match on {
            true => {
                format!(", volatile_cache = {{ seed = {seed}, flush_lies = {}, fua_lies = {} }}", lies.flush, lies.fua)
            }
            false => String::new(),
        };
        let pool = self.pool;
        line(format!("[[pool]]\nname = \"{pool}\"\ndepth = {}\nsched = \"{}\"", self.depth, self.sched));
        let model = self.model.map_or(String::new(), |m| format!(", model = \"{m}\""));
        let v = volatile(self.volatile[0], self.seed);
        line(format!("device = {{ file = \"{}\", size = \"{DEVICE}\"{model}{v} }}", self.device()));
        if let Some(kib) = self.memory_kib {
            line(format!("memory = \"{kib}KiB\""));
        }
        if let Some((cores, policy, depth)) = self.cores {
            line(format!("cores = {cores}\ncore_policy = \"{policy}\"\ncore_depth = {depth}"));
        }
        if self.throttled {
            line("throttle = true".into());
        }
        if let Some(f) = &self.fence {
            line(format!(
                "fence = {{ slots = {}, slot = \"{}ms\", hybrid = true, lend_permille = {}, steady = {}, device = \"flash\" }}",
                f.slots, f.slot_ms, f.lend_permille, f.steady
            ));
        }
        if let Some(l) = &self.logs {
            line("[pool.logs]\ngroup = \"1MiB\"\nlog = \"64KiB\"\nextents = 4096".into());
            line(format!("logged_write = \"{}KiB\"\nidle = \"{}ms\"", l.logged_write_kib, l.idle_ms));
            line(format!("clean_when_idle = {}\nadaptive = {}", l.clean_when_idle, l.adaptive));
            if let Some(ms) = l.every_ms {
                line(format!("every = \"{ms}ms\""));
            }
        }
        if let Some(c) = &self.cache {
            line(format!("[pool.cache]\nfile = \"{pool}-fast.img\"\ndevice_size = \"{FAST}\"\nmode = \"{}\"", c.mode));
            line(format!(
                "extent = \"{}KiB\"\nweu = \"{}KiB\"\nsize = \"{}KiB\"",
                c.extent_kib,
                c.weu_kib,
                c.size_weus * c.weu_kib
            ));
            line(format!("codec = \"{}\"\ndedup = \"{}\"", c.codec, c.dedup));
            line(format!("fingerprints_percent = {}", c.fingerprints_percent));
            line(format!("sharing = \"{}\"", if c.per_volume { "pervolume" } else { "shared" }));
            line(format!("eviction = \"{}\"\nadmission = \"{}\"", c.eviction, c.admission));
            line(format!("watermark_percent = {}\nfree_percent = {}", c.watermark_percent, c.free_percent));
            line(format!("trim = {}", c.trim));
            line(format!("prefetch = \"{}KiB\"", c.prefetch_kib));
            if c.nvram {
                line(format!("nvram = {{ file = \"{pool}-nvram.img\", size = \"8MiB\" }}"));
            }
            if let Some(m) = c.model {
                line(format!("model = \"{m}\""));
            }
            if self.volatile[1] {
                line(volatile(true, self.seed + 1).trim_start_matches(", ").to_string());
            }
        }
        for (n, v) in self.volumes.iter().enumerate() {
            line(format!("[[volume]]\nname = \"{}\"\npool = \"{pool}\"\nsize = \"{}B\"", v.name, v.size_bytes));
            line(format!("tenant = \"{}\"", TENANTS[v.tenant]));
            if let Some(mode) = v.cache.filter(|_| self.cache.is_some()) {
                line(format!("cache = \"{mode}\""));
            }
            if let Some(c) = self.cache.as_ref().filter(|c| c.per_volume) {
                line(format!("cache_size = \"{}KiB\"", c.part_weus() * c.weu_kib));
            }
            if self.fence.is_some() && n == 0 {
                line("slots = 1".into());
            }
            if let Some(iops) = self.limit_iops.filter(|_| n + 1 == self.volumes.len()) {
                line(format!("throttle = {{ iops = {iops} }}"));
            }
        }
        for n in (0..self.volumes.len()).filter(|_| self.nvme) {
            line(format!("[[subsystem]]\nnqn = \"{}\"\nexport = \"{}\"", self.nqn(n), self.volumes[n].name));
        }
        t
    }
}
