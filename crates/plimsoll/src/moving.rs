//! `plimsoll pool move`, `plimsoll volume move`: a pool on an RBD image goes from one gateway to another, with one command.
//!
//! The decisions are a state machine without I/O ([`Plan`], [`Moving`]); the rest of this file carries its steps out at the two nodes.

use crate::client::{Client, Control, Silent, print_json, segment};
use anyhow::{Result, anyhow, bail};
use clap::Args;
use hyper::Method;
use plimsoll_node::http::api::{Health, PoolImage, PoolPath, PoolReleased, PoolTaken, Status, VolumeStatus};
use serde::Serialize;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// A gateway that doesn't answer within this time is taken for one that hangs.
const ANSWER_TIME: Duration = Duration::from_secs(5);
/// Limit of a look at an image: librados gives up earlier.
const LOOK_TIME: Duration = Duration::from_secs(90);
/// Interval of checks whether the new gateway serves the pool.
const SERVED_INTERVAL: Duration = Duration::from_millis(50);

/// The new gateway, and what may be done at the old one.
#[derive(Args, Clone, Debug)]
pub struct To {
    /// Control socket or address of the new gateway; --control is the old one's.
    #[arg(long, value_name = "PATH|URL")]
    to: String,
    /// File with the new gateway's token, if --to is an address.
    #[arg(long, value_name = "FILE")]
    to_token_file: Option<PathBuf>,
    /// Disconnect the clients of its volumes. Without it a pool in use isn't moved.
    #[arg(long)]
    disconnect: bool,
    /// Take the lock away from an old gateway that hangs or can't be reached. Ceph refuses its requests for a year.
    #[arg(long)]
    force: bool,
}

/// The old gateway's answer.
#[derive(Clone, Debug)]
enum Old {
    /// None, with the reason.
    Silent(String),
    Answers(PoolImage),
}

/// All that is known before anything is done.
#[derive(Clone, Debug)]
struct Facts {
    pool: String,
    old: Old,
    new: PoolImage,
    /// The gateways, as the user named them.
    names: [String; 2],
    disconnect: bool,
    force: bool,
}

/// The way in which a pool moves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Plan {
    /// The old gateway releases it.
    InOrder,
    /// No gateway has it.
    Vacant,
    /// Its owner is blocked.
    ByForce,
}

impl Facts {
    /// Chooses the way, or refuses the move with the reason.
    fn plan(&self) -> Result<Plan, String> {
        let Facts { pool, new, names: [from, to], .. } = self;
        if new.served {
            return Err(format!("pool `{pool}` is served at {to} already"));
        }
        if let Old::Answers(old) = &self.old {
            self.paths_agree(old)?;
        }
        let served_at_old = match &self.old {
            Old::Answers(old) if old.served => Some(old),
            _ => None,
        };
        // A start would refuse it, too, and name the volumes only.
        if served_at_old.is_none() {
            self.has_no_need_of_a_cache()?;
        }
        if !new.faults.is_empty() {
            let faults = new.faults.join("; ");
            return Err(format!("pool `{pool}` can't be served at {to}, and nothing was changed: {faults}"));
        }
        if let Some(old) = served_at_old {
            return self.in_order(old);
        }
        if new.needs_cache.is_none() {
            return Err(format!(
                "pool `{pool}`: its metadata on {} can't be read at {to}, so nobody knows whether a cache has its newest data: nothing was changed",
                new.device
            ));
        }
        match (&self.old, &new.owner) {
            (_, None) => Ok(Plan::Vacant),
            (_, Some(_)) if self.force => Ok(Plan::ByForce),
            (Old::Silent(why), Some(owner)) => Err(format!(
                "the old gateway doesn't answer: {why}. It may still write, as client {owner} has the lock of {}. If its process has \
                 ended: `plimsoll pool take {pool}` at {to}. If it hangs or can't be reached: move with --force, which blocks it before",
                new.device
            )),
            (Old::Answers(old), Some(owner)) => Err(format!(
                "pool `{pool}` isn't served at {from}{}: client {owner} has the lock of {}. Name its gateway with --control, or move with \
                 --force, which blocks it before",
                old.why_not.as_ref().map_or(String::new(), |why| format!(" ({why})")),
                new.device
            )),
        }
    }

    /// Refuses a move after which NVMe/TCP hosts would not find their namespaces at the new gateway, or would take them for others.
    fn paths_agree(&self, old: &PoolImage) -> Result<(), String> {
        let Facts { pool, new, names: [from, to], .. } = self;
        let found = |all: &[PoolPath], nqn: &str| all.iter().find(|p| p.nqn == nqn).cloned();
        for nqn in old.paths.iter().chain(&new.paths).map(|p| p.nqn.as_str()) {
            let fault = match (found(&old.paths, nqn), found(&new.paths, nqn)) {
                (Some(_), None) => format!("it is a path at {from} only"),
                (None, Some(_)) => format!("it is a path at {to} only"),
                (Some(one), Some(other)) if one.path == other.path => {
                    format!("both gateways have `path = {}`", one.path)
                }
                (Some(one), Some(other)) if PoolPath { path: one.path, ..other.clone() } != one => {
                    format!("its namespace is {} at {from}, and {} at {to}", namespace(&one), namespace(&other))
                }
                _ => continue,
            };
            return Err(format!(
                "pool `{pool}` isn't moved, and nothing was changed: NVMe/TCP hosts could not go on with subsystem `{nqn}`: {fault}. Correct \
                 `[[subsystem]]` and `[[volume]]`, and restart the node that was wrong"
            ));
        }
        Ok(())
    }

    fn in_order(&self, old: &PoolImage) -> Result<Plan, String> {
        let Facts { pool, new, names: [from, to], .. } = self;
        if new.owner.is_none() || new.owner != old.owner || new.device_uuid != old.device_uuid {
            let shown = |owner: &Option<String>| owner.clone().unwrap_or("nobody".into());
            return Err(format!(
                "pool `{pool}` is on another image at {to}, and nothing was changed: {from} has the lock of its image as client {}, and {to} sees \
                 {} as the owner. Compare `device` in both configurations",
                shown(&old.owner),
                shown(&new.owner)
            ));
        }
        if old.connections > 0 && !self.disconnect {
            return Err(format!(
                "pool `{pool}` is in use at {from}: {} connections: let them disconnect, or move with --disconnect",
                old.connections
            ));
        }
        Ok(Plan::InOrder)
    }

    /// Refuses a move without the cache that may have the newest data, by the names of the volumes.
    fn has_no_need_of_a_cache(&self) -> Result<(), String> {
        let volumes = self.new.needs_cache.iter().flatten().cloned().collect::<Vec<_>>().join(", ");
        if volumes.is_empty() {
            return Ok(());
        }
        Err(format!(
            "pool `{}`: only the old gateway's cache may have the newest data of volumes {volumes}, so the pool isn't moved without it. Start the \
             old gateway again, and move then. If that cache is lost: see \"A write-back cache whose gateway is gone\" in docs/guides/ceph.md, \
             which LOSES these data",
            self.pool
        ))
    }
}

/// A step at one of the nodes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    /// The old gateway writes its cache back and releases the pool.
    Release,
    /// Asks whether the old gateway serves the pool after a release that failed.
    LookAtOld,
    /// The new gateway takes the pool, and is waited for until it serves.
    Take { force: bool },
    /// Asks whether the new gateway serves the pool after a take that failed.
    LookAtNew,
    /// The old gateway takes the pool back.
    GiveBack,
    /// Nothing is left to do.
    Over,
}

/// A move's result.
#[derive(Clone, PartialEq, Eq, Debug)]
enum End {
    Moved {
        by_force: bool,
    },
    /// It is where it was.
    Unchanged {
        why: String,
    },
    /// The old gateway has it again.
    GivenBack {
        why: String,
    },
    /// Nobody serves it.
    Nowhere {
        why: String,
        back: Option<String>,
    },
}

/// A move that has begun.
#[derive(Debug)]
struct Moving {
    plan: Plan,
    force: bool,
    /// The lock was taken from its owner.
    by_force: bool,
    step: Step,
    why: String,
    end: Option<End>,
}

impl Moving {
    fn new(plan: Plan, force: bool) -> Moving {
        let step = match plan {
            Plan::InOrder => Step::Release,
            Plan::Vacant => Step::Take { force: false },
            Plan::ByForce => Step::Take { force: true },
        };
        Moving { plan, force, by_force: false, step, why: String::new(), end: None }
    }

    /// Notes how the step ended. Of a look, `Ok` says that the pool is served there.
    fn done(&mut self, result: Result<(), String>) {
        let why = std::mem::take(&mut self.why);
        let was_owned = self.plan == Plan::InOrder;
        self.by_force |= self.step == Step::Take { force: true };
        let over = |end| (Step::Over, String::new(), Some(end));
        let (step, why, end) = match (self.step, result) {
            (Step::Release, Ok(())) => (Step::Take { force: false }, why, None),
            (Step::Release, Err(why)) => (Step::LookAtOld, why, None),
            (Step::LookAtOld, Ok(())) => over(End::Unchanged { why }),
            (Step::LookAtOld, Err(_)) if self.force => (Step::Take { force: true }, why, None),
            (Step::LookAtOld, Err(_)) => (Step::GiveBack, why, None),
            (Step::Take { force: by_force }, Ok(())) => over(End::Moved { by_force }),
            (Step::Take { .. }, Err(why)) => (Step::LookAtNew, why, None),
            (Step::LookAtNew, Ok(())) => over(End::Moved { by_force: self.by_force }),
            (Step::LookAtNew, Err(_)) if was_owned => (Step::GiveBack, why, None),
            (Step::LookAtNew, Err(_)) => over(End::Nowhere { why, back: None }),
            (Step::GiveBack, Ok(())) => over(End::GivenBack { why }),
            (Step::GiveBack, Err(back)) => over(End::Nowhere { why, back: Some(back) }),
            (Step::Over, _) => return,
        };
        (self.step, self.why, self.end) = (step, why, end.or(self.end.take()));
    }
}

/// A finished move, for programs.
#[derive(Serialize)]
struct Moved {
    moved: String,
    from: String,
    to: String,
    device: String,
    volumes: Vec<String>,
    disconnected: u64,
    by_force: bool,
    /// From the first question to the pool's being served.
    seconds: f64,
    /// No gateway served it for this time; null if that isn't known.
    unserved_seconds: Option<f64>,
}

/// Moves a pool from the node at `control`.
pub fn pool(name: &str, to: &To, control: &Control) -> Result<()> {
    let began = Instant::now();
    let names = [control.name().to_string(), to.to.clone()];
    let nodes = Nodes {
        pool: name.to_string(),
        old: Client::new(control)?,
        new: Client::new(&Control::at(&to.to, to.to_token_file.as_deref()))?,
        disconnect: to.disconnect,
    };
    let old = nodes.old()?;
    let new = nodes.new.get_private_within(&nodes.path("image"), LOOK_TIME)?;
    let facts = Facts { pool: name.into(), old, new, names, disconnect: to.disconnect, force: to.force };
    let plan = facts.plan().map_err(anyhow::Error::msg)?;
    let say = |what: String| {
        if !control.json {
            println!("{what}");
        }
    };
    say(facts.text(plan));
    let mut moving = Moving::new(plan, to.force);
    let (mut released, mut taken) = (None::<PoolReleased>, None::<PoolTaken>);
    let mut unserved = Duration::ZERO;
    while moving.step != Step::Over {
        let (step, at) = (moving.step, Instant::now());
        let result = match step {
            Step::Release => nodes.release().map(|r| {
                unserved += Duration::from_micros(r.closed_in_us);
                say(format!("  released at {} after {:.1} s", facts.names[0], at.elapsed().as_secs_f64()));
                released = Some(r);
            }),
            Step::Take { force } => {
                if force {
                    say(crate::pool::outlasts());
                }
                nodes.take(&nodes.new, force).map(|t| taken = Some(t))
            }
            Step::GiveBack => {
                say(format!("  {}: {} takes it back", moving.why, facts.names[0]));
                nodes.take(&nodes.old, false).map(drop)
            }
            Step::LookAtOld => nodes.is_served(&nodes.old),
            Step::LookAtNew => nodes.is_served(&nodes.new),
            Step::Over => Ok(()),
        };
        if step != Step::Release {
            unserved += at.elapsed();
        }
        moving.done(result.map_err(|e| format!("{e:#}")));
    }
    let [from, to] = facts.names.clone();
    let by_force = match moving.end.unwrap_or(End::Unchanged { why: String::new() }) {
        End::Moved { by_force } => by_force,
        End::Unchanged { why } => bail!("pool `{name}` isn't moved, and is served at {from}: {why}"),
        End::GivenBack { why } => {
            bail!("pool `{name}` isn't moved, and is served at {from} again: {to} couldn't take it: {why}")
        }
        End::Nowhere { why, back } => bail!("{}", nowhere(name, &from, &to, &why, back.as_deref())),
    };
    let volumes = match taken {
        Some(taken) => taken.volumes,
        None => nodes.volumes(&nodes.new)?,
    };
    let moved = Moved {
        moved: name.into(),
        from,
        to,
        device: facts.new.device.clone(),
        volumes,
        disconnected: released.as_ref().map_or(0, |r| r.disconnected),
        by_force,
        seconds: began.elapsed().as_secs_f64(),
        unserved_seconds: (plan == Plan::InOrder).then_some(unserved.as_secs_f64()),
    };
    if control.json {
        return print_json(&moved);
    }
    println!("pool {name} is served at {}: {}", moved.to, moved.device);
    if !moved.volumes.is_empty() {
        println!("  with it came {}", moved.volumes.join(", "));
    }
    let unserved =
        moved.unserved_seconds.map_or(String::new(), |s| format!(", of which no gateway served it for {s:.1} s"));
    println!("  moved in {:.1} s{unserved}", moved.seconds);
    if by_force {
        println!("  the old owner is blocked: restart or end the old gateway before its pool goes back");
    }
    Ok(())
}

/// Moves the pool of a volume.
pub fn volume(name: &str, whole_pool: bool, to: &To, control: &Control) -> Result<()> {
    let client = Client::new(control)?;
    let all: Vec<VolumeStatus> = client.get_within("/v1/volumes", ANSWER_TIME).map_err(|e| match e.is::<Silent>() {
        true => anyhow!(
            "{e}; so the volume's pool isn't known: name it to `plimsoll pool move POOL --to {} --force`",
            to.to
        ),
        false => e,
    })?;
    let Some(volume) = all.iter().find(|v| v.name == name) else {
        bail!("there is no volume `{name}` at {}: `plimsoll volume list` lists them", control.name())
    };
    let beside: Vec<&str> =
        all.iter().filter(|v| v.pool == volume.pool && v.name != name).map(|v| v.name.as_str()).collect();
    if !beside.is_empty() && !whole_pool {
        bail!(
            "volume `{name}` is in pool `{}` with {}, and a pool moves as a whole: move all of them with --whole-pool",
            volume.pool,
            beside.join(", ")
        );
    }
    pool(&volume.pool, to, control)
}

/// A path's namespace, for people.
fn namespace(path: &PoolPath) -> String {
    let read_only = if path.read_only { ", read-only" } else { "" };
    format!("volume `{}` of {} bytes{read_only}", path.volume, path.size_bytes)
}

/// The text for a pool that nobody serves after a move.
fn nowhere(name: &str, from: &str, to: &str, why: &str, back: Option<&str>) -> String {
    match back {
        None => format!(
            "pool `{name}` is served NOWHERE: {to} couldn't take it: {why}. Correct that, then `plimsoll pool take {name}` at {to}"
        ),
        Some(back) => format!(
            "pool `{name}` is served NOWHERE: {why}. {from} couldn't take it back: {back}. Correct one of both, then `plimsoll pool take {name}` there"
        ),
    }
}

impl Facts {
    /// The plan, for people.
    fn text(&self, plan: Plan) -> String {
        let Facts { pool, new, names: [from, to], .. } = self;
        let (device, owner) = (&new.device, new.owner.as_deref().unwrap_or("nobody"));
        match (plan, &self.old) {
            (Plan::InOrder, Old::Answers(old)) => {
                let dirty = old.needs_cache.as_ref().filter(|volumes| !volumes.is_empty());
                let dirty =
                    dirty.map_or(String::new(), |v| format!("; first its cache is written back: {}", v.join(", ")));
                format!("pool {pool} moves from {from} to {to}: {device}{dirty}")
            }
            (Plan::ByForce, _) => format!("pool {pool} is taken from client {owner} by force, for {to}: {device}"),
            _ => format!("pool {pool} has no owner, and moves to {to}: {device}"),
        }
    }
}

/// The two nodes of a move.
struct Nodes {
    pool: String,
    old: Client,
    new: Client,
    disconnect: bool,
}

impl Nodes {
    fn path(&self, order: &str) -> String {
        format!("/v1/pools/{}/{order}", segment(&self.pool))
    }

    /// Asks the old gateway for the pool. One that doesn't answer is no error.
    fn old(&self) -> Result<Old> {
        let alive = self.old.get_within::<Health>("/healthz", ANSWER_TIME).map(drop);
        let asked = match alive {
            Err(e) if e.is::<Silent>() => Err(e),
            // One that isn't healthy has an answer, too.
            _ => self.old.get_private_within(&self.path("image"), LOOK_TIME),
        };
        match asked {
            Ok(image) => Ok(Old::Answers(image)),
            Err(e) if e.is::<Silent>() => Ok(Old::Silent(e.to_string())),
            Err(e) => Err(e),
        }
    }

    fn release(&self) -> Result<PoolReleased> {
        let disconnect = if self.disconnect { "&disconnect=true" } else { "" };
        self.old.order_for(Method::POST, &self.path(&format!("release?write_back=true{disconnect}")))
    }

    /// Takes the pool at one of the nodes, and waits until it is served there.
    fn take(&self, node: &Client, force: bool) -> Result<PoolTaken> {
        let taken = node.order_for(Method::POST, &self.path(if force { "take?force=true" } else { "take" }))?;
        loop {
            match self.state(node)?.as_str() {
                "ready" | "degraded" => return Ok(taken),
                "recovering" => std::thread::sleep(SERVED_INTERVAL),
                state => bail!("it is {state} there: its log has the reason"),
            }
        }
    }

    fn state(&self, node: &Client) -> Result<String> {
        let status: Status = node.get("/v1/status")?;
        let pool = status.pools.into_iter().find(|p| p.name == self.pool);
        pool.map(|p| p.state).ok_or_else(|| anyhow!("it isn't there any more"))
    }

    fn is_served(&self, node: &Client) -> Result<()> {
        let image: PoolImage = node.get_private_within(&self.path("image"), LOOK_TIME)?;
        if image.served { Ok(()) } else { Err(anyhow!("it isn't served there")) }
    }

    fn volumes(&self, node: &Client) -> Result<Vec<String>> {
        let all: Vec<VolumeStatus> = node.get("/v1/volumes")?;
        Ok(all.into_iter().filter(|v| v.pool == self.pool).map(|v| v.name).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(served: bool, owner: Option<&str>) -> PoolImage {
        PoolImage {
            pool: "far".into(),
            device: "rbd pool/image".into(),
            served,
            why_not: None,
            device_uuid: Some("1".into()),
            owner: owner.map(Into::into),
            needs_cache: Some(Vec::new()),
            connections: 0,
            faults: Vec::new(),
            paths: Vec::new(),
        }
    }

    fn facts(old: Old, new: PoolImage) -> Facts {
        let names = ["old.sock".into(), "new.sock".into()];
        Facts { pool: "far".into(), old, new, names, disconnect: false, force: false }
    }

    fn answers(served: bool, owner: Option<&str>) -> Old {
        Old::Answers(image(served, owner))
    }

    #[track_caller]
    fn refused(facts: &Facts, part: &str) {
        let why = facts.plan().unwrap_err();
        assert!(why.contains(part), "{why}");
    }

    #[test]
    fn a_pool_that_is_served_moves_in_order_and_only_from_the_owner_that_both_see() {
        let planned = facts(answers(true, Some("a")), image(false, Some("a")));
        assert_eq!(planned.plan(), Ok(Plan::InOrder));
        assert_eq!(Facts { force: true, ..planned.clone() }.plan(), Ok(Plan::InOrder), "force isn't needed");
        refused(&facts(answers(true, Some("a")), image(true, Some("b"))), "is served at new.sock already");
        for other in [None, Some("b")] {
            refused(&facts(answers(true, Some("a")), image(false, other)), "on another image");
            refused(&Facts { force: true, ..facts(answers(true, Some("a")), image(false, other)) }, "on another image");
        }
        let copy = PoolImage { device_uuid: Some("2".into()), ..image(false, Some("a")) };
        refused(&facts(answers(true, Some("a")), copy), "on another image");
        let faulty = PoolImage { faults: vec!["no key".into()], ..image(false, Some("a")) };
        refused(&Facts { force: true, ..facts(answers(true, Some("a")), faulty) }, "nothing was changed: no key");
        let used = facts(Old::Answers(PoolImage { connections: 2, ..image(true, Some("a")) }), image(false, Some("a")));
        refused(&used, "2 connections");
        assert_eq!(Facts { disconnect: true, ..used }.plan(), Ok(Plan::InOrder));
        // What only the old gateway's cache has is written back by the release.
        let dirty = PoolImage { needs_cache: Some(vec!["v".into()]), ..image(false, Some("a")) };
        assert_eq!(facts(answers(true, Some("a")), dirty).plan(), Ok(Plan::InOrder));
    }

    /// A host joins paths to one namespace only, and finds the other gateway's controllers by their numbers.
    #[test]
    fn gateways_whose_paths_do_not_agree_move_nothing() {
        let path =
            |path, size_bytes| PoolPath { nqn: "nqn.a".into(), path, volume: "v".into(), size_bytes, read_only: false };
        let with = |old: &[PoolPath], new: &[PoolPath], owner| {
            let old = PoolImage { paths: old.to_vec(), ..image(owner == Some("a"), owner) };
            facts(Old::Answers(old), PoolImage { paths: new.to_vec(), ..image(false, owner) })
        };
        for owner in [Some("a"), None] {
            assert!(with(&[path(1, 512)], &[path(2, 512)], owner).plan().is_ok());
            refused(&with(&[path(1, 512)], &[], owner), "a path at old.sock only");
            refused(&with(&[], &[path(1, 512)], owner), "a path at new.sock only");
            refused(&with(&[path(1, 512)], &[path(1, 512)], owner), "both gateways have `path = 1`");
            refused(
                &with(&[path(1, 512)], &[path(2, 1024)], owner),
                "`v` of 512 bytes at old.sock, and volume `v` of 1024",
            );
            let read_only = PoolPath { read_only: true, ..path(2, 512) };
            let by_force = Facts { force: true, ..with(&[path(1, 512)], &[read_only], owner) };
            refused(&by_force, "read-only at new.sock");
        }
    }

    #[test]
    fn an_owner_that_does_not_release_is_blocked_by_order_only() {
        let silent = || Old::Silent("timed out".into());
        for old in [silent(), answers(false, None)] {
            assert_eq!(facts(old.clone(), image(false, None)).plan(), Ok(Plan::Vacant));
            refused(&facts(old.clone(), image(false, Some("a"))), "--force");
            let by_force = |new| Facts { force: true, ..facts(old.clone(), new) };
            assert_eq!(by_force(image(false, None)).plan(), Ok(Plan::Vacant));
            assert_eq!(by_force(image(false, Some("a"))).plan(), Ok(Plan::ByForce));
            for owner in [None, Some("a")] {
                let dirty = PoolImage { needs_cache: Some(vec!["v".into(), "w".into()]), ..image(false, owner) };
                refused(&by_force(dirty), "volumes v, w");
                refused(&by_force(PoolImage { needs_cache: None, ..image(false, owner) }), "can't be read");
            }
        }
    }

    /// The steps of a move whose steps end so, and its end.
    fn run(plan: Plan, force: bool, results: &[Result<(), &str>]) -> (Vec<Step>, Option<End>) {
        let (mut moving, mut steps) = (Moving::new(plan, force), Vec::new());
        for result in results {
            steps.push(moving.step);
            moving.done(result.map_err(str::to_string));
        }
        assert_eq!(moving.step, Step::Over, "{steps:?}");
        (steps, moving.end)
    }

    #[test]
    fn a_move_ends_at_one_gateway_or_says_that_it_ended_at_none() {
        use Step::{GiveBack, LookAtNew, LookAtOld, Release};
        let (take, by_force) = (Step::Take { force: false }, Step::Take { force: true });
        let no = |why| Err::<(), &str>(why);
        let unchanged = |why: &str| Some(End::Unchanged { why: why.into() });
        let given_back = |why: &str| Some(End::GivenBack { why: why.into() });
        let nowhere =
            |why: &str, back: Option<&str>| Some(End::Nowhere { why: why.into(), back: back.map(Into::into) });
        let moved = |by_force| Some(End::Moved { by_force });
        let in_order = |force, results: &[_]| run(Plan::InOrder, force, results);
        assert_eq!(in_order(false, &[Ok(()), Ok(())]), (vec![Release, take], moved(false)));
        assert_eq!(in_order(true, &[no("busy"), Ok(())]), (vec![Release, LookAtOld], unchanged("busy")));
        let hung = [no("late"), no("-"), Ok(())];
        assert_eq!(in_order(false, &hung), (vec![Release, LookAtOld, GiveBack], given_back("late")));
        assert_eq!(in_order(true, &hung), (vec![Release, LookAtOld, by_force], moved(true)));
        let steps = vec![Release, take, LookAtNew, GiveBack];
        assert_eq!(in_order(false, &[Ok(()), no("x"), no("-"), Ok(())]), (steps.clone(), given_back("x")));
        assert_eq!(in_order(false, &[Ok(()), no("x"), no("-"), no("y")]), (steps, nowhere("x", Some("y"))));
        // The answer was lost, and nothing else.
        assert_eq!(in_order(false, &[Ok(()), no("x"), Ok(())]), (vec![Release, take, LookAtNew], moved(false)));
        assert_eq!(run(Plan::Vacant, true, &[Ok(())]), (vec![take], moved(false)));
        let failed = [no("x"), no("-")];
        assert_eq!(run(Plan::Vacant, false, &failed), (vec![take, LookAtNew], nowhere("x", None)));
        assert_eq!(run(Plan::ByForce, true, &[Ok(())]), (vec![by_force], moved(true)));
        // An owner that was blocked can't have it back.
        assert_eq!(run(Plan::ByForce, true, &failed), (vec![by_force, LookAtNew], nowhere("x", None)));
    }
}
