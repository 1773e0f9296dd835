//! Volumes of one name in several pools: which one is served. Each was made while the other's pool was away, or pools of two nodes have come
//! together.
//!
//! Nobody but the configuration knows which one is meant, and clients of the wrong one would write where nobody looks for it. So there is one
//! rule, for starts, reloads and pools that come:
//!
//! 1. The one that is served stays, until a reload finds that the other one is declared and that nobody uses this one.
//! 2. Where the configuration declares the volume in a pool that has one, that one is served. Another one isn't served in its place while
//!    nobody knows what that pool has.
//! 3. Of several that aren't declared none is served.

use super::changing::TURN_TIME;
use super::{Node, NodeError, Result, blocking};
use crate::config::VolumeConfig;
use crate::directory::Volume;

/// The volumes of one name, as one of them is to be served.
#[derive(Default)]
struct Namesakes {
    /// The pool of the one that is served.
    served: Option<usize>,
    /// The pool in which the configuration declares it.
    declared: Option<Declared>,
    /// Pools that have one, beside that of the one in question.
    others: Vec<usize>,
}

/// The pool in which a volume is declared.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Declared {
    Open(usize),
    /// It isn't there, or could not be opened: nobody knows whether it has the volume.
    Away,
}

/// Reason for which a volume isn't served.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Unserved {
    /// That pool's is.
    Served(usize),
    /// That pool's is declared.
    Declared(usize),
    /// The pool that is declared to have it is away.
    Away,
    /// That pool has one, too, and none is declared.
    Ambiguous(usize),
}

impl Namesakes {
    /// Decides whether `pool`'s is served.
    fn judge(&self, pool: usize) -> std::result::Result<(), Unserved> {
        match (self.served, self.declared) {
            (Some(served), _) if served == pool => Ok(()),
            (Some(served), _) => Err(Unserved::Served(served)),
            (None, Some(Declared::Open(declared))) if declared == pool => Ok(()),
            (None, Some(Declared::Open(declared))) if self.others.contains(&declared) => {
                Err(Unserved::Declared(declared))
            }
            (None, Some(Declared::Away)) => Err(Unserved::Away),
            (None, _) => self.others.first().map_or(Ok(()), |other| Err(Unserved::Ambiguous(*other))),
        }
    }
}

impl Node {
    /// Refuses to serve a pool's volume in the place of another one of its name.
    ///
    /// # Errors
    /// Names both pools, and what the operator can do.
    pub(super) fn must_be_meant(&self, pool: usize, name: &str) -> Result<()> {
        let configured = self.configured();
        let section = configured.config.volume.iter().find(|v| v.name.get_ref() == name);
        let in_question = Namesakes {
            served: self.directory_ref(|d| d.volumes.get(name).map(|v| v.pool)),
            declared: section.map(|v| self.declared_in(v)),
            others: self.pools_with(name).into_iter().filter(|other| *other != pool).collect(),
        };
        let Err(why) = in_question.judge(pool) else { return Ok(()) };
        let name_of = |pool: usize| self.pools.get(pool).name.clone();
        let ours = format!("volume `{name}` exists in pool `{}`", name_of(pool));
        Err(NodeError::Conflict(match why {
            Unserved::Served(other) => return Err(self.is_served_by(other, name, pool)),
            Unserved::Declared(other) => {
                format!("{ours} and in pool `{}`, where it is declared: rename or delete one", name_of(other))
            }
            Unserved::Away => {
                let declared = section.expect("it is declared").pool.get_ref();
                format!(
                    "{ours} and is declared in pool `{declared}`, which isn't served: this one isn't taken for that"
                )
            }
            Unserved::Ambiguous(other) => format!(
                "{ours} and in pool `{}`, and no [[volume]] section says which one is meant: none is served. Declare it with its pool",
                name_of(other)
            ),
        }))
    }

    /// The refusal of a pool's volume whose name has another pool's that is served.
    pub(super) fn is_shadowed(&self, pool: usize, served: &Volume) -> NodeError {
        self.is_served_by(served.pool, &served.name, pool)
    }

    fn is_served_by(&self, served: usize, name: &str, pool: usize) -> NodeError {
        let name_of = |pool: usize| self.pools.get(pool).name.clone();
        NodeError::Conflict(format!(
            "volume `{name}` exists in pool `{}` and in pool `{}`, which serves it: rename or delete one",
            name_of(pool),
            name_of(served)
        ))
    }

    /// Refuses a name for a new volume that the configuration gives to one of a pool that is away: that pool may have it, so no other is served
    /// under the name.
    ///
    /// # Errors
    /// Names the pool, and what the operator can do.
    pub(super) fn must_not_be_declared_away(&self, name: &str) -> Result<()> {
        let configured = self.configured();
        let section = configured.config.volume.iter().find(|v| v.name.get_ref() == name);
        let Some(section) = section.filter(|v| self.declared_in(v) == Declared::Away) else { return Ok(()) };
        Err(NodeError::Conflict(format!(
            "volume `{name}` is declared in pool `{}`, which isn't served and may have it: another one wouldn't be served. Choose another \
             name, or take its section out of the configuration and reload",
            section.pool.get_ref()
        )))
    }

    /// Takes the volume that is served under a declared one's name out of the way, if the pool in which it is declared has one and nobody
    /// uses this one. True if that was so: then the declared one is to be published. A device that hangs keeps it waiting for some seconds at
    /// most, and what has begun then is done.
    ///
    /// # Errors
    /// If clients use it, or one of the pools hangs: then it is served as before.
    pub(super) async fn give_way(&self, declared: &VolumeConfig) -> Result<bool> {
        let (name, section_pool) = (declared.name.get_ref(), declared.pool.get_ref());
        let Declared::Open(pool) = self.declared_in(declared) else { return Ok(false) };
        let record = self.pools.get(pool).store.as_ref().and_then(|s| s.view().volume(name).cloned());
        let Some(record) = record else { return Ok(false) };
        let in_the_way = self.directory_ref(|d| d.volumes.get(name).map(|v| v.pool).filter(|other| *other != pool));
        let Some(other) = in_the_way else { return Ok(false) };
        // Not again the time that an earlier volume has waited. Nor is anything withdrawn for one that can't be published.
        if let Some(e) = [pool, other].into_iter().find_map(|number| self.hangs(&self.pools.get(number).name)) {
            return Err(e);
        }
        let ((turn, noted), volume) = self.volume_turn(name).await?;
        if volume.pool == pool {
            return Ok(false);
        }
        let todo = format!("and reload again: pool `{section_pool}` has the one that is declared");
        self.withdraw_unused(&volume, &todo).await?;
        drop(noted); // the name is the declared one's
        // Its pool's device may hang, which is nothing to the declared one. Until it answers nobody has the turn to publish this one again.
        let (replica, owned) = (volume.replica.clone(), name.clone());
        let closing = tokio::spawn(async move {
            let _turn = turn;
            if let Err(error) = blocking(move || replica.close()).await {
                tracing::warn!(volume = owned, %error, "could not record that nobody uses the volume any more");
            }
        });
        let _ = tokio::time::timeout(TURN_TIME, closing).await; // it goes on by itself
        self.forget_promise(name);
        self.settle_deadline(&record);
        Ok(true)
    }

    fn declared_in(&self, volume: &VolumeConfig) -> Declared {
        let open = self.pools.named(volume.pool.get_ref()).filter(|(_, p)| p.failed.is_none());
        open.map_or(Declared::Away, |(number, _)| Declared::Open(number))
    }

    /// The pools whose metadata have a volume of a name.
    pub(super) fn pools_with(&self, name: &str) -> Vec<usize> {
        let has = |store: &crate::store::PoolStore| store.view().volume(name).is_some();
        self.pools.all().into_iter().filter(|(_, p)| p.store.as_deref().is_some_and(has)).map(|(n, _)| n).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::engine::{ClientFilter, Command, ExportParams, Wire};
    use crate::node::Prepared;
    use plimsoll_base::{OnBusy, Priority};
    use plimsoll_nbd::request::Rules;
    use plimsoll_nbd::wire::{MetaContexts, TransmissionFlags};
    use plimsoll_store::NewVolume;
    use std::os::unix::net::UnixStream;
    use std::sync::Arc;

    #[test]
    fn the_declared_one_is_served_and_of_others_none() {
        let of = |served, declared, others: &[usize]| Namesakes { served, declared, others: others.to_vec() };
        assert_eq!(of(None, None, &[]).judge(0), Ok(()));
        assert_eq!(of(None, None, &[1]).judge(0), Err(Unserved::Ambiguous(1)));
        assert_eq!(of(Some(0), None, &[1]).judge(0), Ok(()));
        assert_eq!(of(Some(1), None, &[1]).judge(0), Err(Unserved::Served(1)));
        assert_eq!(of(None, Some(Declared::Open(0)), &[1]).judge(0), Ok(()));
        assert_eq!(of(None, Some(Declared::Open(1)), &[1]).judge(0), Err(Unserved::Declared(1)));
        assert_eq!(of(None, Some(Declared::Open(2)), &[]).judge(0), Ok(()), "the file moves no volume");
        assert_eq!(of(None, Some(Declared::Open(2)), &[1]).judge(0), Err(Unserved::Ambiguous(1)));
        assert_eq!(of(None, Some(Declared::Away), &[]).judge(0), Err(Unserved::Away));
    }

    const TEXT: &str = r#"
        [listen]
        unix = "nbd.sock"
        [[pool]]
        name = "p"
        device = { file = "p.img", size = "64MiB" }
        [[tenant]]
        name = "t"
        class = "best-effort"
    "#;
    const Q: &str = "[[pool]]\nname = \"q\"\ndevice = { file = \"q.img\", size = \"64MiB\" }\n";

    fn declares(pool: &str) -> String {
        format!("[[volume]]\nname = \"v\"\npool = \"{pool}\"\nsize = \"1MiB\"\ntenant = \"t\"\n")
    }

    struct Scene {
        dir: tempfile::TempDir,
        node: Option<Arc<Node>>,
    }

    impl Scene {
        /// Each pool has a volume `v`.
        async fn new() -> Scene {
            let mut s = Scene { dir: tempfile::tempdir().unwrap(), node: None };
            for pool in ["p", "q"] {
                s.start(&TEXT.replace("\"p", &format!("\"{pool}"))).await;
                let new = NewVolume {
                    name: "v".into(),
                    size_bytes: 1 << 20,
                    tenant: "t".into(),
                    read_only: false,
                    description: None,
                    cache: None,
                };
                s.node().create_volume(pool, new).await.unwrap();
            }
            s
        }

        fn node(&self) -> &Arc<Node> {
            self.node.as_ref().unwrap()
        }

        fn parse(&self, text: &str) -> Config {
            Config::parse(text, &self.dir.path().join("node.toml")).unwrap()
        }

        async fn start(&mut self, text: &str) {
            if let Some(node) = self.node.take() {
                node.shut_down().unwrap();
            }
            self.node = Some(Arc::new(Node::start(&self.parse(text)).await.unwrap()));
        }

        async fn reload(&self, text: &str) {
            let was = self.node().configured().config.clone();
            let new = crate::reload::served(was, self.parse(text));
            self.node().reconfigure(Prepared::of(&new).unwrap()).await;
        }

        /// The pool whose `v` is served, and the problem, if there is one.
        fn expect(&self, pool: Option<&str>, problem: Option<&str>) {
            let node = self.node();
            let served = node.directory_ref(|d| d.volumes.get("v").map(|v| node.pools.get(v.pool).name.clone()));
            let said = node.unmade_volumes();
            assert_eq!(served.as_deref(), pool, "{said:?}");
            match problem {
                None => assert_eq!(said, []),
                Some(problem) => assert!(said.len() == 1 && said[0].1.contains(problem), "{said:?}"),
            }
        }
    }

    /// The order of pools in the file says nothing of their volumes.
    #[tokio::test]
    async fn of_two_volumes_that_are_not_declared_none_is_served() {
        let mut s = Scene::new().await;
        let neither = "no [[volume]] section says which one is meant";
        for both in [format!("{TEXT}{Q}"), format!("{Q}{TEXT}")] {
            s.start(&both).await;
            s.expect(None, Some(neither));
            s.reload(&both).await;
            s.expect(None, Some(neither));
        }
        // Nor is a third one made under that name.
        let third = "[[pool]]\nname = \"r\"\ndevice = { file = \"r.img\", size = \"64MiB\" }\n";
        s.reload(&format!("{TEXT}{Q}{third}{}", declares("r"))).await;
        assert!(s.node().pools_with("v").len() == 2 && s.node().directory_ref(|d| d.volumes.is_empty()));
        for pool in ["q", "p"] {
            s.start(&format!("{TEXT}{Q}")).await;
            s.reload(&format!("{TEXT}{Q}{}", declares(pool))).await;
            s.expect(Some(pool), Some("where it is declared").filter(|_| pool == "q").or(Some("which serves it")));
            // Whoever takes the section out again, to rename one, goes on with this one.
            s.reload(&format!("{TEXT}{Q}")).await;
            s.expect(Some(pool), Some("which serves it"));
        }
    }

    /// A pool that comes by a reload, as it does by a start.
    #[tokio::test]
    async fn a_reload_serves_the_declared_one_as_a_start_does() {
        let mut s = Scene::new().await;
        let both = format!("{TEXT}{Q}{}", declares("q"));
        s.start(&both).await;
        s.expect(Some("q"), Some("where it is declared"));
        // Its pool is away: the other one isn't taken for it.
        std::fs::rename(s.dir.path().join("q.img"), s.dir.path().join("away.img")).unwrap();
        std::fs::create_dir(s.dir.path().join("q.img")).unwrap();
        s.start(&both).await;
        s.expect(None, Some("this one isn't taken for that"));
        std::fs::remove_dir(s.dir.path().join("q.img")).unwrap();
        std::fs::rename(s.dir.path().join("away.img"), s.dir.path().join("q.img")).unwrap();
        s.reload(&both).await;
        s.expect(Some("q"), Some("and in pool `q`"));
        // The other one was served when the section came.
        s.start(TEXT).await;
        s.expect(Some("p"), None);
        s.reload(&format!("{TEXT}{Q}")).await;
        s.expect(Some("p"), Some("which serves it"));
        s.reload(&both).await;
        s.expect(Some("q"), Some("and in pool `q`"));
    }

    /// A volume that is made must be found under its name.
    #[tokio::test]
    async fn a_name_that_is_declared_in_a_pool_that_is_away_is_given_to_nobody() {
        let mut s = Scene::new().await;
        std::fs::rename(s.dir.path().join("q.img"), s.dir.path().join("away.img")).unwrap();
        std::fs::create_dir(s.dir.path().join("q.img")).unwrap();
        let declares_w = declares("q").replace("\"v\"", "\"w\"");
        s.start(&format!("{TEXT}{Q}{declares_w}")).await;
        let new = || NewVolume {
            name: "w".into(),
            size_bytes: 1 << 20,
            tenant: "t".into(),
            read_only: false,
            description: None,
            cache: None,
        };
        let said = s.node().create_volume("p", new()).await.unwrap_err().to_string();
        assert!(said.contains("volume `w` is declared in pool `q`, which isn't served"), "{said}");
        assert!(s.node().pools_with("w").is_empty());
        // The way that the refusal names.
        s.reload(&format!("{TEXT}{Q}")).await;
        s.node().create_volume("p", new()).await.unwrap();
        assert!(s.node().volume_named("w").is_ok());
    }

    /// A client of the volume.
    fn attach(node: &Node) -> UnixStream {
        let volume = node.volume_named("v").unwrap();
        let rules = Rules {
            size_bytes: volume.size_bytes,
            flags: TransmissionFlags::SEND_FLUSH,
            block_bytes_min: 1,
            payload_bytes_max: 32 << 20,
            structured_replies: false,
            block_status: false,
            promises: false,
        };
        let params = ExportParams {
            peer: "test".into(),
            volume: volume.key,
            tenant: node.directory_ref(|d| d.tenants["t"].id),
            deadline: None,
            on_busy: OnBusy::Wait,
            auto: None,
            as_of: 0,
            priority: Priority::DEFAULT,
            wire: Wire::Nbd { rules, meta_contexts: MetaContexts::EMPTY },
            replica: volume.replica,
            used_as: None,
        };
        let (ours, theirs) = UnixStream::pair().unwrap();
        let attach = Command::Attach { fd: Arc::new(theirs.into()), params, early: Vec::new(), seat: None };
        node.pools.get(volume.pool).handle.send(attach).unwrap();
        ours
    }

    async fn connections(node: &Node) -> usize {
        let of = ClientFilter::of_volume(node.volume_named("v").unwrap().key);
        node.pools.get(0).ask_soon(|reply| Command::Connections { of, reply }).await.unwrap().1
    }

    /// Clients aren't moved to other data.
    #[tokio::test]
    async fn a_volume_that_is_used_does_not_give_way() {
        let mut s = Scene::new().await;
        s.start(TEXT).await;
        let client = attach(s.node());
        let both = format!("{TEXT}{Q}{}", declares("q"));
        s.reload(&both).await;
        s.expect(Some("p"), Some("is in pool `p`, and is configured in `q`"));
        drop(client);
        while connections(s.node()).await > 0 {
            tokio::task::yield_now().await;
        }
        s.reload(&both).await;
        s.expect(Some("q"), Some("and in pool `q`"));
    }

    /// The device of the pool whose volume gives way hangs.
    #[tokio::test]
    async fn the_declared_one_is_served_though_the_other_ones_device_hangs() {
        let mut s = Scene::new().await;
        s.start(TEXT).await;
        let (p, replica) = (s.node().pools.get(0), s.node().volume_named("v").unwrap().replica);
        tokio::task::spawn_blocking(move || replica.open()).await.unwrap().unwrap();
        let store = p.store.clone().unwrap();
        drop(p);
        let (holds, held) = tokio::sync::oneshot::channel();
        let (let_go, hangs) = std::sync::mpsc::channel::<()>();
        let device = std::thread::spawn(move || {
            let _change = store.change();
            holds.send(()).unwrap();
            let _ = hangs.recv();
        });
        held.await.unwrap();
        let both = format!("{TEXT}{Q}{}", declares("q"));
        s.reload(&both).await;
        s.expect(Some("q"), Some("an earlier change of pool `p` hasn't ended"));
        let_go.send(()).unwrap();
        device.join().unwrap();
        drop(s.node().turn_of(0).await.unwrap());
        s.reload(&both).await;
        s.expect(Some("q"), Some("and in pool `q`"));
        let is_open = s.node().pools.get(0).store.as_ref().unwrap().view().volume("v").unwrap().replica;
        assert!(!is_open.open, "its end was recorded");
    }
}
