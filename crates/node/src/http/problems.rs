//! Problems of a node: the fault, its place, and the remedy.
//!
//! | problem | when | `/healthz` |
//! |---|---|---|
//! | a pool doesn't serve as it should | failed, recovering, degraded, a failed flush | 503 |
//! | the node is ending | from SIGTERM or `plimsoll drain` on; pools that are done are no problem of their own | 503 |
//! | a cache's device failed | as long as the pool is served without its cache; volumes with dirty extents make the pool degraded, too | 200 |
//! | a promise is broken | an objective in the last minute, see [`are_too_many`] | 200 |
//! | an objective can't be kept | a pool's cores can't keep it beside the others' at the worst load that permits let in, by enough requests or the device's profile; or the device alone misses it | 200 |
//! | deadlines are missed | more than [`MISSED_PERMILLE`] of the last minute's accepted reads, or than the tenant's percentile or the pool's `miss_percent` leaves; with an automatic deadline, of those that wait more than twice its share; see [`are_too_many`] | 200 |
//! | a request is stuck | in flight for longer than [`STUCK`] | 200 |
//! | requests fail | at the device or for lack of space, in the last [`FAILED_MINUTES`] | 200 |
//! | write-back fails | as long as extents of a volume can't be written to the pool's device | 200 |
//! | a pool's metadata can't be changed | from a failed change of them on, until they are opened anew | 200 |
//! | a change of a pool hangs | a change of its volumes, tenants or settings is under way for longer than [`STUCK`] | 200 |
//! | a pool's removal hangs | removed more than [`LEAVING`] ago, and its device isn't closed | 200 |
//! | a volume isn't as configured | the start or the last reload couldn't make, grow or serve it | 200 |
//! | faults are injected | as long as they are | 200 |
//!
//! A node that breaks a promise still serves. So a load balancer that takes nodes out of service by the status of `/healthz` doesn't
//! take such a node out.

use super::inject;
use super::status::{Views, objectives, pools_without};
use crate::directory::{Directory, Tenant};
use crate::engine::PoolSnapshot;
use crate::engine::recent::{Counts, Tally, Within};
use crate::events::{unix_us, utc};
use crate::node::{Ending, Node, RunningPool, metadata_failed};
use crate::parts::PoolView;
use crate::parts::cache::{self, FailingVolume};
use crate::parts::cores::Cores;
use crate::view::{ExportPromise, FAILED_MINUTES};
use plimsoll_base::{IoError, Objective, Span, TenantId, VolumeKey};
use plimsoll_cores::admission::Fit;
use plimsoll_cores::{Missed, QueueStatus};
use plimsoll_stack::LayerState;
use std::sync::Arc;
use std::time::Duration;

/// Requests in the last minute below which chance may decide: then [`FEW_TIMES`] times the allowed number must be late.
const REQUESTS_LEAST: u64 = 100;
/// Fewer requests than this, or fewer late ones, are no evidence at all.
const FEW_LEAST: u64 = 10;
const FEW_LATE_LEAST: u64 = 3;
/// Factor over the allowed late requests that is evidence among few: by chance it has a probability below one in a hundred.
const FEW_TIMES: u64 = 10;
/// Accepted reads that may miss their deadlines, in thousandths.
const MISSED_PERMILLE: u64 = 10;
/// A pool that was removed longer ago has a device that doesn't answer.
const LEAVING: Duration = Duration::from_secs(30);
/// A request that has been inside for longer is stuck.
const STUCK: Span = Span::from_secs(30);

/// A problem.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Problem {
    /// The fault's kind and place: the same as long as it lasts.
    pub key: String,
    /// The fault, its place, and the remedy.
    pub text: String,
    /// True if a pool doesn't serve as it should.
    pub is_outage: bool,
}

/// All problems, outages first.
pub fn problems(node: &Node, directory: &Directory, views: &Views) -> Vec<Problem> {
    let mut all: Vec<Problem> = node.ending().map(|e| ending(e, node, views)).into_iter().collect();
    for (_, p, view) in node.pools.with(views) {
        let text = match &p.failed {
            Some(why) => Some(match node.late_pool(&p.name) {
                Some((section, since, is_wanted)) => late(&p.name, &section.device.label(), since, is_wanted),
                None => format!("{why}: repair it, then `plimsoll reload`"),
            }),
            None if view.is_none() && node.is_done(&p) => None,
            None => outage(&p.name, view.map(|v| &v.pool)),
        };
        let key = format!("pool `{}`", p.name);
        all.extend(text.map(|text| Problem { key, text, is_outage: true }));
    }
    let mut rest: Vec<(String, String)> = Vec::new();
    for (_, p) in node.pools.all() {
        rest.extend(stuck_change(&p.name, p.changes_for()));
        let failed = p.metadata_failed().map(|why| metadata_failed(&p.name, why));
        rest.extend(failed.map(|text| (format!("pool `{}`: its metadata", p.name), text)));
    }
    for (name, t) in &directory.tenants {
        let without = || pools_without::<Cores>(node, directory, name, views);
        rest.extend(broken_objectives(name, t, views, without));
    }
    for (pool, p, view) in node.pools.with(views) {
        let Some(view) = view else { continue };
        for e in &view.pool.promises {
            let volume = directory.volume_name(pool, e.key);
            rest.extend(missed_deadlines(&volume, pool, e, directory, node));
            rest.extend(failures(&volume, &p.name, e));
        }
        rest.extend(unkept_objectives(&p.name, view, directory));
        rest.extend(cache(&p, view, unix_us()));
        rest.extend(osds(&p.name, view));
        rest.extend(write_backs(&p, view, |key| directory.volume_name(pool, key)));
        rest.extend(stuck(&p.name, &view.pool, |key| directory.volume_name(pool, key)));
    }
    for (section, why) in node.unmade_volumes() {
        let text = format!("{why}: everything else is served; `plimsoll reload` tries it again");
        rest.push((format!("{section}: its configuration"), text));
    }
    let injected = inject::injections(directory, views);
    rest.extend(injected.iter().map(|i| (format!("volume `{}`: injected faults", i.volume), inject::problem(i))));
    for (p, since) in node.pools.leaving().iter().filter(|(_, since)| since.elapsed() > LEAVING) {
        let text = format!(
            "pool `{}` was removed {} s ago, and its device {} isn't closed: it hasn't answered every request; check the device and the \
             kernel's log",
            p.name,
            since.elapsed().as_secs(),
            p.device
        );
        rest.push((format!("pool `{}`: its removal", p.name), text));
    }
    all.extend(rest.into_iter().map(|(key, text)| Problem { key, text, is_outage: false }));
    all
}

/// A pool of the start whose device hasn't answered yet. If it isn't wanted any more, its section was changed meanwhile.
fn late(name: &str, device: &str, since: Duration, is_wanted: bool) -> String {
    let seconds = since.as_secs();
    match is_wanted {
        true => format!(
            "pool `{name}` is still being opened: its device {device} hasn't answered for {seconds} s; check the device and the kernel's \
             log. The pool is served as soon as it is open"
        ),
        false => format!(
            "pool `{name}`: its section was changed, and the earlier try to open it at {device} hasn't ended for {seconds} s: check that \
             device and reload when it has answered; restart the node if it never will"
        ),
    }
}

/// The end of the node, with the requests that it waits for.
fn ending(e: &Ending, node: &Node, views: &Views) -> Problem {
    let of = |(_, p, view): (usize, Arc<RunningPool>, Option<&PoolView>)| match view.map(|v| v.pool.inflight) {
        Some(0) | None => None,
        Some(n) => Some(format!("{n} requests in flight in pool `{}`", p.name)),
    };
    let inside: Vec<String> = node.pools.with(views).into_iter().filter_map(of).collect();
    let doing = if inside.is_empty() { "data are flushed".into() } else { inside.join(", ") };
    let since = utc(e.since_unix_us);
    let text = format!("the node is ending since {since}: {doing}; it ends by itself, within `control.drain`");
    Problem { key: "the node".into(), text, is_outage: true }
}

/// Returns the reason for which a pool doesn't serve.
pub(super) fn outage(name: &str, pool: Option<&PoolSnapshot>) -> Option<String> {
    let what = match pool {
        None => "has ended or doesn't answer: its clients get errors; see the log for the reason, then restart the node".to_string(),
        Some(p) if p.flush_failed => format!(
            "had a failed flush: every flush and durable write fails since then; find the device that failed; \
             docs/guides/backup-and-recover.md, \"After a failed flush\", tells whether `plimsoll pool recover {name}` or a restart is right"
        ),
        Some(p) if p.state == LayerState::Recovering => "is recovering: its clients are refused until that ends; wait".to_string(),
        Some(p) if p.state == LayerState::Failed => "has failed: its clients get errors; the log has the reason and the remedy".to_string(),
        Some(p) if p.state == LayerState::Degraded => {
            "is degraded: a layer lost data, or can't write (no space, a failing device); `plimsoll logs status`, `plimsoll cache status` and the log say which".to_string()
        }
        Some(_) => return None,
    };
    Some(format!("pool `{name}` {what}"))
}

/// A cache's device that failed, at the start or later, while the pool is served without it.
fn cache(pool: &RunningPool, view: &PoolView, now_unix_us: u64) -> Option<(String, String)> {
    let seen = view.layers.of::<crate::parts::cache::Cache>()?;
    let (why, failed_at) = (seen.why.as_deref()?, seen.failed_at?);
    let since = utc(now_unix_us.saturating_sub(view.pool.now.since(failed_at).as_micros()));
    let file = pool.cache_file().map_or_else(|| "?".into(), |file| file.display().to_string());
    let key = format!("pool `{}`: cache device", pool.name);
    let text = format!(
        "{key} {file}: failed at {since}: {why}: attach or repair it, then restart the node; if it is lost, see \
         \"The cache device is lost\" in docs/guides/add-a-cache.md"
    );
    Some((key, text))
}

/// OSDs of a pool on an RBD image whose reads stall.
fn osds(pool: &str, view: &PoolView) -> Vec<(String, String)> {
    let seen = view.layers.of::<crate::parts::osds::Osds>();
    let all = seen.into_iter().flat_map(|(_, _, osds)| osds).filter(|o| o.stands_out);
    let problem = |o: &plimsoll_sched::osds::OsdView| {
        let what = format!(
            "pool `{pool}`: osd.{} (host {}) stands out: {} reads stalled there, and {} were steered to replicas",
            o.number, o.host, o.late, o.steered
        );
        (format!("pool `{pool}`: osd.{}", o.number), what)
    };
    all.map(problem).collect()
}

/// Volumes of a pool whose write-back fails.
fn write_backs(pool: &RunningPool, view: &PoolView, name: impl Fn(VolumeKey) -> String) -> Vec<(String, String)> {
    let seen = view.layers.of::<cache::Cache>();
    let problem = |f: &plimsoll_cache::WriteBackFails| {
        let todo = match f.error {
            IoError::NoSpace => "free space in the file system under it",
            IoError::FlushFailed => "recover the pool after you have checked the device",
            _ => "check the device and the kernel's log",
        };
        let v = FailingVolume::of(f, view.pool.now, name(f.volume));
        let key = format!("pool `{}`: write-back of volume `{}`", pool.name, v.volume);
        if v.is_beyond_end() {
            return (key, format!("pool `{}`: {}", pool.name, v.text()));
        }
        let what = format!(
            "pool `{}`, {}: {}: {todo}; a change for which the cache has no room meanwhile goes to the device, or fails",
            pool.name,
            pool.device,
            v.text()
        );
        (key, what)
    };
    seen.into_iter().flat_map(|s| &s.write_back_fails).map(problem).collect()
}

/// Objectives that a pool's cores can't keep together, before any is broken.
fn unkept_objectives(pool: &str, view: &PoolView, directory: &Directory) -> Vec<(String, String)> {
    let queues = view.layers.of::<Cores>().map_or(&[][..], |cores| &cores.queues);
    let problem = |q: &QueueStatus| {
        let what = unkept(q)?;
        let named = directory.tenants.iter().filter(|(_, t)| q.tenants.contains(&t.id));
        let tenants = named.map(|(name, _)| format!("`{name}`")).collect::<Vec<_>>().join(", ");
        let key = format!("pool `{pool}`: the objective of tenant {tenants}");
        let text = format!("{key} {what}; see \"Objectives that can't be kept\" in docs/guides/cores.md");
        Some((key, text))
    };
    // Objectives that nobody has any more leave a queue without tenants behind.
    queues.iter().filter(|q| !q.tenants.is_empty()).filter_map(problem).collect()
}

/// The reason for which a queue's objectives can't be kept.
fn unkept(q: &QueueStatus) -> Option<String> {
    if let Some(Missed { percentile_bp, within, alone }) = q.missed {
        let percentile = f64::from(percentile_bp) / 100.0;
        return Some(format!(
            "(p{percentile} ≤ {within}) can't be kept: it is {alone} although best effort does nothing or is at its least"
        ));
    }
    let fit = q.present.filter(Fit::is_surely_lacking)?;
    let promise = fit.objective.map(|o| format!("(p{} ≤ {}) ", f64::from(o.percentile_bp) / 100.0, o.bound));
    Some(format!("{}{fit}", promise.unwrap_or_default()))
}

/// True if more of `all` requests are late than the share that may be, in hundredths of a percent.
fn are_too_many(late: u64, all: u64, may_be_permyriad: u64) -> bool {
    let beyond = |times: u64| u128::from(late) * 10_000 > u128::from(all) * u128::from(may_be_permyriad * times);
    match all {
        REQUESTS_LEAST.. => beyond(1),
        FEW_LEAST.. => late >= FEW_LATE_LEAST && beyond(FEW_TIMES),
        _ => false,
    }
}

fn exports_of(tenant: TenantId, views: &Views) -> impl Iterator<Item = &ExportPromise> {
    views.iter().flatten().flat_map(|v| &v.pool.promises).filter(move |e| e.tenant == tenant)
}

fn broken_objectives(
    name: &str,
    t: &Tenant,
    views: &Views,
    without_cores: impl Fn() -> Vec<String>,
) -> Vec<(String, String)> {
    let sum_of = |o: &Objective| {
        let mine = exports_of(t.id, views).flat_map(|e| &e.objectives).filter(|(known, _)| known == o);
        mine.fold(Within::default(), |mut sum, (_, w)| {
            sum.add(w);
            sum
        })
    };
    let broken = |o: &Objective| {
        let w = sum_of(o);
        let late = w.requests - w.within;
        are_too_many(late, w.requests, 10_000 - u64::from(o.percentile_bp)).then(|| {
            let percentile = f64::from(o.percentile_bp) / 100.0;
            let todo = match without_cores().join(", ") {
                none if none.is_empty() => {
                    "`plimsoll cores` shows how the cores are shared; see \"When a promise is broken\" in docs/guides/promises.md"
                        .into()
                }
                pools => format!("pool {pools} only measures it: set `cores` there to enforce it (docs/guides/cores.md)"),
            };
            let key = format!("tenant `{name}`: p{percentile} ≤ {}", o.bound);
            let text =
                format!("{key} is broken: {} of {} requests of the last minute took longer; {todo}", late, w.requests,);
            (key, text)
        })
    };
    objectives(&t.class).iter().filter_map(broken).collect()
}

/// True if too many accepted reads are late, of which `late_permille` may be. Reads that wait are late for their clients, too. Where a deadline
/// sets itself so that `aimed_permille` are late, up to twice that share may wait.
fn is_missing(t: &Tally, late_permille: u64, aimed_permille: u64) -> bool {
    let accepted = t.kept + t.missed + t.waited;
    let may_miss = late_permille.max(MISSED_PERMILLE) * 10;
    are_too_many(t.missed, accepted, may_miss)
        || are_too_many(t.missed + t.waited, accepted, may_miss + 20 * aimed_permille)
}

fn missed_deadlines(
    volume: &str,
    pool: usize,
    e: &ExportPromise,
    directory: &Directory,
    node: &Node,
) -> Option<(String, String)> {
    let tenant = directory.tenants.iter().find(|(_, t)| t.id == e.tenant).map(|(name, _)| name.as_str())?;
    let t = &e.minute;
    let sets_itself = directory.promises.of_volume(volume, tenant).0.is_none();
    let auto = directory.promises.tenant(tenant).auto.filter(|_| sets_itself);
    let aimed_permille = auto.map_or(0, |terms| terms.refuse_permille);
    is_missing(t, node.late_permille(pool, tenant), aimed_permille).then(|| {
        let (late, accepted) = (t.missed + t.waited, t.kept + t.missed + t.waited);
        let place = format!("volume `{volume}`, tenant `{tenant}`");
        let text = format!(
            "{place}: {:.1} % of {accepted} accepted reads missed their deadlines in the last minute, {} \
             of {late} as forecast (they waited): `plimsoll volume show {volume}` shows in which layer; see \"When a promise is broken\" in docs/guides/promises.md",
            late as f64 * 100.0 / accepted as f64,
            t.waited,
        );
        (format!("{place}: missed deadlines"), text)
    })
}

fn failures(volume: &str, pool: &str, e: &ExportPromise) -> Option<(String, String)> {
    let (failed, why) = e.failed?;
    let todo = match why {
        IoError::NoSpace => "free space where the pool's files are, or delete volumes",
        IoError::FlushFailed => "recover the pool after you have checked its device",
        _ => "check the device and the kernel's log",
    };
    let key = format!("volume `{volume}`: failed requests");
    let text = format!(
        "volume `{volume}`: {failed} requests failed in the last {FAILED_MINUTES} minutes in pool `{pool}`, the last one: {why}: {todo}"
    );
    Some((key, text))
}

fn stuck(
    pool: &str,
    p: &PoolSnapshot,
    volume: impl Fn(plimsoll_base::VolumeKey) -> String,
) -> Option<(String, String)> {
    let (arrived_at, place, key) = p.oldest_served?;
    let age = p.now.since(arrived_at);
    (age > STUCK).then(|| {
        let todo = match place {
            "device" => "check the device and the kernel's log",
            "permit" => "other requests of its tenant hold all permits: raise `jobs_max`, or find what delays them",
            _ => "`plimsoll top` shows that layer's state",
        };
        let text = format!(
            "pool `{pool}`: a request of volume `{}` is in flight for {} s, at `{place}`: {todo}",
            volume(key),
            age.as_micros() / 1_000_000
        );
        (format!("pool `{pool}`: a stuck request"), text)
    })
}

/// A change of a pool that doesn't end. The pool may answer its clients all the same.
fn stuck_change(pool: &str, lasts: Option<Duration>) -> Option<(String, String)> {
    let lasts = lasts.filter(|lasts| lasts.as_micros() > u128::from(STUCK.as_micros()))?;
    let text = format!(
        "pool `{pool}`: a change of its volumes, tenants or settings has waited for its device for {} s: others are refused until it ends; \
         check the device and the kernel's log",
        lasts.as_secs()
    );
    Some((format!("pool `{pool}`: a stuck change"), text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_that_does_not_end_is_named() {
        let said = |s| stuck_change("p", s).map(|(_, text)| text);
        assert_eq!((said(None), said(Some(Duration::from_secs(30)))), (None, None));
        let text = said(Some(Duration::from_secs(31))).expect("stuck");
        assert!(text.starts_with("pool `p`: a change of its volumes") && text.contains(" for 31 s: "), "{text}");
    }

    /// A request is stuck after half a minute, and its place says what to do.
    #[test]
    fn a_stuck_request_is_named_with_its_place() {
        let key = plimsoll_base::VolumeKey { id: 1, generation: 1 };
        let at = |s| plimsoll_base::Time::ZERO + Span::from_secs(s);
        let said = |now, place| {
            let mut pool = PoolSnapshot::idle(at(now), LayerState::Ready, false);
            pool.oldest_served = Some((at(10), place, key));
            stuck("p", &pool, |_| "v".into()).map(|(_, text)| text)
        };
        assert_eq!(said(40, "cores"), None);
        let text = said(51, "device").expect("stuck");
        assert!(
            text.starts_with("pool `p`: a request of volume `v` is in flight for 41 s, at `device`: check"),
            "{text}"
        );
        assert!(said(51, "permit").expect("stuck").contains("`jobs_max`"));
    }

    #[test]
    fn misses_are_a_problem_beyond_the_bound() {
        let tally = |kept, missed| Tally { kept, missed, ..Tally::default() };
        for (kept, missed, late_permille, expected) in [
            (990, 10, 0, false),
            (989, 11, 0, true),
            (50, 49, 0, true),
            (93, 6, 0, false),
            (20, 3, 0, true),
            (8, 2, 0, false), // too few
            (3, 6, 0, false),
            (960, 40, 50, false),
            (940, 60, 50, true),
            (0, 0, 0, false),
        ] {
            assert_eq!(is_missing(&tally(kept, missed), late_permille, 0), expected, "{kept} {missed} {late_permille}");
        }
    }

    /// A deadline that sets itself has a share of the reads wait: that is what was asked for.
    #[test]
    fn reads_that_wait_as_an_automatic_deadline_aims_at_are_no_problem() {
        for (kept, missed, waited, aimed_permille, expected) in [
            (940, 5, 55, 0, true),
            (940, 5, 55, 50, false),
            (895, 0, 105, 50, false),
            (885, 0, 115, 50, true),
            (930, 15, 55, 50, true), // broken promises are no less broken for it
        ] {
            let t = Tally { kept, missed, waited, ..Tally::default() };
            assert_eq!(is_missing(&t, 0, aimed_permille), expected, "{kept} {missed} {waited} {aimed_permille}");
        }
    }
}
