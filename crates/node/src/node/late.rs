//! Late pools: those whose devices hadn't answered when a start or a reload stopped waiting for them. Each is served as soon as it is open.
//! Until then nobody knows its volumes: other pools get none of which the name may be there, and no tenant is taken away.

use super::opening::{OpenedPool, Opening, is_late, is_late_elsewhere, opened_until};
use super::reconfigure::Applies;
use super::{Configured, Node, NodeError, Result};
use crate::config::PoolConfig;
use crate::events::{Kind, Severity};
use crate::reload::pool_section;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;

impl Node {
    /// Leaves late pools to [`Node::serve_late_loop`].
    pub(super) fn wait_for_late(&self, late: Vec<(PoolConfig, Opening)>) {
        self.late.lock().expect("no panic while held").extend(late);
        self.late_came.notify_one();
    }

    /// Serves the pools whose devices hadn't answered when the start or a reload stopped waiting for them, each as soon as it is open. Doesn't
    /// end: more may come.
    pub async fn serve_late_loop(self: &Arc<Self>) {
        let mut opening = JoinSet::new();
        loop {
            self.serve_each_late(&mut opening);
            tokio::select! {
                () = self.late_came.notified() => {}
                Some(_) = opening.join_next() => {}
            }
        }
    }

    /// The same of those that there are now. Ends when none is left.
    #[cfg(test)]
    pub(crate) async fn serve_late_pools(self: &Arc<Self>) {
        let mut opening = JoinSet::new();
        self.serve_each_late(&mut opening);
        opening.join_all().await;
    }

    fn serve_each_late(self: &Arc<Self>, opening: &mut JoinSet<()>) {
        for (p, opened) in std::mem::take(&mut *self.late.lock().expect("no panic while held")) {
            let node = self.clone();
            opening.spawn(async move { node.serve_late(p, opened_until(opened, None).await).await });
        }
    }

    /// Serves a late pool as one that a reload adds, unless a reload has taken its section out or changed it.
    async fn serve_late(self: &Arc<Self>, p: PoolConfig, opened: Result<OpenedPool>) {
        let added = self.add_late(p, opened).await;
        // Others needn't wait for that.
        self.added_recovered(&added).await;
    }

    /// Returns the pool's number, if it is served.
    async fn add_late(self: &Arc<Self>, p: PoolConfig, opened: Result<OpenedPool>) -> Vec<usize> {
        let _one = self.reconfiguring.lock().await;
        let (name, new) = (p.name.get_ref().clone(), Configured::clone(&self.configured()));
        if !new.config.pool.contains(&p) || new.config.undeclared.contains(&name) {
            let what = format!(
                "{}: its device has answered. Its section was changed or taken out meanwhile: reload the configuration if it is to be served",
                pool_section(&name)
            );
            self.events.add(Kind::Node, Severity::Warning, None, what);
            drop(opened);
            self.pools.has_answered(&name);
            if let Some(now) = new.config.pool.iter().find(|now| now.name == p.name) {
                let why = NodeError::Conflict("its section was changed before its device answered".into());
                self.put_failed(now, why); // it has a number all the same
            }
            return Vec::new();
        }
        let applied = self.apply(new, vec![(p, opened)], Applies::Late(&name)).await;
        // Not before: until then no reload tries to open it.
        self.pools.has_answered(&name);
        for why in applied.why {
            self.events.add(Kind::Node, Severity::Warning, None, why);
        }
        applied.added
    }

    /// The error of a pool that a reload couldn't open, as its device hasn't answered since the start or an earlier reload. `None` if it has.
    pub(super) fn unopened(&self, p: &PoolConfig) -> Option<NodeError> {
        let (section, _) = self.pools.late(p.name.get_ref())?;
        let e = if section == *p { is_late() } else { is_late_elsewhere(&section) };
        if self.pools.named(p.name.get_ref()).is_none() {
            // An earlier reload has taken its section out.
            return Some(self.put_failed(p, e));
        }
        Some(e)
    }

    /// Section with which a pool is still being opened, the time, and whether it is served when that has ended.
    pub fn late_pool(&self, name: &str) -> Option<(PoolConfig, Duration, bool)> {
        let (section, since) = self.pools.late(name)?;
        let is_wanted = self.configured().config.pool.contains(&section);
        Some((section, since, is_wanted))
    }

    /// Refuses a name that a late pool may have. A volume that is declared in the pool in which it is to be made is the one of its name.
    pub(super) fn must_be_free_of_late_pools(&self, name: &str, made_in: Option<usize>) -> Result<()> {
        let Some(late) = self.late_in_words() else { return Ok(()) };
        let configured = self.configured();
        let section = configured.config.volume.iter().find(|v| v.name.get_ref() == name);
        if section.zip(made_in).is_some_and(|(v, pool)| *v.pool.get_ref() == self.pools.get(pool).name) {
            return Ok(());
        }
        Err(NodeError::Conflict(format!(
            "{late}: it may have a volume `{name}`, so no other one gets that name. Wait until it is served (`plimsoll status`), or declare \
             the volume in the configuration, or take that pool's section out, and reload"
        )))
    }

    /// Refuses to take a tenant away who may own a volume of a late pool.
    pub(super) fn must_own_nothing_late(&self, tenant: &str) -> Result<()> {
        let Some(late) = self.late_in_words() else { return Ok(()) };
        Err(NodeError::Conflict(format!(
            "{late}: volumes of tenant `{tenant}` may be there, so the tenant stays. Wait until that pool is served (`plimsoll status`), or \
             take its section out of the configuration and reload"
        )))
    }

    /// The first late pool, in words, if there is one: nobody knows its volumes. One whose section was taken out isn't served when its device
    /// answers.
    pub(super) fn late_in_words(&self) -> Option<String> {
        let configured = self.configured();
        let is_wanted = |name: &String| {
            let config = &configured.config;
            config.pool.iter().any(|p| p.name.get_ref() == name) && !config.undeclared.contains(name)
        };
        let name = self.pools.late_names().into_iter().find(is_wanted)?;
        let (section, since) = self.pools.late(&name)?;
        let (device, seconds) = (section.device.label(), since.as_secs());
        Some(format!("pool `{name}` is still being opened: its device {device} hasn't answered for {seconds} s"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::engine::{Command, Health, Look};
    use crate::node::{Prepared, VolumePatch};
    use plimsoll_stack::LayerState;
    use plimsoll_store::NewVolume;
    use plimsoll_testkit::{HeldOpen, eventually};
    use std::path::Path;
    use tokio::sync::{oneshot, watch};

    fn parsed(dir: &Path, pools: &[&str], more: &str) -> Config {
        let section = |name: &&str| {
            format!("[[pool]]\nname = \"{name}\"\ndevice = {{ file = \"{name}.img\", size = \"64MiB\" }}\n")
        };
        let tenants = "[[tenant]]\nname = \"t\"\nclass = \"best-effort\"\n";
        let text =
            format!("[listen]\nunix = \"nbd.sock\"\n{tenants}{}{more}", pools.iter().map(section).collect::<String>());
        Config::parse(&text, &dir.join("node.toml")).unwrap()
    }

    fn volume(name: &str) -> NewVolume {
        NewVolume {
            name: name.into(),
            size_bytes: 1 << 20,
            tenant: "t".into(),
            read_only: false,
            description: None,
            cache: None,
        }
    }

    /// A node that serves `p`, which has a volume `in-p`, and waits for the device of `late`, which has a volume `in-late`.
    async fn with_a_late_pool(dir: &Path) -> (Arc<Node>, HeldOpen) {
        let config = parsed(dir, &["p", "late"], "");
        let node = Node::start(&config).await.unwrap();
        for pool in ["p", "late"] {
            node.create_volume(pool, volume(&format!("in-{pool}"))).await.unwrap();
        }
        node.shut_down().unwrap();
        drop(node);
        let held = HeldOpen::of(&dir.join("late.img"));
        (Arc::new(Node::start_within(&config, Duration::ZERO).await.unwrap()), held)
    }

    async fn reload(node: &Arc<Node>, config: &Config) -> Vec<String> {
        let reloaded = node.reconfigure(Prepared::of(config).unwrap());
        tokio::time::timeout(Duration::from_secs(60), reloaded).await.expect("a reload ends")
    }

    fn served(node: &Node) -> Vec<String> {
        node.directory_ref(|d| d.volumes.keys().cloned().collect())
    }

    /// Its volumes are known when its device answers.
    #[tokio::test]
    async fn a_name_that_a_late_pool_may_have_is_given_to_nobody_and_no_tenant_goes() {
        let dir = tempfile::tempdir().unwrap();
        let (node, held) = with_a_late_pool(dir.path()).await;
        let is_named = |said: &str| assert!(said.contains("pool `late` is still being opened"), "{said}");
        for name in ["in-late", "free"] {
            is_named(&node.create_volume("p", volume(name)).await.unwrap_err().to_string());
            let rename = VolumePatch { rename: Some(name.into()), ..VolumePatch::default() };
            is_named(&node.change_volume("in-p", rename).await.unwrap_err().to_string());
        }
        is_named(&node.remove_tenant("t").await.unwrap_err().to_string());
        is_named(&node.volume_named("in-late").unwrap_err().to_string());
        assert_eq!(served(&node), ["in-p"]);
        // Changes that concern no name go on.
        let growth = VolumePatch { size_bytes: Some(2 << 20), ..VolumePatch::default() };
        node.change_volume("in-p", growth).await.unwrap();
        drop(held);
        node.serve_late_pools().await;
        assert_eq!(served(&node), ["in-late", "in-p"]);
        assert!(node.remove_tenant("t").await.unwrap_err().to_string().contains("owns volume"));
        let said = node.create_volume("p", volume("in-late")).await.unwrap_err().to_string();
        assert!(said.contains("exists already"), "{said}");
        node.create_volume("p", volume("free")).await.unwrap();
        node.shut_down().unwrap();
    }

    /// The way that the refusal names.
    #[tokio::test]
    async fn a_late_pool_that_is_not_declared_any_more_is_in_no_names_way() {
        let dir = tempfile::tempdir().unwrap();
        let (node, held) = with_a_late_pool(dir.path()).await;
        assert_eq!(reload(&node, &parsed(dir.path(), &["p"], "")).await, [""; 0]);
        node.create_volume("p", volume("in-late")).await.unwrap();
        drop(held);
        node.serve_late_pools().await;
        assert!(!node.serves_pool("late"));
        node.shut_down().unwrap();
    }

    /// The configuration may give a name to two volumes.
    #[tokio::test]
    async fn a_volume_that_comes_late_under_a_declared_name_is_a_problem_and_keeps_its_data() {
        let dir = tempfile::tempdir().unwrap();
        let (node, held) = with_a_late_pool(dir.path()).await;
        let section = "[[volume]]\nname = \"in-late\"\npool = \"p\"\nsize = \"1MiB\"\ntenant = \"t\"\n";
        let config = parsed(dir.path(), &["p", "late"], section);
        let why = reload(&node, &config).await;
        assert!(why.len() == 1 && why[0].contains("its device hasn't answered"), "{why:?}");
        assert_eq!(served(&node), ["in-late", "in-p"]);
        drop(held);
        node.serve_late_pools().await;
        assert!(node.serves_pool("late"));
        for _ in 0..2 {
            let pool = node.pools.get(node.volume_named("in-late").unwrap().pool).name.clone();
            assert_eq!((pool.as_str(), node.pools_with("in-late").len()), ("p", 2));
            let said = node.unmade_volumes();
            let both = "exists in pool `late` and in pool `p`, which serves it: rename or delete one";
            assert!(said.len() == 1 && said[0].1.contains(both), "{said:?}");
            // Neither does a reload forget it.
            reload(&node, &config).await;
        }
        node.shut_down().unwrap();
    }

    /// Answers for the late pool's opening, with a pool that `make` has changed.
    async fn answer_with(node: &Node, held: HeldOpen, make: impl FnOnce(&mut crate::node::RunningPool)) {
        let (section, opening) = node.late.lock().unwrap().pop().unwrap();
        drop(held);
        let mut opened = opening.await.unwrap().unwrap();
        make(opened.pool_mut());
        let (answers, answer) = oneshot::channel();
        assert!(answers.send(Ok(opened)).is_ok());
        node.wait_for_late(vec![(section, answer)]);
    }

    /// Its recovery may take as long as others' reloads would have to wait.
    #[tokio::test]
    async fn the_recovery_of_a_late_pool_keeps_no_reload_waiting() {
        let dir = tempfile::tempdir().unwrap();
        let (node, held) = with_a_late_pool(dir.path()).await;
        let (recovers, health) = watch::channel(Health::NOT_STARTED);
        answer_with(&node, held, |pool| pool.handle.health = health).await;
        let serving = tokio::spawn({
            let node = node.clone();
            async move { node.serve_late_pools().await }
        });
        eventually("it is served", || node.late_pool("late").is_none()).await;
        assert!(!serving.is_finished(), "it is waited for");
        assert!(node.reconfiguring.try_lock().is_ok(), "beside reloads");
        recovers.send_modify(|h| h.state = LayerState::Ready);
        serving.await.unwrap();
        node.shut_down().unwrap();
    }

    /// The thread answers when it is opened, and doesn't when it is told of the pool's volumes.
    #[tokio::test]
    async fn a_late_pool_whose_thread_hangs_keeps_no_reload_waiting_and_is_a_problem() {
        let dir = tempfile::tempdir().unwrap();
        let (node, held) = with_a_late_pool(dir.path()).await;
        let (let_go, hangs) = std::sync::mpsc::channel::<()>();
        let look: Look = Box::new(move |_, _| _ = hangs.recv());
        answer_with(&node, held, |pool| pool.handle.send(Command::Look(look)).unwrap()).await;
        tokio::time::timeout(Duration::from_secs(60), node.serve_late_pools())
            .await
            .expect("it doesn't wait without end");
        assert_eq!(served(&node), ["in-p"]);
        let said = node.unmade_volumes();
        let hangs = "pool `late` doesn't answer: check its device";
        assert!(said.len() == 1 && said[0].0.contains("in-late") && said[0].1.contains(hangs), "{said:?}");
        let config = parsed(dir.path(), &["p", "late"], "");
        let why = reload(&node, &config).await;
        assert!(why.len() == 1 && why[0].contains(hangs), "{why:?}");
        let_go.send(()).unwrap();
        assert_eq!(reload(&node, &config).await, [""; 0]);
        assert_eq!((served(&node), node.unmade_volumes()), (vec!["in-late".into(), "in-p".into()], vec![]));
        node.shut_down().unwrap();
    }

    /// As a start does.
    #[tokio::test]
    async fn a_reload_waits_for_a_new_device_for_some_time_and_the_pool_is_served_when_it_answers() {
        let dir = tempfile::tempdir().unwrap();
        let (node, held) = with_a_late_pool(dir.path()).await;
        node.shut_down().unwrap();
        drop((node, held));
        let node = Arc::new(Node::start(&parsed(dir.path(), &["p"], "")).await.unwrap());
        let held = HeldOpen::of(&dir.path().join("late.img"));
        let serving = tokio::spawn({
            let node = node.clone();
            async move { node.serve_late_loop().await }
        });
        let both = parsed(dir.path(), &["p", "late"], "");
        let reloaded = node.reconfigure_within(Prepared::of(&both).unwrap(), Duration::ZERO);
        let why = tokio::time::timeout(Duration::from_secs(30), reloaded).await.expect("it doesn't wait without end");
        assert!(why.len() == 1 && why[0].contains("pool `late`: it is still being opened"), "{why:?}");
        assert!(node.late_pool("late").is_some_and(|(_, _, is_wanted)| is_wanted) && !node.serves_pool("late"));
        // Another one finds it under way.
        assert_eq!(reload(&node, &both).await.len(), 1);
        drop(held);
        eventually("it is served", || node.late_pool("late").is_none()).await;
        assert!(node.serves_pool("late") && node.unmade().is_empty(), "{:?}", node.unmade());
        assert_eq!(served(&node), ["in-late", "in-p"]);
        assert_eq!(reload(&node, &both).await, [""; 0]);
        serving.abort();
        node.shut_down().unwrap();
    }
}
