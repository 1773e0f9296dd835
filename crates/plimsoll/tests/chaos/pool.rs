//! A pool under test: its clients, its oracle, and its operator's changes.

use super::client::Client;
use super::connection::{Answer, Connection};
use super::node::Node;
use super::nvme::Host;
use super::{CONNECTIONS, HANG, IN_FLIGHT_MAX, common};
use plimsoll_base::{Op, Rng};
use plimsoll_chaos::plan::{TENANTS, VolumePlan};
use plimsoll_chaos::{Asked, Fault, Flag, Operation, Oracle, Plan, Step, Work};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// A backup of the pool's metadata.
struct Backup {
    text: String,
    /// Of each volume then: its number among those of its name, and its size.
    volumes: Vec<(u64, u64)>,
}

/// Number of everything that a run did.
#[derive(Clone, Copy, Default, Debug)]
pub struct Tally {
    pub answers: u64,
    /// Reads that were refused for a deadline.
    pub refused: u64,
    /// Requests with a flag that they can't have, which were refused.
    pub foreign: u64,
    pub operations: u64,
    /// Units compared.
    pub compared: u64,
    /// Removals of a pool.
    pub removals: u64,
    /// Kills while a pool was being removed or added.
    pub kills: u64,
    /// Clients that left with requests in flight, and came again.
    pub leaves: u64,
}

impl std::ops::AddAssign for Tally {
    fn add_assign(&mut self, other: Tally) {
        self.answers += other.answers;
        self.refused += other.refused;
        self.foreign += other.foreign;
        self.operations += other.operations;
        self.compared += other.compared;
        self.removals += other.removals;
        self.kills += other.kills;
        self.leaves += other.leaves;
    }
}

/// See the module's documentation.
pub struct Pool {
    pub plan: Plan,
    node: Node,
    /// By volume; none while the pool isn't served.
    connections: Vec<Vec<Client>>,
    /// The connection of each request in flight: its volume, and its number there.
    sent_by: BTreeMap<u64, (usize, usize)>,
    /// Errors are injected into the requests of a volume.
    failing: Vec<bool>,
    /// Requests that an injected error may have hit.
    may_fail: BTreeSet<u64>,
    /// Requests that the server must refuse.
    must_fail: BTreeSet<u64>,
    /// Requests that are refused where zeroes aren't fast.
    fast: BTreeSet<u64>,
    /// Space of it may be zeroed after its start, before volumes get it.
    is_zeroing: bool,
    /// The node has had its subsystems since its start. They change with a restart only.
    pub has_subsystems: bool,
    pub oracle: Oracle,
    sizes: Vec<u64>,
    pub rng: Rng,
    pub work: Work,
    /// Draws when a backup is taken and restored: seeds from before them do the same otherwise.
    pub backups: Rng,
    backup: Option<Backup>,
    /// Draws which clients leave.
    leaves: Rng,
    pub tally: Tally,
}

impl Pool {
    /// A pool that isn't there yet. Contents differ by `salt`.
    pub fn new(node: Node, plan: Plan, salt: u64) -> Pool {
        let sizes: Vec<u64> = plan.volumes.iter().map(|v| v.size_bytes).collect();
        Pool {
            node,
            connections: Vec::new(),
            sent_by: BTreeMap::new(),
            failing: vec![false; sizes.len()],
            may_fail: BTreeSet::new(),
            must_fail: BTreeSet::new(),
            fast: BTreeSet::new(),
            is_zeroing: false,
            has_subsystems: false,
            oracle: Oracle::new(salt, &sizes),
            sizes,
            rng: Rng::new(salt, "chaos live"),
            work: Work::new(salt, 0),
            backups: Rng::new(salt, "chaos backups"),
            backup: None,
            leaves: Rng::new(salt, "chaos leaves"),
            tally: Tally::default(),
            plan,
        }
    }

    /// True while it has clients.
    pub fn is_served(&self) -> bool {
        !self.connections.is_empty()
    }

    /// The node has opened the pool: opens connections to it once it is ready, and reads all of it.
    pub fn served(&mut self) -> Result<(), String> {
        self.failing.fill(false);
        self.may_fail.clear();
        self.must_fail.clear();
        self.fast.clear();
        self.sent_by.clear();
        self.node.await_ready(self.plan.pool)?;
        if std::mem::take(&mut self.is_zeroing) {
            self.node.await_zeroed(self.plan.pool)?;
        }
        self.found_sizes(true)?;
        self.connections = self.sizes.iter().map(|_| Vec::new()).collect();
        (0..self.sizes.len()).try_for_each(|volume| self.connect(volume))?;
        self.read_all()
    }

    /// Volumes that are smaller than configured grow at a start. A reload looks at sections that changed only, so a volume that was made
    /// anew since may stay as it is. At a start it may, too, where it is another tenant's: all changes of a volume are made, or none.
    fn found_sizes(&mut self, is_start: bool) -> Result<(), String> {
        for n in 0..self.sizes.len() {
            let VolumePlan { name, size_bytes: configured, tenant, .. } = self.plan.volumes[n];
            let found = self.node.get(&format!("/v1/volumes/{name}"))?;
            let must_grow = is_start && found["tenant"] == TENANTS[tenant];
            let found = found["size_bytes"].as_u64().ok_or_else(|| format!("volume {name} has no size"))?;
            let had = self.sizes[n];
            let is_right = if had < configured && must_grow {
                found == configured
            } else {
                found == had || found == configured && found > had
            };
            if !is_right {
                return Err(format!("volume {name} has {found} bytes, had {had}, and is configured with {configured}"));
            }
            if found > had {
                self.sizes[n] = found;
                self.oracle.grown(n, found);
            }
        }
        Ok(())
    }

    /// Opens a volume's connections: one as its own tenant, one as another, one with a deadline; of half of the volumes late reads of that
    /// one are refused, of the others they wait.
    fn connect(&mut self, volume: usize) -> Result<(), String> {
        self.connections[volume].clear();
        for c in 0..CONNECTIONS + usize::from(self.has_subsystems) {
            let opened = self.open(volume, c)?;
            self.connections[volume].push(opened);
        }
        Ok(())
    }

    fn open(&self, volume: usize, c: usize) -> Result<Client, String> {
        if c == CONNECTIONS {
            let status = self.node.get("/v1/status")?;
            let address = status["node"]["listens"]["nvme_tcp"].as_str().ok_or("it doesn't listen for NVMe/TCP")?;
            let opened = Host::open(address, &self.plan.nqn(volume));
            return opened.map(Client::Nvme).map_err(|e| format!("{}: {e}", self.plan.nqn(volume)));
        }
        let name = self.plan.volumes[volume].name;
        let export = match c {
            0 => name.to_string(),
            1 => format!("{name}?tenant={}", TENANTS[(volume + 1) % TENANTS.len()]),
            _ => {
                let (tenant, busy) = (TENANTS[(volume + 2) % TENANTS.len()], ["error", "wait"][volume % 2]);
                format!("{name}?tenant={tenant}&deadline=50ms&busy={busy}")
            }
        };
        // The second of them has simple replies in every other seed.
        let structured = c != 1 || self.plan.seed.is_multiple_of(2);
        let opened = Connection::open(&self.node.socket(), &export, structured);
        opened.map(Client::Nbd).map_err(|e| format!("{export}: {e}"))
    }

    /// Now and then a client leaves with its requests in flight, and comes again at once.
    fn leave(&mut self) -> Result<(), String> {
        if !self.leaves.chance(0.02) {
            return Ok(());
        }
        let volume = self.leaves.below(self.sizes.len() as u64) as usize;
        let c = self.leaves.below(self.connections[volume].len() as u64) as usize;
        drop(self.connections[volume].remove(c));
        let again = self.open(volume, c)?;
        self.connections[volume].insert(c, again);
        // The new connection is served: nothing of the one before may begin any more.
        let left: Vec<u64> = self.sent_by.iter().filter(|(_, by)| **by == (volume, c)).map(|(n, _)| *n).collect();
        self.tally.leaves += u64::from(!left.is_empty());
        for n in left {
            self.forget(n);
            self.oracle.left(n);
        }
        Ok(())
    }

    /// A request is no longer in flight: whether an injected error may have hit it, whether zeroes had to be fast, whether it had to fail.
    fn forget(&mut self, n: u64) -> (bool, bool, bool) {
        self.sent_by.remove(&n);
        (self.may_fail.remove(&n), self.fast.remove(&n), self.must_fail.remove(&n))
    }

    /// Its node was killed. All that was durable is there at the next start.
    pub fn killed(&mut self) {
        if self.is_served() {
            self.oracle.crashed();
            self.connections.clear();
        }
    }

    /// It ended in order, by a removal or with its node.
    pub fn stopped(&mut self) -> Result<(), String> {
        if self.is_served() {
            // What was answered while it ended.
            self.receive_what_came()?;
            self.oracle.stopped();
            self.connections.clear();
        }
        Ok(())
    }

    /// The next step of its clients or its operator, except for changes of the node's configuration, which are returned.
    pub fn step(&mut self) -> Result<Option<Operation>, String> {
        self.leave()?;
        match self.work.next(&self.plan, &self.sizes) {
            Step::Ask(asked) => {
                self.until(|r| r.oracle.in_flight() < IN_FLIGHT_MAX)?;
                self.ask(asked)?;
            }
            Step::Pause(answers) => {
                let left = self.oracle.in_flight().saturating_sub(answers as usize);
                self.until(|r| r.oracle.in_flight() <= left)?;
            }
            Step::Rest => self.rest()?,
            Step::Operate(operation) => {
                self.tally.operations += 1;
                if matches!(operation, Operation::Limit(_)) {
                    return Ok(Some(operation));
                }
                self.operate(operation)?;
            }
        }
        Ok(None)
    }

    /// Waits for all answers.
    pub fn rest(&mut self) -> Result<(), String> {
        self.until(|r| r.oracle.in_flight() == 0)
    }

    /// Takes a backup of the pool's metadata.
    pub fn back_up(&mut self) -> Result<(), String> {
        let answer = self.node.answer("GET", &format!("/v1/pools/{}/backup", self.plan.pool), None);
        if answer.code != 200 {
            return Err(format!("a backup ended {}: {}", answer.code, answer.body));
        }
        let volumes = self.sizes.iter().enumerate().map(|(n, size)| (self.oracle.generation(n), *size)).collect();
        self.backup = Some(Backup { text: answer.body, volumes });
        Ok(())
    }

    /// Restores the backup, if there is one, in half of the cases. A volume that was made anew since is the earlier one again, without its
    /// data. Not if one has grown since: what it would have at its end, should it grow again, isn't promised.
    pub fn restore(&mut self) -> Result<bool, String> {
        let Some(mut backup) = self.backup.take_if(|_| self.backups.chance(0.5)) else { return Ok(false) };
        let now: Vec<(u64, u64)> =
            self.sizes.iter().enumerate().map(|(n, size)| (self.oracle.generation(n), *size)).collect();
        if now.iter().zip(&backup.volumes).any(|(now, then)| now.0 == then.0 && now.1 != then.1) {
            return Ok(false);
        }
        let (device, from) = (self.node.dir.join(self.plan.device()), self.node.dir.join("old.backup"));
        std::fs::write(&from, &backup.text).map_err(|e| e.to_string())?;
        let (device, from) = (device.to_str().expect("text"), from.to_str().expect("text"));
        let arguments = ["pool", "restore", device, "--from", from, "--older", "--yes"];
        let done = common::run(env!("CARGO_BIN_EXE_plimsoll"), &arguments);
        if !done.status.success() {
            let why = String::from_utf8_lossy(&done.stderr).into_owned();
            // Only a pool without logs is zeroed where it was another volume's since.
            let is_refused = self.plan.logs.is_some() && why.contains("calls a volume's is another's");
            return if is_refused { Ok(false) } else { Err(format!("a restore failed: {why}")) };
        }
        self.is_zeroing = self.plan.logs.is_some();
        for (n, (now, then)) in now.iter().zip(&mut backup.volumes).enumerate() {
            if now.0 != then.0 {
                self.oracle.remade(n, then.1);
                self.sizes[n] = then.1;
                then.0 = self.oracle.generation(n);
            }
        }
        // It may be restored once more.
        self.backup = Some(backup);
        self.tally.operations += 1;
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
        self.sent_by.insert(n, (asked.volume, c));
        let sent = clients[c].send(n, &asked, &payload);
        sent.map_err(|e| format!("{asked:?} can't be sent: {e}"))?;
        self.receive(Duration::ZERO).map(drop)
    }

    /// Receives until `is_over`.
    fn until(&mut self, is_over: impl Fn(&Pool) -> bool) -> Result<(), String> {
        let mut last = Instant::now();
        while !is_over(self) {
            if self.receive(Duration::from_millis(100))? {
                last = Instant::now();
            }
            if last.elapsed() > HANG {
                let status = self.node.get("/v1/status")?;
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
        self.tally.answers += 1;
        let (may_fail, fast, must_fail) = self.forget(request);
        match (ended, op) {
            (Err(e), _) if must_fail && e.starts_with("EINVAL") => {
                self.tally.foreign += 1;
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
                self.tally.refused += 1;
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
                    self.sent_by.insert(n, (volume, 0));
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

    fn operate(&mut self, operation: Operation) -> Result<(), String> {
        let volume = |n: usize| format!("/v1/volumes/{}", self.plan.volumes[n].name);
        let pool = |what: &str| format!("/v1/pools/{}/{what}", self.plan.pool);
        let set = |body: Value| {
            self.node.unless("the pool has no such layer", "PATCH", &pool("settings"), Some(body)).map(drop)
        };
        match operation {
            Operation::Mode(n, mode) => self.node.must("PATCH", &volume(n), Some(json!({ "cache": mode }))).map(drop),
            Operation::Checkpoint => {
                if self.plan.has_cache() {
                    self.node.must("POST", &pool("cache/flush"), None)?;
                }
                if self.plan.logs.is_some() {
                    self.node.must("POST", &pool("logs/checkpoint"), None)?;
                }
                Ok(())
            }
            Operation::CacheBytes(bytes) => set(json!({ "cache_size_bytes": bytes })),
            Operation::LoggedWrite(bytes) => set(json!({ "logged_write_bytes": bytes })),
            Operation::IdleUs(us) => set(json!({ "idle_us": us })),
            Operation::Fingerprints(percent) => set(json!({ "fingerprints_percent": percent })),
            Operation::Slack(low, high) => set(json!({ "core_slack_low_us": low, "core_slack_high_us": high })),
            Operation::Slots(slots, ms) => set(json!({ "slots": slots, "slot_us": ms * 1000 })),
            Operation::Limit(_) => unreachable!("its node's configuration changes"),
            Operation::Inject(n, what) => {
                let path = format!("{}/inject", volume(n));
                // Those before it can't be hit, those after its end neither.
                self.until(|r| r.oracle.in_flight_of(n) == 0)?;
                self.failing[n] = matches!(what, Some((Fault::Errors, _)));
                let Some((fault, permille)) = what else {
                    return self.node.unless("nothing is injected", "DELETE", &path, None).map(drop);
                };
                let mut body = json!({ "share_permille": permille, "for_us": 60_000_000, "seed": self.plan.seed });
                match fault {
                    Fault::Errors => body["fault"] = "errors".into(),
                    Fault::LatencyUs(us) => (body["fault"], body["latency_us"]) = ("latency".into(), us.into()),
                }
                self.node.must("PUT", &path, Some(body)).map(drop)
            }
            Operation::Grow(n, bytes) => {
                let path = volume(n);
                self.until(|r| r.oracle.in_flight_of(n) == 0)?;
                self.node.must("PATCH", &path, Some(json!({ "size_bytes": bytes })))?;
                self.oracle.grown(n, bytes);
                self.sizes[n] = bytes;
                self.connect(n)
            }
            Operation::Remake(n, bytes) => {
                let path = volume(n);
                self.until(|r| r.oracle.in_flight_of(n) == 0)?;
                self.connections[n].clear();
                // The tenant whose slot runs keeps its volume until the slot ends.
                let delete = format!("{path}?disconnect=true&declared=true");
                if self.node.unless("owns the time slot that runs", "DELETE", &delete, None)? {
                    // Of best effort: an objective may be refused, as it may not fit beside the others.
                    let (name, tenant) = (self.plan.volumes[n].name, TENANTS[1]);
                    let body = json!({ "name": name, "pool": self.plan.pool, "size_bytes": bytes, "tenant": tenant });
                    self.node.must("POST", "/v1/volumes", Some(body))?;
                    self.oracle.remade(n, bytes);
                    self.sizes[n] = bytes;
                    self.failing[n] = false;
                }
                self.connect(n)
            }
        }
    }

    /// Limits the last volume once it has no requests; true if that differs. The caller changes the configuration.
    pub fn limit(&mut self, iops: Option<u64>) -> Result<bool, String> {
        let last = self.sizes.len() - 1;
        self.until(|r| r.oracle.in_flight_of(last) == 0)?;
        Ok(std::mem::replace(&mut self.plan.limit_iops, iops) != iops)
    }

    /// The configuration was read again.
    pub fn reloaded(&mut self) -> Result<(), String> {
        self.found_sizes(false)?;
        let last = self.sizes.len() - 1;
        self.until(|r| r.oracle.in_flight_of(last) == 0)?;
        self.connect(last)
    }
}
