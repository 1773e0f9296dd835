//! The pool that is served is the pool that is simulated: what a node makes of its configuration is the plan that an experiment makes.
//!
//! A simulation sets a few things that no configuration has. They are named in [`as_configured`], and nothing else may differ.

use plimsoll_base::{CacheMode, Span};
use plimsoll_cache::{CacheConfig, Shape};
use plimsoll_cores::PolicyConfig;
use plimsoll_device::DeviceOptions;
use plimsoll_lab::experiment::{composed, fence, manylogs};
use plimsoll_lab::nitro::machine::{self, Behind, Front, Setup};
use plimsoll_lab::system::node::disk_plan;
use plimsoll_logs::LogsConfig;
use plimsoll_node::config::Config;
use plimsoll_node::plan::{Facts, plan};
use plimsoll_pool::{PoolPlan, UNLIMITED};
use plimsoll_profile::profile_of;
use plimsoll_replay::DeviceChoice;
use plimsoll_sched::{SchedulerKind, SchedulerOptions};
use std::fmt::Write as _;
use std::path::Path;

const DISK: &str = "hdd-160g-7200";

/// The node's plan of a pool with these keys, which begin with the pool's own.
fn configured(keys: &str, change: impl FnOnce(&mut Facts)) -> PoolPlan {
    let text = format!("listen.unix = \"nbd.sock\"\n[[pool]]\nname = \"main\"\n{keys}");
    let config = Config::parse(&text, Path::new("/lab/node.toml")).unwrap_or_else(|e| panic!("{e}\n{text}"));
    let mut facts = Facts::of_files(&config.pool[0]).expect("profiles can be read");
    change(&mut facts);
    plan(&config.pool[0], &facts, UNLIMITED).unwrap_or_else(|e| panic!("{e}\n{text}"))
}

/// A simulated pool's plan with all that only a simulation sets as a node sets it.
fn as_configured(mut simulated: PoolPlan, node: &PoolPlan) -> PoolPlan {
    // Devices that differ from their specification, by the seed.
    let cached = simulated.cache.as_mut().and_then(|c| c.model.as_mut());
    simulated.model.iter_mut().chain(cached).for_each(|m| m.options = DeviceOptions::default());
    // Accepted requests are served however late they are, so that forecasts can be compared with what happens.
    simulated.scheduler.options.late = SchedulerOptions::default().late;
    // Reads are accepted by their forecast alone, as published.
    simulated.admission = node.admission;
    if let Some(cores) = &mut simulated.cores {
        cores.revoke_late = true;
        if let PolicyConfig::Qwin(qwin) = &mut cores.policy {
            qwin.bound_writes = true; // not in the paper
        }
    }
    if let (Some(fence), Some(node)) = (&mut simulated.fence, &node.fence) {
        fence.revoke_late = true;
        // Fitted on the very drives.
        assert_eq!(fence.devices.len(), node.devices.len());
        fence.devices.clone_from(&node.devices);
    }
    // The cache takes sequential reads like any others, and the logs are used from their first write on.
    if let (Some(cache), Some(node)) = (&mut simulated.cache, &node.cache) {
        cache.config.sequential_bytes = node.config.sequential_bytes;
    }
    if let (Some(logs), Some(node)) = (&mut simulated.logs, &node.logs) {
        logs.config.off_below = node.config.off_below;
        logs.config.swap_reach_groups = node.config.swap_reach_groups;
    }
    simulated
}

#[test]
fn every_composed_stack_is_one_that_a_node_serves() {
    let mut profile = profile_of(DeviceChoice::named(DISK).unwrap().disk().unwrap(), 1, 4).unwrap();
    profile.device.name = DISK.into(); // as `plimsoll profile` calls a modelled device
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("disk.profile");
    std::fs::write(&file, profile.to_toml()).unwrap();
    for c in &composed::COMBINATIONS {
        let mut keys = format!(
            "device = {{ file = \"main.img\", model = \"{DISK}\" }}\ndepth = 10\nsched = \"{}\"\nprofile = \"{}\"\n",
            c.sched.name(),
            file.display()
        );
        if c.memory {
            keys += "memory = \"256MiB\"\n";
        }
        if c.cores {
            writeln!(keys, "cores = 2\ncore_depth = {}", c.reads_below()).unwrap();
        }
        if c.fence {
            keys += "fence = { slots = 2, slot = \"250ms\" }\n";
        }
        if c.logs {
            keys += "[pool.logs]\n";
        }
        if c.cache {
            keys += "[pool.cache]\nfile = \"fast.img\"\nextent = \"16KiB\"\nweu = \"256KiB\"\ndedup = \"off\"\ncodec = \"none\"\n\
                     trim = false\nprefetch = \"0B\"\nmodel = \"sized:1G:vf-sata-60g\"\n";
        }
        let node = configured(&keys, |_| {});
        let simulated = composed::plan(c, &profile, 1).unwrap();
        assert_eq!(as_configured(simulated, &node), node, "{}", c.name);
    }
}

#[test]
fn the_fenced_pool_is_one_that_a_node_serves() {
    let keys = format!(
        "device = {{ file = \"main.img\", model = \"{DISK}\" }}\ndepth = 32\nfence = {{ slots = 4 }}\n[pool.cache]\nfile = \"fast.img\"\n\
         size = \"128MiB\"\nextent = \"4KiB\"\nweu = \"256KiB\"\ndedup = \"off\"\ncodec = \"none\"\nsharing = \"pervolume\"\n\
         free_percent = 10\ntrim = false\nprefetch = \"0B\"\nmodel = \"sized:3G:aged:vf-sata-60g\"\n"
    );
    let node = configured(&keys, |_| {});
    assert_eq!(as_configured(fence::plan(32 << 20, 1).unwrap(), &node), node);
}

/// The array's drives have buffers as small as they can be, and Nitro's queue is as deep as the array's.
#[test]
fn the_cached_array_is_one_that_a_node_serves() {
    let setup = Setup {
        front: Front::Nitro(CacheConfig::default(), Shape::default(), CacheMode::Back),
        cache_bytes: 64 << 20,
        behind: Behind::Plain,
        nvram_bytes: 8 << 20,
        free_writes: false,
        coalesces: false,
        clients: 1,
        rate: None,
        write_back: false,
        seed: 3,
    };
    let mut simulated = machine::plan(&setup, 1 << 30).unwrap();
    let keys = format!(
        "device = {{ file = \"main.img\", model = \"raid0:10:64K:constellation-es3-1tb\" }}\ndepth = {}\n[pool.cache]\n\
         file = \"fast.img\"\nnvram = {{ file = \"nvram.img\" }}\nmodel = \"fresh:sized:512M:vf-sata-60g\"\n",
        simulated.scheduler.options.depth
    );
    let node = configured(&keys, |facts| facts.cache.nvram_salt = 3);
    simulated.model = node.model.clone();
    assert_eq!(as_configured(simulated, &node), node);
}

#[test]
fn pools_with_logs_are_ones_that_a_node_serves() {
    let keys = format!("device = {{ file = \"main.img\", model = \"{DISK}\" }}\n");
    let logs = |keys: &str| format!("{keys}[pool.logs]\nadaptive = false\n");
    let node = configured(
        &logs(&format!("{keys}depth = 4\nsched = \"cfq\"\ncores = 8\ncore_depth = 2\nfence = {{ slots = 2 }}\n")),
        |_| {},
    );
    assert_eq!(as_configured(disk_plan(1).unwrap(), &node), node);
    let node = configured(&logs(&format!("{keys}depth = 4\n")), |_| {});
    let config = LogsConfig { adaptive: false, ..LogsConfig::default() };
    let simulated = manylogs::plan(&DeviceChoice::named(DISK).unwrap(), Default::default(), config, 1);
    assert_eq!(simulated.scheduler.kind, SchedulerKind::Noop);
    assert_eq!(as_configured(simulated, &node), node);
    assert_eq!(node.logs.expect("configured").config.logged_write_bytes, LogsConfig::default().logged_write_bytes);
    assert_eq!(node.stack.failover_hop, Span::from_micros(300));
}
