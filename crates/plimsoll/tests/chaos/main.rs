//! The built node under drawn plans: every combination of layers, modes, schedulers, policies and devices, several connections and
//! tenants, an operator who changes things meanwhile, SIGTERM, SIGKILL and restarts. The generator and the oracle are those of
//! `plimsoll-chaos`, which also runs them in the simulator. See docs/contributing/chaos.md.

#[path = "../common/mod.rs"]
mod common;
mod connection;
mod nvme;

use common::{Server, http};
use connection::{Answer, Connection};
use nvme::Host;
use plimsoll_base::{Op, Rng};
use plimsoll_chaos::plan::{POOL, TENANTS};
use plimsoll_chaos::{Asked, End, Fault, Flag, Lies, Operation, Oracle, Plan, Step, Work};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// Lives of a node.
const LIVES: u64 = 3;
/// Requests in flight at most.
const IN_FLIGHT_MAX: usize = 32;
/// Connections to each volume.
const CONNECTIONS: usize = 3;
/// No answer takes longer, or it is a hang.
const HANG: Duration = Duration::from_secs(30);
/// Nor does a whole run.
const RUN_MAX: Duration = Duration::from_secs(240);

/// A client, by one of the two protocols.
enum Client {
    Nbd(Connection),
    Nvme(Host),
}

impl Client {
    fn has(&self, asked: &Asked) -> bool {
        let host = |asked: &Asked| Host::has(asked.op, (asked.offset, asked.len), asked.fua);
        matches!(self, Client::Nbd(_)) || (asked.flag == Flag::None && host(asked))
    }

    /// True if the server must refuse this request.
    fn refuses(&self, asked: &Asked) -> bool {
        matches!(self, Client::Nbd(c) if c.refuses(asked))
    }

    fn send(&mut self, n: u64, asked: &Asked, payload: &[u8]) -> io::Result<()> {
        let range = (asked.offset, asked.len);
        match self {
            Client::Nbd(c) => c.send(n, asked, payload),
            Client::Nvme(h) => h.send(n, asked.op, range, asked.fua, payload),
        }
    }

    fn receive(&mut self) -> io::Result<()> {
        match self {
            Client::Nbd(c) => c.receive(),
            Client::Nvme(h) => h.receive(),
        }
    }

    fn next_answer(&mut self) -> io::Result<Option<Answer>> {
        match self {
            Client::Nbd(c) => c.next_answer(),
            Client::Nvme(h) => h.next_answer(),
        }
    }

    fn fd(&self) -> BorrowedFd<'_> {
        match self {
            Client::Nbd(c) => c.fd(),
            Client::Nvme(h) => h.fd(),
        }
    }

    fn may_be_refused(&self) -> bool {
        matches!(self, Client::Nbd(c) if c.may_be_refused)
    }
}

/// A backup of the pool's metadata.
struct Backup {
    text: String,
    /// Of each volume then: its number among those of its name, and its size.
    volumes: Vec<(u64, u64)>,
}

struct Run<'a> {
    seed: u64,
    plan: Plan,
    dir: &'a Path,
    server: Option<Server>,
    /// By volume.
    connections: Vec<Vec<Client>>,
    /// Errors are injected into the requests of a volume.
    failing: Vec<bool>,
    /// Requests that an injected error may have hit.
    may_fail: BTreeSet<u64>,
    /// Requests that the server must refuse.
    must_fail: BTreeSet<u64>,
    /// Requests that are refused where zeroes aren't fast.
    fast: BTreeSet<u64>,
    oracle: Oracle,
    sizes: Vec<u64>,
    rng: Rng,
    /// Draws when a backup is taken and restored: seeds from before them do the same otherwise.
    backups: Rng,
    backup: Option<Backup>,
    answers: u64,
    refused: u64,
    /// Requests with a flag that they can't have, which were refused.
    foreign: u64,
    operations: u64,
}

/// Runs the plan of `seed` through several lives; answers, those that were refused for a deadline and for a flag, operations and compared
/// units.
fn run(seed: u64, lies: Lies) -> Result<[u64; 5], String> {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let plan = Plan::draw(seed, true);
    let plan = if lies == Lies::default() { plan } else { plan.lying(lies) };
    let sizes: Vec<u64> = plan.volumes.iter().map(|v| v.size_bytes).collect();
    let mut run = Run {
        seed,
        plan,
        dir: dir.path(),
        server: None,
        connections: Vec::new(),
        failing: vec![false; sizes.len()],
        may_fail: BTreeSet::new(),
        must_fail: BTreeSet::new(),
        fast: BTreeSet::new(),
        oracle: Oracle::new(seed, &sizes),
        sizes,
        rng: Rng::new(seed, "chaos live"),
        backups: Rng::new(seed, "chaos backups"),
        backup: None,
        answers: 0,
        refused: 0,
        foreign: 0,
        operations: 0,
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
    lived.map_err(|e| format!("{e}\n  {}", run.plan.summary()))?;
    Ok([run.answers, run.refused, run.foreign, run.operations, run.oracle.compared()])
}

impl Run<'_> {
    fn lives(&mut self) -> Result<(), String> {
        let mut is_restored = false;
        for life in 0..LIVES {
            // A cache that may have something of a restored volume must stay.
            if life > 0 && !is_restored {
                self.plan = self.plan.otherwise(&mut self.rng, true);
            }
            let what = |e| format!("life {life}: {e}");
            self.start().map_err(what)?;
            self.read_all().map_err(what)?;
            let mut work = Work::new(self.seed, life);
            let steps = 50 + self.rng.below(500);
            let backed_up = self.backups.below(2 * steps);
            for step in 0..steps {
                if step == backed_up {
                    self.back_up().map_err(what)?;
                }
                self.step(work.next(&self.plan, &self.sizes.clone())).map_err(what)?;
            }
            self.end(work.end()).map_err(what)?;
            is_restored = self.restore().map_err(what)?;
        }
        let at_end = |e| format!("at the end: {e}");
        self.start().map_err(at_end)?;
        self.read_all().map_err(at_end)?;
        self.end(End::Term).map_err(at_end)
    }

    fn start(&mut self) -> Result<(), String> {
        let server = Server::try_start(self.dir, &self.plan.toml())?;
        (0..self.sizes.len()).for_each(|n| self.grown_to_configured(n));
        self.failing.fill(false);
        self.may_fail.clear();
        self.must_fail.clear();
        self.fast.clear();
        let begun = Instant::now();
        loop {
            let status = server.control("GET", "/v1/status").expect(200);
            match status["pools"][0]["state"].as_str() {
                Some("ready") => break,
                Some("recovering") if begun.elapsed() < HANG => std::thread::sleep(Duration::from_millis(10)),
                state => return Err(format!("after its start the pool is {state:?}: {status}")),
            }
        }
        self.server = Some(server);
        self.connections = Vec::new();
        for volume in 0..self.sizes.len() {
            self.connections.push(Vec::new());
            self.connect(volume)?;
        }
        Ok(())
    }

    /// Volumes that are smaller than configured grow when the configuration is read.
    fn grown_to_configured(&mut self, n: usize) {
        let configured = self.plan.volumes[n].size_bytes;
        if configured > self.sizes[n] {
            self.sizes[n] = configured;
            self.oracle.grown(n, configured);
        }
    }

    fn server(&self) -> &Server {
        self.server.as_ref().expect("it runs")
    }

    /// Opens a volume's connections: one as its own tenant, one as another, one with a deadline; of half of the volumes late reads of that
    /// one are refused, of the others they wait.
    fn connect(&mut self, volume: usize) -> Result<(), String> {
        let name = self.plan.volumes[volume].name;
        let socket = self.server().socket();
        self.connections[volume].clear();
        for c in 0..CONNECTIONS {
            let export = match c {
                0 => name.to_string(),
                1 => format!("{name}?tenant={}", TENANTS[(volume + 1) % TENANTS.len()]),
                _ => {
                    let (tenant, busy) = (TENANTS[(volume + 2) % TENANTS.len()], ["error", "wait"][volume % 2]);
                    format!("{name}?tenant={tenant}&deadline=50ms&busy={busy}")
                }
            };
            // The second of them has simple replies in every other seed.
            let structured = c != 1 || self.seed.is_multiple_of(2);
            let opened = Connection::open(&socket, &export, structured).map_err(|e| format!("{export}: {e}"))?;
            self.connections[volume].push(Client::Nbd(opened));
        }
        if self.plan.nvme {
            let status = self.server().control("GET", "/v1/status").expect(200);
            let address = status["node"]["listens"]["nvme_tcp"].as_str().ok_or("it doesn't listen for NVMe/TCP")?;
            let opened = Host::open(address, &self.plan.nqn(volume));
            self.connections[volume].push(Client::Nvme(opened.map_err(|e| format!("{}: {e}", self.plan.nqn(volume)))?));
        }
        Ok(())
    }

    fn end(&mut self, end: End) -> Result<(), String> {
        let server = self.server.take().expect("it runs");
        if end == End::Kill {
            server.kill();
            self.oracle.crashed();
        } else {
            let ended = server.stop();
            // What was answered while it ended.
            self.receive_what_came()?;
            if !ended {
                return Err("SIGTERM: it didn't end well".into());
            }
            self.oracle.stopped();
        }
        self.connections.clear();
        Ok(())
    }

    /// Takes a backup of the pool's metadata. Logs take back none that is older.
    fn back_up(&mut self) -> Result<(), String> {
        if self.plan.logs.is_none() {
            let answer = self.server().control("GET", &format!("/v1/pools/{POOL}/backup"));
            if answer.code != 200 {
                return Err(format!("a backup ended {}: {}", answer.code, answer.body));
            }
            let volumes = self.sizes.iter().enumerate().map(|(n, size)| (self.oracle.generation(n), *size)).collect();
            self.backup = Some(Backup { text: answer.body, volumes });
        }
        Ok(())
    }

    /// Restores the backup, if there is one, in half of the cases. A volume that was made anew since is the earlier one again, without its
    /// data. Not if one has grown since: what it would have at its end, should it grow again, isn't promised.
    fn restore(&mut self) -> Result<bool, String> {
        let Some(mut backup) = self.backup.take_if(|_| self.backups.chance(0.5)) else { return Ok(false) };
        let now: Vec<(u64, u64)> =
            self.sizes.iter().enumerate().map(|(n, size)| (self.oracle.generation(n), *size)).collect();
        if now.iter().zip(&backup.volumes).any(|(now, then)| now.0 == then.0 && now.1 != then.1) {
            return Ok(false);
        }
        let (device, from) = (self.dir.join("main.img"), self.dir.join("old.backup"));
        std::fs::write(&from, &backup.text).map_err(|e| e.to_string())?;
        let (device, from) = (device.to_str().expect("text"), from.to_str().expect("text"));
        common::ok(env!("CARGO_BIN_EXE_plimsoll"), &["pool", "restore", device, "--from", from, "--older", "--yes"]);
        for (n, (now, then)) in now.iter().zip(&mut backup.volumes).enumerate() {
            if now.0 != then.0 {
                self.oracle.remade(n, then.1);
                self.sizes[n] = then.1;
                then.0 = self.oracle.generation(n);
            }
        }
        // It may be restored once more.
        self.backup = Some(backup);
        self.operations += 1;
        Ok(true)
    }

    fn receive_what_came(&mut self) -> Result<(), String> {
        let mut connections = std::mem::take(&mut self.connections);
        for c in connections.iter_mut().flatten() {
            // It ends with the socket; a request that was refused as the node ends is one without an answer.
            while c.receive().is_ok() {}
            while let Ok(Some(answer)) = c.next_answer() {
                if answer.ended.is_ok() {
                    self.judge(answer, c.may_be_refused())?;
                }
            }
        }
        Ok(())
    }

    fn step(&mut self, step: Step) -> Result<(), String> {
        match step {
            Step::Ask(asked) => {
                self.until(|r| r.oracle.in_flight() < IN_FLIGHT_MAX)?;
                self.ask(asked)
            }
            Step::Pause(answers) => {
                let left = self.oracle.in_flight().saturating_sub(answers as usize);
                self.until(|r| r.oracle.in_flight() <= left)
            }
            Step::Rest => self.until(|r| r.oracle.in_flight() == 0),
            Step::Operate(operation) => {
                self.operations += 1;
                self.operate(operation)
            }
        }
    }

    fn ask(&mut self, asked: Asked) -> Result<(), String> {
        let (n, payload) = self.oracle.ask(asked, self.plan.block_bytes());
        if self.failing[asked.volume] {
            self.may_fail.insert(n);
        }
        let clients = &mut self.connections[asked.volume];
        let c = self.rng.below(clients.len() as u64) as usize;
        let c = if clients[c].has(&asked) { c } else { c % CONNECTIONS };
        if clients[c].refuses(&asked) {
            self.must_fail.insert(n);
        }
        if matches!(asked.flag, Flag::FastZero | Flag::FastNoHole) {
            self.fast.insert(n);
        }
        let sent = clients[c].send(n, &asked, &payload);
        sent.map_err(|e| format!("{asked:?} can't be sent: {e}"))?;
        self.receive(Duration::ZERO).map(drop)
    }

    /// Receives until `is_over`.
    fn until(&mut self, is_over: impl Fn(&Run) -> bool) -> Result<(), String> {
        let mut last = Instant::now();
        while !is_over(self) {
            if self.receive(Duration::from_millis(100))? {
                last = Instant::now();
            }
            if last.elapsed() > HANG {
                let status = self.server().control("GET", "/v1/status").body;
                return Err(format!("a hang: no answer in {HANG:?} to {:?}: {status}", self.oracle.asked()));
            }
        }
        Ok(())
    }

    /// Receives what comes within this time; false if nothing did.
    fn receive(&mut self, within: Duration) -> Result<bool, String> {
        let mut connections = std::mem::take(&mut self.connections);
        let mut all: Vec<&mut Client> = connections.iter_mut().flatten().collect();
        let mut fds: Vec<PollFd<'_>> = all.iter().map(|c| PollFd::from_borrowed_fd(c.fd(), PollFlags::IN)).collect();
        let timeout = Timespec { tv_sec: 0, tv_nsec: within.subsec_nanos().into() };
        poll(&mut fds, Some(&timeout)).map_err(|e| format!("poll: {e}"))?;
        let ready: Vec<usize> = (0..fds.len()).filter(|i| !fds[*i].revents().is_empty()).collect();
        drop(fds);
        for &i in &ready {
            let c = &mut *all[i];
            c.receive().map_err(|e| format!("a connection was lost: {e}"))?;
            while let Some(answer) = c.next_answer().map_err(|e| format!("an answer makes no sense: {e}"))? {
                self.judge(answer, c.may_be_refused())?;
            }
        }
        self.connections = connections;
        Ok(!ready.is_empty())
    }

    fn judge(&mut self, answer: Answer, may_be_refused: bool) -> Result<(), String> {
        let Answer { request, op, ended, extents } = answer;
        self.answers += 1;
        let (may_fail, fast) = (self.may_fail.remove(&request), self.fast.remove(&request));
        let must_fail = self.must_fail.remove(&request);
        match (ended, op) {
            (Err(e), _) if must_fail && e.starts_with("EINVAL") => {
                self.foreign += 1;
                self.oracle.refused(request);
                Ok(())
            }
            (ended, _) if must_fail => Err(format!("{op:?} with what it can't have ended {:?}", ended.map(|_| ()))),
            (Err(e), Op::WriteZeroes) if fast && e.starts_with("ENOTSUP") => {
                self.oracle.failed(request);
                Ok(())
            }
            (Err(_), _) if may_fail => {
                self.oracle.failed(request);
                Ok(())
            }
            (Err(_), Op::Read) if may_be_refused => {
                self.refused += 1;
                self.oracle.failed(request);
                Ok(())
            }
            (Err(e), _) => Err(format!("{op:?} failed: {e}")),
            (Ok(bytes), Op::Read) => self.oracle.read(request, &bytes),
            (Ok(_), Op::BlockStatus) => self.oracle.status(request, &extents),
            (Ok(_), _) => {
                self.oracle.done(request);
                Ok(())
            }
        }
    }

    /// Reads all volumes, and asks for their block status.
    fn read_all(&mut self) -> Result<(), String> {
        for op in [Op::BlockStatus, Op::Read] {
            for volume in 0..self.sizes.len() {
                let mut at = 0;
                while at < self.sizes[volume] {
                    let len = (96 << 10).min(self.sizes[volume] - at);
                    self.until(|r| r.oracle.in_flight() < IN_FLIGHT_MAX)?;
                    let asked = Asked { op, volume, offset: at, len, fua: false, flag: Flag::None };
                    let (n, _) = self.oracle.ask(asked, self.plan.block_bytes());
                    // Not by the one that has a deadline.
                    let sent = self.connections[volume][0].send(n, &asked, &[]);
                    sent.map_err(|e| format!("{asked:?} can't be sent: {e}"))?;
                    at += len;
                }
            }
            self.until(|r| r.oracle.in_flight() == 0)?;
        }
        Ok(())
    }

    /// Asks the control socket; an answer that blames the server is an error. True if it was done.
    fn control(&self, method: &str, path: &str, body: Option<Value>) -> Result<bool, String> {
        let answer = http::unix(&self.server().dir.join("control.sock"), method, path, body.as_ref());
        match answer.code {
            200..300 => Ok(true),
            400..500 => Ok(false),
            code => Err(format!("{method} {path} {body:?}: {code} {}", answer.body)),
        }
    }

    /// Asks for what can't be refused.
    fn must(&self, method: &str, path: &str, body: Value) -> Result<Value, String> {
        let answer = http::unix(&self.server().dir.join("control.sock"), method, path, Some(&body));
        match answer.code {
            200..300 => Ok(serde_json::from_str(&answer.body).unwrap_or(Value::Null)),
            code => Err(format!("{method} {path} {body}: {code} {}", answer.body)),
        }
    }

    fn operate(&mut self, operation: Operation) -> Result<(), String> {
        let volume = |n: usize| format!("/v1/volumes/{}", self.plan.volumes[n].name);
        let pool = |what: &str| format!("/v1/pools/{POOL}/{what}");
        let set = |body: Value| self.control("PATCH", &pool("settings"), Some(body)).map(drop);
        match operation {
            Operation::Mode(n, mode) => self.control("PATCH", &volume(n), Some(json!({ "cache": mode }))).map(drop),
            Operation::Checkpoint => {
                if self.plan.has_cache() {
                    self.control("POST", &pool("cache/flush"), None)?;
                }
                if self.plan.logs.is_some() {
                    self.control("POST", &pool("logs/checkpoint"), None)?;
                }
                Ok(())
            }
            Operation::CacheBytes(bytes) => set(json!({ "cache_size_bytes": bytes })),
            Operation::LoggedWrite(bytes) => set(json!({ "logged_write_bytes": bytes })),
            Operation::IdleUs(us) => set(json!({ "idle_us": us })),
            Operation::Fingerprints(percent) => set(json!({ "fingerprints_percent": percent })),
            Operation::Slack(low, high) => set(json!({ "core_slack_low_us": low, "core_slack_high_us": high })),
            Operation::Slots(slots, ms) => set(json!({ "slots": slots, "slot_us": ms * 1000 })),
            Operation::Limit(iops) => {
                let last = self.sizes.len() - 1;
                self.until(|r| r.oracle.in_flight_of(last) == 0)?;
                // A reload applies what differs from the configuration before; a volume that was made anew smaller keeps its size otherwise.
                let differs = std::mem::replace(&mut self.plan.limit_iops, iops) != iops;
                std::fs::write(self.dir.join("node.toml"), self.plan.toml()).map_err(|e| e.to_string())?;
                let done = self.must("POST", "/v1/reload", json!({}))?;
                // A volume that was made anew for another tenant isn't given back to one whose objective doesn't fit, and doesn't grow then.
                let refused = done["failed"].as_array().ok_or_else(|| format!("{done}"))?;
                if let Some(other) = refused.iter().find(|why| !why.as_str().is_some_and(|w| w.contains("doesn't fit")))
                {
                    return Err(format!("a reload failed: {other}"));
                }
                if differs && refused.is_empty() {
                    self.grown_to_configured(last);
                }
                self.connect(last)
            }
            Operation::Inject(n, what) => {
                let path = format!("{}/inject", volume(n));
                // Those before it can't be hit, those after its end neither.
                self.until(|r| r.oracle.in_flight_of(n) == 0)?;
                self.failing[n] = matches!(what, Some((Fault::Errors, _)));
                let Some((fault, permille)) = what else { return self.control("DELETE", &path, None).map(drop) };
                let mut body = json!({ "share_permille": permille, "for_us": 60_000_000, "seed": self.seed });
                match fault {
                    Fault::Errors => body["fault"] = "errors".into(),
                    Fault::LatencyUs(us) => (body["fault"], body["latency_us"]) = ("latency".into(), us.into()),
                }
                self.must("PUT", &path, body).map(drop)
            }
            Operation::Grow(n, bytes) => {
                let path = volume(n);
                self.until(|r| r.oracle.in_flight_of(n) == 0)?;
                self.must("PATCH", &path, json!({ "size_bytes": bytes }))?;
                self.oracle.grown(n, bytes);
                self.sizes[n] = bytes;
                self.connect(n)
            }
            Operation::Remake(n, bytes) => {
                let path = volume(n);
                self.until(|r| r.oracle.in_flight_of(n) == 0)?;
                self.connections[n].clear();
                if self.control("DELETE", &format!("{path}?disconnect=true&declared=true"), None)? {
                    // Of best effort: an objective may be refused, as it may not fit beside the others.
                    let (name, tenant) = (self.plan.volumes[n].name, TENANTS[1]);
                    let body = json!({ "name": name, "pool": POOL, "size_bytes": bytes, "tenant": tenant });
                    self.must("POST", "/v1/volumes", body)?;
                    self.oracle.remade(n, bytes);
                    self.sizes[n] = bytes;
                    self.failing[n] = false;
                }
                self.connect(n)
            }
        }
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
    let (mut seed, mut tally) = (only.unwrap_or(from), [0; 5]);
    let mut wrong = Vec::new();
    while goes_on(seed) {
        println!(
            "chaos seed {seed}; again: PLIMSOLL_CHAOS_SEED={seed} cargo test -p plimsoll --test chaos -- --nocapture every"
        );
        match run(seed, Lies::default()) {
            Ok(t) => tally.iter_mut().zip(t).for_each(|(sum, n)| *sum += n),
            Err(e) => {
                println!("seed {seed}: {e}");
                wrong.push(format!("seed {seed}: {e}"));
            }
        }
        seed += 1;
    }
    let [answers, refused, foreign, operations, compared] = tally;
    println!(
        "{} seeds: {answers} answers, {refused} refused, {foreign} for a flag, {operations} operations, {compared} units compared, in {:?}",
        seed - only.unwrap_or(from),
        begun.elapsed()
    );
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
