//! The built node under drawn plans: every combination of layers, modes, schedulers, policies and devices, several connections and
//! tenants, an operator who changes things meanwhile, SIGTERM, SIGKILL and restarts. The generator and the oracle are those of
//! `plimsoll-chaos`, which also runs them in the simulator. See docs/contributing/chaos.md.

mod client;
#[path = "../common/mod.rs"]
mod common;
mod connection;
mod node;
mod nvme;
mod pool;

use common::Server;
use node::Node;
use plimsoll_base::Rng;
use plimsoll_chaos::{End, Lies, Operation, Plan, Work};
use pool::{Pool, Tally};
use serde_json::json;
use std::path::Path;
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// Lives of a node.
const LIVES: u64 = 3;
/// Requests in flight at most, in each pool.
const IN_FLIGHT_MAX: usize = 32;
/// Connections to each volume.
const CONNECTIONS: usize = 3;
/// No answer takes longer, or it is a hang.
const HANG: Duration = Duration::from_secs(30);
/// Nor does a whole run.
const RUN_MAX: Duration = Duration::from_secs(240);
/// A kill in the middle of a removal or of an addition comes within this time, in microseconds.
const KILL_WITHIN_US: u64 = 20_000;

struct Run<'a> {
    dir: &'a Path,
    node: Node,
    server: Option<Server>,
    pools: Vec<Pool>,
    /// The pools that are in the configuration.
    used: Vec<bool>,
    /// The pool's metadata were restored since the last life.
    is_restored: bool,
    /// Draws which pools are removed and added when, and killed in the middle of it.
    comings: Rng,
}

/// Runs the plan of `seed` through several lives.
fn run(seed: u64, lies: Lies) -> Result<Tally, String> {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let mut plans = vec![Plan::draw(seed, true)];
    plans.extend(Plan::draw_second(seed));
    let node = Node { dir: dir.path().to_path_buf() };
    let pools: Vec<Pool> = (0..)
        .zip(plans)
        .map(|(n, plan)| {
            let plan = if lies == Lies::default() { plan } else { plan.lying(lies) };
            Pool::new(node.clone(), plan, seed + (n << 24))
        })
        .collect();
    let mut run = Run {
        dir: dir.path(),
        node,
        server: None,
        used: vec![true; pools.len()],
        pools,
        is_restored: false,
        comings: Rng::new(seed, "chaos comings"),
    };
    // A client that waits where no bound of its own ends that: the run is a hang.
    let (ended, watched) = mpsc::channel::<()>();
    let watchdog = std::thread::spawn(move || {
        if watched.recv_timeout(RUN_MAX) == Err(mpsc::RecvTimeoutError::Timeout) {
            eprintln!("chaos seed {seed}: a hang: it isn't over after {RUN_MAX:?}");
            std::process::exit(101);
        }
    });
    let lived = run.lives();
    drop(ended);
    watchdog.join().expect("it only waits");
    let plans = || run.pools.iter().map(|p| p.plan.summary()).collect::<Vec<_>>().join("\n  ");
    lived.map_err(|e| format!("{e}\n  {}", plans()))?;
    let mut tally = Tally::default();
    for pool in &run.pools {
        tally += Tally { compared: pool.oracle.compared(), ..pool.tally };
    }
    Ok(tally)
}

impl Run<'_> {
    fn lives(&mut self) -> Result<(), String> {
        for life in 0..LIVES {
            let what = |e| format!("life {life}: {e}");
            // A cache that may have something of a restored volume must stay.
            if life > 0 && !self.is_restored {
                (0..self.pools.len()).for_each(|n| self.otherwise(n));
            }
            self.used = (0..self.pools.len()).map(|n| n == 0 || self.comings.chance(0.8)).collect();
            self.start().map_err(what)?;
            if !self.live(life).map_err(what)? {
                let end = self.pools[0].work.end();
                self.end(end).map_err(what)?;
            }
            self.is_restored = self.pools[0].restore().map_err(what)?;
        }
        let at_end = |e| format!("at the end: {e}");
        self.used.fill(true);
        self.start().map_err(at_end)?;
        self.end(End::Term).map_err(at_end)
    }

    /// Lets clients and operators work; true if the node was killed meanwhile.
    fn live(&mut self, life: u64) -> Result<bool, String> {
        for (n, pool) in (0..).zip(&mut self.pools) {
            pool.work = Work::new(pool.plan.seed + (n << 24), life);
        }
        let first = &mut self.pools[0];
        let steps = 50 + first.rng.below(500);
        let backed_up = first.backups.below(2 * steps);
        for step in 0..steps {
            if step == backed_up && self.used[0] {
                self.pools[0].back_up()?;
            }
            for n in 0..self.pools.len() {
                if self.used[n]
                    && let Some(Operation::Limit(iops)) = self.pools[n].step()?
                    && (self.pools[n].limit(iops)? || n == 0)
                {
                    self.reload()?;
                    self.pools[n].reloaded()?;
                }
            }
            if self.pools.len() > 1 && self.comes_or_goes()? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Draws another plan for a pool that isn't served: all that isn't part of a format may differ.
    fn otherwise(&mut self, n: usize) {
        let pool = &mut self.pools[n];
        pool.plan = pool.plan.otherwise(&mut pool.rng, true);
    }

    fn toml(&self) -> String {
        let plans: Vec<&Plan> = self.pools.iter().map(|p| &p.plan).collect();
        Plan::node_toml(&plans, &self.used)
    }

    fn start(&mut self) -> Result<(), String> {
        self.server = Some(Server::try_start(self.dir, &self.toml())?);
        for (pool, &used) in self.pools.iter_mut().zip(&self.used) {
            pool.has_subsystems = used && pool.plan.nvme;
            if used {
                pool.served()?;
            }
        }
        Ok(())
    }

    fn end(&mut self, end: End) -> Result<(), String> {
        let server = self.server.take().expect("it runs");
        if end == End::Kill {
            server.kill();
            self.pools.iter_mut().for_each(Pool::killed);
            return Ok(());
        }
        let ended = server.stop();
        self.pools.iter_mut().try_for_each(Pool::stopped)?;
        if ended { Ok(()) } else { Err("SIGTERM: it didn't end well".into()) }
    }

    /// Makes the node read the configuration of the pools that are used.
    fn reload(&mut self) -> Result<(), String> {
        std::fs::write(self.dir.join("node.toml"), self.toml()).map_err(|e| e.to_string())?;
        let done = self.node.must("POST", "/v1/reload", Some(json!({})))?;
        // A volume that was made anew for another tenant isn't given back to one whose objective doesn't fit, and doesn't grow then.
        let refused = done["failed"].as_array().ok_or_else(|| format!("{done}"))?;
        match refused.iter().find(|why| !why.as_str().is_some_and(|w| w.contains("doesn't fit"))) {
            Some(other) => Err(format!("a reload failed: {other}")),
            None => Ok(()),
        }
    }

    /// Now and then a pool is removed, or one that was removed is added again. True if the node was killed meanwhile.
    fn comes_or_goes(&mut self) -> Result<bool, String> {
        match self.used.iter().position(|used| !used) {
            Some(n) if self.comings.chance(0.05) => self.add(n),
            None if self.comings.chance(0.02) => {
                let n = usize::from(self.comings.chance(0.6));
                self.remove(n)
            }
            _ => Ok(false),
        }
    }

    fn remove(&mut self, n: usize) -> Result<bool, String> {
        let name = self.pools[n].plan.pool;
        self.pools[n].tally.removals += 1;
        if self.comings.chance(0.5) {
            self.pools[n].rest()?;
        }
        self.used[n] = false;
        self.reload()?;
        let path = format!("/v1/pools/{name}");
        if self.node.unless("is in use", "DELETE", &path, None)? {
            return Err(format!("pool {name} is removed although it is in use"));
        }
        let path = format!("{path}?disconnect=true");
        if self.comings.chance(0.15) {
            if self.killed_meanwhile("DELETE", &path) {
                self.pools[n].stopped()?;
            }
            self.pools.iter_mut().for_each(Pool::killed);
            self.pools[n].tally.kills += 1;
            return Ok(true);
        }
        self.node.must("DELETE", &path, Some(json!({})))?;
        self.pools[n].stopped()?;
        // The first pool's plan has the node's tenants. Subsystems change with a restart only.
        if n > 0 && self.comings.chance(0.5) {
            let nvme = self.pools[n].plan.nvme;
            self.otherwise(n);
            self.pools[n].plan.nvme = nvme;
        }
        Ok(false)
    }

    fn add(&mut self, n: usize) -> Result<bool, String> {
        self.used[n] = true;
        if self.comings.chance(0.15) {
            std::fs::write(self.dir.join("node.toml"), self.toml()).map_err(|e| e.to_string())?;
            self.killed_meanwhile("POST", "/v1/reload");
            self.pools.iter_mut().for_each(Pool::killed);
            self.pools[n].tally.kills += 1;
            return Ok(true);
        }
        self.reload()?;
        self.pools[n].served()?;
        Ok(false)
    }

    /// Gives an order and kills the node in the middle of it; true if it was carried out before.
    fn killed_meanwhile(&mut self, method: &str, path: &str) -> bool {
        let order = std::thread::spawn(self.node.order(method, path));
        // The moment is drawn; nothing is waited for.
        std::thread::sleep(Duration::from_micros(self.comings.below(KILL_WITHIN_US)));
        self.server.take().expect("it runs").kill();
        order.join().expect("it doesn't panic")
    }
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|n| n.parse().unwrap_or_else(|e| panic!("{name}={n}: {e}")))
}

/// For longer with `PLIMSOLL_CHAOS_SECONDS=600`, from another first seed with `PLIMSOLL_CHAOS_FROM=1000`, one seed with
/// `PLIMSOLL_CHAOS_SEED=7`.
#[test]
fn every_composition_keeps_what_it_acknowledged() {
    let (only, from) = (number("PLIMSOLL_CHAOS_SEED"), number("PLIMSOLL_CHAOS_FROM").unwrap_or(0));
    let seconds = number("PLIMSOLL_CHAOS_SECONDS");
    let begun = Instant::now();
    let goes_on = |seed: u64| match (only, seconds) {
        (Some(only), _) => seed == only,
        (None, Some(seconds)) => begun.elapsed() < Duration::from_secs(seconds),
        (None, None) => seed < from + 6,
    };
    let (mut seed, mut tally) = (only.unwrap_or(from), Tally::default());
    let mut wrong = Vec::new();
    while goes_on(seed) {
        println!(
            "chaos seed {seed}; again: PLIMSOLL_CHAOS_SEED={seed} cargo test -p plimsoll --test chaos -- --nocapture every"
        );
        match run(seed, Lies::default()) {
            Ok(t) => tally += t,
            Err(e) => {
                println!("seed {seed}: {e}");
                wrong.push(format!("seed {seed}: {e}"));
            }
        }
        seed += 1;
    }
    let Tally { answers, refused, foreign, operations, compared, removals, kills, leaves } = tally;
    println!(
        "{} seeds: {answers} answers, {refused} refused, {foreign} for a flag, {operations} operations, \
         {removals} removals of a pool, {kills} kills in the middle of one or of an addition, {leaves} clients that left with requests in flight, {compared} units compared, in {:?}",
        seed - only.unwrap_or(from),
        begun.elapsed()
    );
    assert!(only.is_some() || leaves > 0, "no client left with requests in flight");
    assert!(wrong.is_empty(), "{} seeds:\n{}", wrong.len(), wrong.join("\n"));
}

/// The test of the test: a flush, or a FUA, that isn't one is found in seconds.
#[test]
fn a_node_whose_devices_lie_is_found_out() {
    for lies in [Lies { flush: true, fua: false }, Lies { flush: false, fua: true }] {
        let begun = Instant::now();
        let found = (100..112).find_map(|seed| Some((seed, run(seed, lies).err()?)));
        let (seed, why) = found.unwrap_or_else(|| panic!("not found: {lies:?}"));
        println!("{lies:?} found by seed {seed} in {:?}: {why}", begun.elapsed());
    }
}
