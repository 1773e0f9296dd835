//! A changed configuration, applied while the node serves.

use super::changing::TURN_TIME;
use super::error::failed;
use super::fit::{Promised, Unfit};
use super::opening::{DEVICES_TIME, OpenedPool};
use super::settings::volume_promise;
use super::tenants::tenant_promise;
use super::{Configured, Node, NodeError, Result, newest_tenants, permits_of, permits_of_record};
use crate::config::{Config, ObjectiveConfig, PoolConfig, TenantConfig, VolumeConfig};
use crate::directory::Directory;
use crate::engine::PermitLimits;
use crate::reload::{pool_section, tenant_section, volume_section};
use crate::secrets::AllSecrets;
use plimsoll_base::{Class, Objective};
use plimsoll_store::VolumeRecord;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// A changed configuration whose secrets and other files could be read.
pub struct Prepared {
    secrets: AllSecrets,
    new: Configured,
}

impl Prepared {
    /// Reads the files that a configuration names.
    ///
    /// # Errors
    /// If secrets or baselines can't be read.
    pub fn of(config: &Config) -> Result<Prepared> {
        let secrets = crate::secrets::load(&config.nvme_host)?;
        Ok(Prepared { secrets, new: Configured::of(config)? })
    }
}

/// The occasion on which a configuration is applied.
#[derive(Clone, Copy)]
pub(super) enum Applies<'a> {
    /// A reload, which tries everything again.
    Reloaded,
    /// The device of that late pool has answered. Others' sections that couldn't be carried out stay as they are.
    Late(&'a str),
}

/// A configuration that was applied.
pub(super) struct Applied {
    /// Changes that could not be carried out.
    pub(super) why: Vec<String>,
    /// Numbers of the pools that were added.
    pub(super) added: Vec<usize>,
}

/// Time for a part of a configuration: [`TURN_TIME`] for its turn, and the same for the device.
const PART_TIME: Duration = Duration::from_secs(2 * TURN_TIME.as_secs());

impl Node {
    /// Applies what a changed configuration says of grants, pools, tenants and volumes; [`crate::reload`] says which of their keys. Grants
    /// and secrets come first: nothing may delay what was taken away. Returns the changes that could not be carried out: the others were.
    /// The next reload tries those again, whether or not the file is another one.
    pub async fn reconfigure(self: &Arc<Self>, prepared: Prepared) -> Vec<String> {
        self.reconfigure_within(prepared, DEVICES_TIME).await
    }

    /// The same, with the time for which it waits for the devices of new pools.
    pub(super) async fn reconfigure_within(
        self: &Arc<Self>,
        Prepared { secrets, new }: Prepared,
        at_most: Duration,
    ) -> Vec<String> {
        self.directory_mut(|d| {
            d.grants = new.config.grant.clone();
            d.secrets = secrets;
        });
        // Before others' changes have to wait: a device may be slow, or hang.
        let (opened, late) = self.open_new(&new.config, at_most).await;
        let applied = {
            let _one = self.reconfiguring.lock().await;
            let applied = self.apply(new, opened, Applies::Reloaded).await;
            // Not before: whoever serves one looks for its section.
            self.wait_for_late(late);
            applied
        };
        self.added_recovered(&applied.added).await;
        applied.why
    }

    /// Applies a configuration with the pools that were opened for it. The caller has the turn to apply one, and waits for the recovery of
    /// added pools when it has given the turn back.
    pub(super) async fn apply(
        self: &Arc<Self>,
        new: Configured,
        opened: Vec<(PoolConfig, Result<OpenedPool>)>,
        occasion: Applies<'_>,
    ) -> Applied {
        let deciding = self.deciding.lock().await;
        // Pools may have been removed meanwhile.
        let was = self.configured();
        let new = self.with_served(self.without_removed(new), &was);
        let mut unmade = match occasion {
            Applies::Reloaded => Unmade::default(),
            Applies::Late(pool) => self.unmade_beside(pool),
        };
        // A live change takes precedence, so the file's value is served by nobody and isn't judged. A new pool may bring one.
        let brought = opened.iter().filter_map(|(_, opened)| opened.as_ref().ok()?.store());
        let live = newest_tenants(self.stores().chain(brought));
        let to_apply = new.config.tenant.iter().filter(|t| !live.iter().any(|s| s.name == *t.name.get_ref()));
        let refused = self.refused_tenants(to_apply, &new, &mut unmade).await;
        let new = Arc::new(keeping(new, &was, &refused));
        *self.configured.write().expect("no panic while held") = new.clone();
        let config = &new.config;
        self.promise_anew(&was, &new);
        let again = self.unmade();
        self.pools.forget_failed(|name| config.pool.iter().any(|p| p.name.get_ref() == name));
        let mut added = BTreeMap::new();
        let is_tried = |p: &&PoolConfig| match occasion {
            Applies::Reloaded => !config.undeclared.contains(p.name.get_ref()),
            Applies::Late(_) => false,
        };
        for p in config.pool.iter().filter(is_tried) {
            let name = p.name.get_ref();
            if !self.serves_pool(name) && !opened.iter().any(|(p, _)| p.name.get_ref() == name) {
                let is_gone = "it was removed while this reload was under way: reload again";
                // What its device answered since this reload looked is the newer reason.
                let answered = || self.pools.named(name)?.1.failed.clone().map(NodeError::Failed);
                let why = self.unopened(p).or_else(answered);
                unmade.note(pool_section(name), Err(why.unwrap_or_else(|| NodeError::Conflict(is_gone.into()))));
            }
        }
        for (p, opened) in opened {
            let name = p.name.get_ref().clone();
            if self.serves_pool(&name) {
                // Its device has answered since this reload looked.
                continue;
            }
            match self.put_pool(&p, opened).await {
                Ok((number, turn)) => _ = added.insert(name, (number, turn)),
                Err(e) => unmade.note(pool_section(&name), Err(e)),
            }
        }
        let stored = self.stored_tenants();
        // Those that a pool brings; and those of whom the file says something else of what can't be set live.
        for t in &stored {
            let permits = permits_of_record(&t.limits);
            let is_known =
                |d: &Directory| d.tenants.get(&t.name).is_some_and(|k| k.class == t.class && k.permits == permits);
            let is_brought = !added.is_empty() && !self.directory_ref(is_known);
            if is_brought || !new.particulars.are_alike(&was.particulars, &t.name) {
                unmade.note(tenant_section(&t.name), self.apply_tenant(&t.name, t.class.clone(), permits).map(drop));
            }
        }
        let is_live = |name: &str| stored.iter().any(|s| s.name == name);
        let is_applied = |t: &&TenantConfig| !is_live(t.name.get_ref()) && !refused.contains(t.name.get_ref());
        for t in config.tenant.iter().filter(is_applied) {
            unmade.note(tenant_section(t.name.get_ref()), self.apply_configured(t));
        }
        for record in &stored {
            self.settle_tenant_deadline(record);
        }
        // From here on each pool is changed in its own turn.
        drop(deciding);
        let added: BTreeMap<String, usize> = {
            // Side by side: the thread of one may hang.
            let (mut numbers, mut serving) = (BTreeMap::new(), Vec::new());
            for (name, (number, turn)) in added {
                let node = self.clone();
                serving.push(tokio::spawn(async move { node.serve_added(number, turn).await }));
                numbers.insert(name, number);
            }
            for served in serving {
                for (volume, e) in served.await.expect("it doesn't panic") {
                    unmade.note(volume_section(&volume), Err(e));
                }
            }
            numbers
        };
        let node = self.clone();
        if !added.is_empty()
            && let Err(e) = soon(async move { node.share_tenants(None).await }).await
        {
            // The one that is kept goes on holding; the next reload that adds a pool tries it again.
            unmade.why.push(e.to_string());
        }
        let applied: BTreeSet<&str> =
            config.tenant.iter().filter(is_applied).map(|t| t.name.get_ref().as_str()).collect();
        // After pools have come, and before anything is published: the declared volume of a name takes the place of another pool's.
        let mut gave_way = BTreeSet::new();
        for v in &config.volume {
            let section = volume_section(v.name.get_ref());
            let done = self.give_way(v).await;
            if let Ok(true) = done {
                unmade.forget(&section);
                gave_way.insert(v.name.get_ref().as_str());
            }
            unmade.note(section, done.map(drop));
        }
        let has_changed = |name: &str| {
            let differs = was.throttles.get(name) != new.throttles.get(name);
            differs || again.contains(&volume_section(name)) || gave_way.contains(name)
        };
        for (pool, _) in self.pools.all() {
            self.publish_changed(pool, has_changed, &applied, &mut unmade).await;
        }
        for v in &config.volume {
            let section = volume_section(v.name.get_ref());
            let differs = was.config.volume.iter().find(|o| o.name == v.name) != Some(v);
            let is_new = differs || again.contains(&section) || added.contains_key(v.pool.get_ref());
            if is_new && !self.is_served_pool(v) {
                let what = format!("its pool `{}` isn't served", v.pool.get_ref());
                unmade.note(section, Err(NodeError::Failed(what)));
            } else if let Some(e) = is_new.then(|| self.hangs(v.pool.get_ref())).flatten() {
                // Not again the time that an earlier volume has waited.
                unmade.note(section, Err(e));
            } else if is_new {
                let (node, owned) = (self.clone(), v.clone());
                let ensured = async move {
                    node.owner_must_fit(&owned).await?;
                    node.ensure_volume(&owned).await
                };
                // What changes a volume that is there must not go on by itself: it would overtake the next reload, which may take it back.
                let is_there = self.directory_ref(|d| d.volumes.contains_key(v.name.get_ref()));
                unmade.note(section, if is_there { ensured.await } else { soon(ensured).await });
            }
        }
        *self.unmade.lock().expect("no panic while held") = unmade.sections;
        Applied { why: unmade.why, added: added.into_values().collect() }
    }

    /// Sections that couldn't be carried out, but for those that are tried again when `pool` comes: its own, and those of volumes.
    fn unmade_beside(&self, pool: &str) -> Unmade {
        let mut sections = self.unmade.lock().expect("no panic while held").clone();
        sections.retain(|section, _| *section != pool_section(pool) && !is_of_a_volume(section));
        Unmade { sections, why: Vec::new() }
    }

    /// A new configuration without the pools that only the earlier file had and that were removed since.
    fn without_removed(&self, mut new: Configured) -> Configured {
        let is_gone = |name: &String| !self.serves_pool(name);
        let gone: Vec<String> = new.config.undeclared.iter().filter(|name| is_gone(name)).cloned().collect();
        new.config.pool.retain(|p| !gone.contains(p.name.get_ref()));
        gone.iter().for_each(|name| _ = new.config.undeclared.remove(name));
        new
    }

    /// A new configuration in which pools that are served keep their sections: the device of one may have answered since the reload looked.
    fn with_served(&self, mut new: Configured, was: &Configured) -> Configured {
        for p in was.config.pool.iter().filter(|p| self.serves_pool(p.name.get_ref())) {
            match new.config.pool.iter_mut().find(|n| n.name == p.name) {
                // Its place is the new file's.
                Some(n) => *n = PoolConfig { name: n.name.clone(), ..p.clone() },
                None => {
                    new.config.undeclared.insert(p.name.get_ref().clone());
                    new.config.pool.push(p.clone());
                }
            }
        }
        new
    }

    /// The sections of the configuration that the last reload couldn't carry out.
    pub fn unmade(&self) -> BTreeSet<String> {
        self.unmade.lock().expect("no panic while held").keys().cloned().collect()
    }

    /// Volumes that aren't as configured, or not served for the sake of another: the section and the reason of each.
    pub fn unmade_volumes(&self) -> Vec<(String, String)> {
        let unmade = self.unmade.lock().expect("no panic while held");
        let of_volumes = unmade.iter().filter(|(section, _)| is_of_a_volume(section));
        of_volumes.map(|(section, why)| (section.clone(), why.clone())).collect()
    }

    /// Applies a tenant's section, but for the slots of its volumes.
    fn apply_configured(&self, t: &TenantConfig) -> Result<()> {
        self.apply_tenant(t.name.get_ref(), t.class()?, permits_of(t)).map(drop)
    }

    /// Replaces the configured promises. In one step with the live ones that take precedence, so that no client gets a deadline that doesn't
    /// hold. Promises of volumes and tenants that neither configuration names are live ones.
    fn promise_anew(&self, was: &Configured, new: &Configured) {
        let names = |c: &Configured| c.promised.volumes.keys().cloned().collect::<BTreeSet<String>>();
        let (volumes, pools) = (&names(was) | &names(new), self.pools.all());
        self.directory_mut(|d| {
            // Read within: a live change is recorded before it gets into the directory.
            let live = self.stored_tenants();
            for (name, configured) in &new.promised.tenants {
                let kept = live.iter().find(|t| t.name == *name);
                d.promises.tenants.insert(name.clone(), kept.map_or(*configured, |t| tenant_promise(t, *configured)));
            }
            for name in volumes {
                let configured = new.promised.volumes.get(&name).copied();
                let store = d.volumes.get(&name).and_then(|v| pools.iter().find(|(number, _)| *number == v.pool));
                let store = store.and_then(|(_, p)| p.store.as_ref());
                let kept = store.and_then(|store| volume_promise(store.view().volume(&name)?, configured.as_ref()));
                match kept.unwrap_or(configured) {
                    Some(promise) => drop(d.promises.volumes.insert(name, promise)),
                    None => drop(d.promises.volumes.remove(&name)),
                }
            }
        });
    }

    /// Publishes the volumes of a pool that were changed, and in a fenced pool those of tenants whose slots may have been.
    async fn publish_changed(
        &self,
        pool: usize,
        has_changed: impl Fn(&str) -> bool,
        tenants: &BTreeSet<&str>,
        unmade: &mut Unmade,
    ) {
        let is_fenced = self.pools.get(pool).is_fenced();
        let of_tenant = |r: &VolumeRecord| is_fenced && tenants.contains(r.tenant.as_str());
        let changed = || -> Vec<VolumeRecord> {
            self.records(pool).into_iter().filter(|r| has_changed(&r.name) || of_tenant(r)).collect()
        };
        if changed().is_empty() {
            return;
        }
        let turn = match self.hangs(&self.pools.get(pool).name) {
            Some(e) => Err(e),
            None => self.turn_of(pool).await,
        };
        let mut patience = TURN_TIME;
        // Again: what was changed before this turn has another record.
        for record in changed() {
            let done = match &turn {
                Ok(_) => match self.must_be_meant(pool, &record.name) {
                    Ok(()) => self.publish_within(pool, &record, &mut patience).await,
                    Err(e) => Err(e),
                },
                Err(e) => Err(NodeError::Conflict(e.to_string())),
            };
            let section = match has_changed(&record.name) {
                true => volume_section(&record.name),
                false => tenant_section(&record.tenant),
            };
            unmade.note(section, done);
        }
    }

    /// Refuses to give a volume to a tenant whose objective doesn't fit into its pool, as a volume that is created for it would be. A start
    /// doesn't ask: it serves what it can.
    async fn owner_must_fit(&self, v: &VolumeConfig) -> Result<()> {
        let tenant = v.tenant.get_ref();
        if !self.directory_ref(|d| d.tenants.contains_key(tenant)) {
            return Err(NodeError::NotFound(format!("there is no tenant `{tenant}`: see its own section's failure")));
        }
        let found = self.directory_ref(|d| d.volumes.get(v.name.get_ref()).cloned());
        match found.filter(|found| found.tenant != *v.tenant.get_ref()) {
            Some(found) => self.must_fit_in(found.pool, v.tenant.get_ref()).await,
            None => Ok(()),
        }
    }

    /// False for a volume whose pool couldn't be opened.
    pub(super) fn is_served_pool(&self, v: &VolumeConfig) -> bool {
        self.serves_pool(v.pool.get_ref())
    }

    /// Judges tenants' sections together, before any is applied: notes those that can't be applied beside the others, and returns the
    /// tenants' names. Those that come first in the file go first. One that doesn't fit is judged again after the others, as one of them may
    /// give back what it lacks.
    async fn refused_tenants<'a>(
        &self,
        tenants: impl Iterator<Item = &'a TenantConfig>,
        new: &Configured,
        unmade: &mut Unmade,
    ) -> BTreeSet<String> {
        let mut planned = Promised::new();
        let mut left: Vec<&TenantConfig> = tenants.collect();
        loop {
            let (before, mut refused) = (planned.len(), Vec::new());
            for t in left {
                match self.check_tenant(t, new, &planned).await {
                    Ok(Some(promise)) => _ = planned.insert(t.name.get_ref().clone(), promise),
                    Ok(None) => {}
                    Err(e) => refused.push((t, e)),
                }
            }
            if planned.len() == before {
                let names = refused.iter().map(|(t, _)| t.name.get_ref().clone()).collect();
                refused.into_iter().for_each(|(t, e)| unmade.note(tenant_section(t.name.get_ref()), Err(e)));
                return names;
            }
            left = refused.into_iter().map(|(t, _)| t).collect();
        }
    }

    /// Judges a tenant's section beside those that were judged before it. Returns what it changes of the tenant's promise, if anything.
    ///
    /// # Errors
    /// The error has the file, the line, the key and its value.
    async fn check_tenant(
        &self,
        t: &TenantConfig,
        new: &Configured,
        planned: &Promised,
    ) -> Result<Option<(Class, PermitLimits)>> {
        let of_class = |e: NodeError| {
            let key = format!("class = \"{}\"", t.class.get_ref());
            e.at(&new.config.source.place(t.class.span().start), &key)
        };
        let (name, permits) = (t.name.get_ref(), permits_of(t));
        let class = t.class().map_err(|e| of_class(e.into()))?;
        // A promise that stands isn't in another change's way, though requests may have turned out to take longer than it has room for.
        let stands = |d: &Directory| d.tenants.get(name).is_some_and(|t| t.class == class && t.permits == permits);
        if self.directory_ref(stands) {
            return Ok(None);
        }
        if let Some(Unfit { fit, error }) = self.unfit(&new.particulars, name, &class, permits, planned).await {
            let hardest = fit.objective.and_then(|o| t.objectives.iter().find(|c| is_of(c.get_ref(), &o)));
            let (at, key) = hardest.map_or((t.name.span().start, "objectives".into()), |o| {
                (o.span().start, format!("objectives: p{} within {}", o.get_ref().percentile, o.get_ref().within.0))
            });
            return Err(error.at(&new.config.source.place(at), &format!("{key}, jobs_max = {}", permits.jobs_max)));
        }
        self.check_class(name, &class, planned).map_err(of_class)?;
        Ok(Some((class, permits)))
    }
}

/// Carries out a part of a configuration, which may wait for a device. One that hangs keeps neither reloads nor other pools waiting: after
/// [`PART_TIME`] its part goes on by itself.
async fn soon<T: Send + 'static>(part: impl Future<Output = Result<T>> + Send + 'static) -> Result<T> {
    match tokio::time::timeout(PART_TIME, tokio::spawn(part)).await {
        Ok(done) => done.map_err(failed)?,
        Err(_) => Err(NodeError::Failed(format!(
            "it isn't carried out after {} s and goes on: a device may hang. Check the devices and the kernel's log, then reload",
            PART_TIME.as_secs()
        ))),
    }
}

/// True if an objective is the one that was written so.
fn is_of(written: &ObjectiveConfig, o: &Objective) -> bool {
    let bp = written.percentile * 100.0;
    written.within.0 == o.bound && (bp - f64::from(o.percentile_bp)).abs() < 0.5
}

/// A configuration in which refused tenants keep the sections that they had; a new one has none.
fn keeping(new: Configured, was: &Configured, refused: &BTreeSet<String>) -> Configured {
    if refused.is_empty() {
        return new;
    }
    let had = |t: TenantConfig| match refused.contains(t.name.get_ref()) {
        true => was.config.tenant.iter().find(|o| o.name == t.name).cloned(),
        false => Some(t),
    };
    let tenant = new.config.tenant.into_iter().filter_map(had).collect();
    Configured::with(&Config { tenant, ..new.config }, new.baselines)
}

fn is_of_a_volume(section: &str) -> bool {
    section.starts_with("volume ")
}

/// Sections that could not be carried out, and why.
#[derive(Default)]
struct Unmade {
    sections: BTreeMap<String, String>,
    why: Vec<String>,
}

impl Unmade {
    fn note(&mut self, section: String, done: Result<()>) {
        if let Err(e) = done {
            let why = e.about(&section).to_string();
            self.why.push(why.clone());
            self.sections.insert(section, why);
        }
    }

    /// Another try of a section is about to be made.
    fn forget(&mut self, section: &str) {
        let was = self.sections.remove(section);
        self.why.retain(|why| Some(why) != was.as_ref());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::directory::VolumePromise;
    use crate::node::{DeadlineChange, VolumePatch};
    use plimsoll_base::{OnBusy, Span};
    use plimsoll_store::NewVolume;

    const TEXT: &str = r#"
        [listen]
        unix = "nbd.sock"
        [[pool]]
        name = "p"
        device = { file = "p.img", size = "64MiB" }
        [[tenant]]
        name = "a"
        class = "best-effort"
        [[tenant]]
        name = "b"
        class = "best-effort"
        [[volume]]
        name = "v"
        pool = "p"
        size = "1MiB"
        tenant = "a"
    "#;

    const OTHER_POOL: &str = r#"[[pool]]
        name = "NAME"
        device = { file = "NAME.img", size = "64MiB" }
        [[tenant]]
        name = "a""#;
    const OTHER_VOLUME: &str = r#"
        [[volume]]
        name = "NAME"
        pool = "q"
        size = "1MiB"
        tenant = "b"
    "#;

    /// A volume that is deleted while its configured owner is to be set isn't served again: its space is another's soon.
    #[tokio::test]
    async fn a_volume_that_is_deleted_meanwhile_is_not_published_again() {
        let dir = tempfile::tempdir().unwrap();
        let node = Node::start(&Config::parse(TEXT, &dir.path().join("node.toml")).unwrap()).await.unwrap();
        let deletion = node.turn_of(0).await.unwrap();
        let mut owned = Box::pin(node.set_volume_owner("v", "b", false));
        let early = tokio::time::timeout(Duration::from_millis(200), &mut owned).await;
        assert!(early.is_err(), "it waits until the other change has ended");
        node.directory_mut(|d| d.volumes.remove("v"));
        drop(deletion);
        assert!(matches!(owned.await, Err(NodeError::NotFound(_))));
        assert!(node.directory_ref(|d| d.volumes.is_empty()));
        node.shut_down().unwrap();
    }
    /// A reload and a removal cross: nothing of the removed pool is left, or the result says that it isn't served.
    #[tokio::test]
    async fn a_pool_that_is_removed_during_a_reload_is_forgotten_or_named() {
        let dir = tempfile::tempdir().unwrap();
        let parse = |text: &str| Config::parse(text, &dir.path().join("node.toml")).unwrap();
        let with = TEXT.replace("[[tenant]]\n        name = \"a\"", &OTHER_POOL.replace("NAME", "q"));
        for is_wanted_again in [false, true] {
            let both = parse(&with);
            let node = Arc::new(Node::start(&both).await.unwrap());
            let without = crate::reload::served(both.clone(), parse(TEXT));
            assert_eq!(node.reconfigure(Prepared::of(&without).unwrap()).await, [""; 0]);
            // What the reload goes by was looked up before the removal.
            let new = crate::reload::served(without, if is_wanted_again { both } else { parse(TEXT) });
            // It has looked which pools are to be opened, and waits for its turn.
            let one = node.deciding.lock().await;
            let mut reload = Box::pin(node.reconfigure(Prepared::of(&new).unwrap()));
            let early = tokio::time::timeout(Duration::from_millis(50), &mut reload).await;
            assert!(early.is_err(), "it waits for others' changes");
            let (number, _) = node.pools.named("q").unwrap();
            let removed = node.pools.take(number).unwrap();
            node.forget_section("q");
            drop(one);
            let failed = reload.await;
            let configured = node.configured();
            assert!(configured.config.undeclared.is_empty());
            match is_wanted_again {
                false => {
                    assert_eq!(failed, [""; 0]);
                    assert!(configured.config.pool.iter().all(|p| p.name.get_ref() != "q"));
                }
                true => assert!(failed.len() == 1 && failed[0].contains("pool `q`"), "{failed:?}"),
            }
            removed.shut_down().unwrap();
            drop(removed);
            node.pools.has_left("q");
            node.shut_down().unwrap();
        }
    }

    /// The step that takes the new configuration's promises keeps those that were set live: no client gets another in between.
    #[tokio::test]
    async fn a_live_deadline_holds_all_through_a_reload() {
        let dir = tempfile::tempdir().unwrap();
        let parse = |text: &str| Config::parse(text, &dir.path().join("node.toml")).unwrap();
        let with = TEXT.replace("name = \"v\"", "name = \"v\"\n        deadline = \"20ms\"");
        let with = with.replacen("name = \"a\"", "name = \"a\"\n        deadline = \"20ms\"", 1);
        let node = Arc::new(Node::start(&parse(&with)).await.unwrap());
        let live = Span::from_millis(5);
        node.change_volume("v", VolumePatch { deadline: Some(Some(live)), ..VolumePatch::default() }).await.unwrap();
        let change = DeadlineChange { deadline: Some(Some(live)), busy: None };
        let deadline = node.tenant_deadline("a", node.promise_configured("a"), change).unwrap();
        node.change_tenant("a", |t| Ok(plimsoll_store::TenantRecord { deadline, ..t })).await.unwrap();
        let promised = || node.directory_ref(|d| (d.promises.volumes["v"], d.promises.tenant("a").deadline));
        let holds = (VolumePromise { deadline: live, busy: OnBusy::default() }, Some(live));
        assert_eq!(promised(), holds);
        let (was, same) = (node.configured(), Configured::of(&parse(&with)).unwrap());
        node.promise_anew(&was, &same);
        assert_eq!(promised(), holds);
        // Another value in the file is newer.
        let other = Configured::of(&parse(&with.replacen("20ms", "30ms", 2))).unwrap();
        node.promise_anew(&was, &other);
        let configured = Span::from_millis(30);
        assert_eq!(promised(), (VolumePromise { deadline: configured, ..holds.0 }, Some(configured)));
        node.shut_down().unwrap();
    }

    /// Two tenants that get more slots, of which there are enough for either: the first in the file gets them. A tenant that gives slots back
    /// makes room for another, whichever is first.
    #[tokio::test]
    async fn a_reload_judges_the_tenants_that_it_changes_together() {
        let dir = tempfile::tempdir().unwrap();
        let with = |a: u32, b: u32| {
            let fence = "model = \"hdd-160g-7200\" }\n[pool.fence]\nslots = 4\nslot = \"20ms\"\n";
            let text = TEXT.replace("size = \"64MiB\" }", &format!("size = \"64MiB\", {fence}"));
            let class = |slots| format!("class = \"fenced\"\nslots = {slots}");
            let text = text.replacen("class = \"best-effort\"", &class(a), 1);
            let text = text.replacen("class = \"best-effort\"", &class(b), 1);
            // The configuration's own volumes are judged when it is read.
            let (text, _) = text.split_once("[[volume]]").unwrap();
            Config::parse(text, &dir.path().join("node.toml")).unwrap()
        };
        let node = Arc::new(Node::start(&with(1, 1)).await.unwrap());
        for (name, tenant) in [("v", "a"), ("w", "b")] {
            let (name, tenant) = (name.to_string(), tenant.to_string());
            let new = NewVolume { name, size_bytes: 1 << 20, tenant, read_only: false, description: None, cache: None };
            node.create_volume("p", new).await.unwrap();
        }
        let slots = || {
            let of = |t: &crate::directory::Tenant| match t.class {
                Class::Fenced { slots } => slots,
                _ => 0,
            };
            node.directory_ref(|d| (of(&d.tenants["a"]), of(&d.tenants["b"])))
        };
        let reload = async |config: Config| node.reconfigure(Prepared::of(&config).unwrap()).await;
        assert_eq!(reload(with(3, 1)).await, [""; 0]);
        assert_eq!(reload(with(1, 3)).await, [""; 0], "what is given back makes room");
        assert_eq!(reload(with(3, 1)).await, [""; 0]);
        assert_eq!(reload(with(1, 1)).await, [""; 0]);
        let failed = reload(with(3, 3)).await;
        assert!(failed.len() == 1 && failed[0].contains("6 slots are promised (v 3, w 3)"), "{failed:?}");
        assert!(failed[0].contains("tenant `b`"), "{failed:?}");
        assert_eq!((slots(), node.unmade()), ((3, 1), ["tenant `b`".to_string()].into()));
        node.shut_down().unwrap();
    }

    /// A pool that ended can't take a change of its volume: the other changes are made, the result names this one, and the next reload of
    /// the same file tries it again.
    #[tokio::test]
    async fn a_reload_that_fails_in_its_middle_carries_out_the_rest_and_is_tried_again() {
        let dir = tempfile::tempdir().unwrap();
        let parse = |text: &str| Config::parse(text, &dir.path().join("node.toml")).unwrap();
        let other = TEXT.replace("[[tenant]]\n        name = \"a\"", &OTHER_POOL.replace("NAME", "q"))
            + &OTHER_VOLUME.replace("NAME", "w");
        let other = other.replacen("size = \"64MiB\" }", "size = \"64MiB\" }\n        throttle = true", 1);
        let node = Arc::new(Node::start(&parse(&other)).await.unwrap());
        let (_, ended) = node.pools.named("p").unwrap();
        ended.handle.send(crate::engine::Command::Shutdown).unwrap();
        ended.join().unwrap();
        let grant = "[[grant]]\npeer = \"local\"\nvolumes = [\"*\"]\n";
        let new = other.replace("tenant = \"a\"", "tenant = \"a\"\nthrottle = { iops = 100 }") + grant;
        let new =
            parse(&new.replace("size = \"1MiB\"\n        tenant = \"b\"", "size = \"2MiB\"\n        tenant = \"b\""));
        for round in 0..2 {
            let failed = node.reconfigure(Prepared::of(&new).unwrap()).await;
            assert!(failed.len() == 1 && failed[0].contains("volume `v`"), "{round}: {failed:?}");
            assert_eq!(node.unmade(), ["volume `v`".to_string()].into(), "{round}");
            let (grants, grown) = node.directory_ref(|d| (d.grants.len(), d.volumes["w"].size_bytes));
            assert_eq!((grants, grown), (1, 2 << 20), "{round}");
        }
        node.shut_down().unwrap();
    }

    /// The change of a volume waits for a device without end: the reload says so, and the next one is carried out.
    #[tokio::test]
    async fn a_device_that_hangs_keeps_no_reload_waiting_without_end() {
        let dir = tempfile::tempdir().unwrap();
        let other = OTHER_POOL.replace("NAME", "q");
        let with = |volumes: &[(&str, &str)]| {
            let of = |(name, pool): &(&str, &str)| {
                OTHER_VOLUME.replace("NAME", name).replace("\"q\"", &format!("\"{pool}\""))
            };
            let text = TEXT.replace("[[tenant]]\n        name = \"a\"", &other);
            let text = text + &volumes.iter().map(of).collect::<String>();
            Config::parse(&text, &dir.path().join("node.toml")).unwrap()
        };
        let node = Arc::new(Node::start(&with(&[])).await.unwrap());
        let store = node.pools.named("p").unwrap().1.store.clone().unwrap();
        let (holds, held) = tokio::sync::oneshot::channel();
        let (let_go, hangs) = std::sync::mpsc::channel::<()>();
        let device = std::thread::spawn(move || {
            let _change = store.change();
            holds.send(()).unwrap();
            let _ = hangs.recv();
        });
        held.await.unwrap();
        let reload = async |volumes: &[(&str, &str)]| {
            let prepared = Prepared::of(&with(volumes)).unwrap();
            let reload = node.reconfigure(prepared);
            tokio::time::timeout(Duration::from_secs(120), reload).await.expect("a reload ends")
        };
        let failed = reload(&[("w", "p")]).await;
        assert!(failed.len() == 1 && failed[0].contains("volume `w`") && failed[0].contains("goes on"), "{failed:?}");
        let failed = reload(&[("w", "p"), ("x", "p"), ("y", "q")]).await;
        assert!(
            failed.len() == 2 && failed.iter().all(|why| why.contains("an earlier change of pool `p`")),
            "{failed:?}"
        );
        assert!(node.directory_ref(|d| d.volumes.contains_key("y") && !d.volumes.contains_key("w")));
        let mut changes = node.directory_ref(|d| d.changes.subscribe());
        let_go.send(()).unwrap();
        while !node.directory_ref(|d| d.volumes.contains_key("w")) {
            changes.changed().await.unwrap();
        }
        assert_eq!(reload(&[("w", "p"), ("x", "p"), ("y", "q")]).await, [""; 0]);
        device.join().unwrap();
        node.shut_down().unwrap();
    }
}
