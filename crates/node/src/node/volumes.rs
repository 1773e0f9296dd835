//! Volumes that are deleted and renamed: only when nobody uses them, and the configuration doesn't declare them.

use super::error::of_store;
use super::{Node, NodeError, Result, blocking};
use crate::directory::{Volume, check_export};
use crate::engine::{ClientFilter, Command, Connection};
use plimsoll_store::{Uuid, VolumeRecord, check_name};

/// Clients that a refusal names.
const NAMED_MAX: usize = 3;

/// Explicit words for a deletion that is refused without them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Deletion {
    /// Disconnect the volume's clients.
    pub disconnect: bool,
    /// Delete a volume that the configuration declares: the next start makes it again, empty.
    pub declared: bool,
    /// Only this volume ([`Volume::uuid`]): another may have got its name while somebody was asked.
    pub uuid: Option<Uuid>,
}

impl Node {
    /// Names of a pool's volumes.
    pub fn volumes_of(&self, pool: &str) -> Vec<String> {
        let Some((number, _)) = self.pools.named(pool) else { return Vec::new() };
        self.directory_ref(|d| d.volumes.values().filter(|v| v.pool == number).map(|v| v.name.clone()).collect())
    }

    /// Deletes a volume: zeroes its space, and then frees it. If the node ends before, the next start continues.
    ///
    /// # Errors
    /// If the configuration declares it, a client uses it, or its time slot runs. If the storage fails, the deletion may be durable nevertheless:
    /// then the volume is offered to nobody until the next start.
    pub async fn delete_volume(&self, name: &str, deletion: Deletion) -> Result<()> {
        let (one, volume) = self.volume_turn(name).await?;
        if deletion.uuid.is_some_and(|uuid| uuid != volume.uuid()) {
            let what = "another volume has its name by now: look at it, and repeat the deletion if it is meant. Nothing was deleted";
            return Err(NodeError::Conflict(what.into()));
        }
        if !deletion.declared {
            self.must_not_be_declared(
                name,
                "or delete it with `--declared` to have it made again, empty, at the next start",
            )?;
        }
        self.check_not_running(&volume).await?;
        let gives_up = self.pools.get(volume.pool).has_failed_cache().await;
        match deletion.disconnect {
            true => self.withdraw(&volume),
            false => self.withdraw_unused(&volume, "or delete it with `--disconnect`").await?,
        }
        let Some(store) = self.pools.get(volume.pool).store.clone() else {
            self.forget_promise(name);
            drop(one);
            return self.pools.get(volume.pool).forget(&volume).await;
        };
        let owned = name.to_string();
        let begin = move || {
            let mut store = store.change();
            if gives_up { store.begin_delete_given_up(&owned) } else { store.begin_delete(&owned) }
        };
        let unknown = match tokio::task::spawn_blocking(begin).await {
            Ok(Ok(record)) => {
                self.forget_promise(name);
                drop(one); // zeroing may take long, and what is zeroed is nobody's any more: other changes need not wait
                return self.finish_delete(volume.pool, &record).await;
            }
            Ok(Err(e)) if !e.may_be_durable() => {
                self.offer_again(volume);
                return Err(of_store(e));
            }
            Ok(Err(e)) => e.to_string(),
            Err(e) => e.to_string(),
        };
        // The next start may find the deletion, and go on with it: whoever wrote to the volume until then would lose what was acknowledged.
        let of = ClientFilter::of_volume(volume.key);
        // A pool that has ended has no clients.
        let _ = self.pools.get(volume.pool).ask_soon(|reply| Command::Disconnect { of, reply }).await;
        Err(NodeError::Failed(format!(
            "{unknown}; volume `{name}` is offered to nobody: the next start of the node finds it deleted, or as it was"
        )))
    }

    /// Refuses a volume's new name if the configuration names the volume or the new name, or if that is taken.
    pub(super) fn check_rename(&self, volume: &Volume, new: &str) -> Result<()> {
        check_name(new).map_err(|e| NodeError::Refused(e.to_string()))?;
        for name in [&volume.name, new] {
            self.must_not_be_declared(name, "then rename")?;
            let serves = |(nqn, export): (&String, &str)| (check_export(export) == Ok(name)).then(|| nqn.clone());
            let subsystem = self.directory_ref(|d| d.subsystems.iter().find_map(|(nqn, s)| serves((nqn, &s.export))));
            if let Some(nqn) = subsystem {
                let what =
                    format!("subsystem `{nqn}` serves a volume `{name}`: take it out of the configuration first");
                return Err(NodeError::Conflict(what));
            }
        }
        let is_stored = self.pools.get(volume.pool).store.as_ref().is_some_and(|s| s.view().volume(new).is_some());
        if is_stored || self.directory_ref(|d| d.volumes.contains_key(new)) {
            return Err(NodeError::Conflict(format!("volume `{new}` exists already")));
        }
        Ok(())
    }

    /// Gives a volume another name. Its data, its key and what was set live for it stay.
    ///
    /// # Errors
    /// If a client uses it, or the storage fails: then it has its old name.
    pub(super) async fn put_name(&self, volume: Volume, new: &str) -> Result<()> {
        self.withdraw_unused(&volume, "then rename: they would look for its old name").await?;
        let name = volume.name.clone();
        if let Some(store) = self.pools.get(volume.pool).store.clone() {
            let (from, to) = (name.clone(), new.to_string());
            let renamed = blocking(move || store.change().rename_volume(&from, &to)).await;
            // The next start may find the new name. The data are the same under either.
            renamed.inspect_err(|_| self.offer_again(volume.clone()))?;
        }
        self.directory_mut(|d| {
            d.volumes.insert(new.to_string(), Volume { name: new.to_string(), ..volume });
            if let Some(promise) = d.promises.volumes.remove(&name) {
                d.promises.volumes.insert(new.to_string(), promise);
            }
        });
        Ok(())
    }

    /// A volume that the configuration declares would be made again, empty, at the next start.
    fn must_not_be_declared(&self, name: &str, todo: &str) -> Result<()> {
        let Some(place) = self.configured().declares(name) else { return Ok(()) };
        let what =
            format!("volume `{name}` is declared in the configuration ({place}): take it out there and reload, {todo}");
        Err(NodeError::Conflict(what))
    }

    /// Takes a volume out of the directory, so that no further client gets it.
    fn withdraw(&self, volume: &Volume) {
        self.directory_mut(|d| d.volumes.remove(&volume.name));
    }

    /// Takes a volume that nobody uses out of the directory.
    ///
    /// # Errors
    /// If clients use it, or its pool doesn't answer: then it is in the directory as before.
    pub(super) async fn withdraw_unused(&self, volume: &Volume, todo: &str) -> Result<()> {
        self.withdraw(volume);
        let p = self.pools.get(volume.pool);
        let asked = p.ask_soon(|reply| Command::Connections { of: ClientFilter::of_volume(volume.key), reply });
        let refusal = match asked.await {
            Ok((_, 0)) => return Ok(()),
            Ok((some, n)) => NodeError::Conflict(format!("{}: let them disconnect, {todo}", in_use(volume, &some, n))),
            Err(_) => p.gone(),
        };
        self.offer_again(volume.clone());
        Err(refusal)
    }

    /// Puts a volume into the directory that was taken out of it.
    fn offer_again(&self, volume: Volume) {
        self.directory_mut(|d| d.volumes.insert(volume.name.clone(), volume));
    }

    /// Forgets a deleted volume's promise that was set live. A later volume of that name has the configured promise.
    pub(super) fn forget_promise(&self, name: &str) {
        self.promise(name, self.configured().promised.volumes.get(name).copied());
    }

    pub(super) async fn finish_delete(&self, pool: usize, record: &VolumeRecord) -> Result<()> {
        let p = self.pools.get(pool);
        let extents = p.stack_extents(&record.extents);
        let key = record.key;
        let zeroed = p.handle.ask(|reply| Command::DeleteVolume { key, extents, reply }).await.map_err(|_| p.gone())?;
        zeroed.map_err(|e| p.zeroing_failed(&record.name, e))?;
        let store = p.store.clone().expect("a record comes from a store");
        let id = key.id;
        // Its start may have failed since the deletion began, or since an earlier end of the node.
        let gives_up = p.has_failed_cache().await;
        let finish = move || {
            let mut store = store.change();
            if gives_up { store.finish_delete_given_up(id) } else { store.finish_delete(id) }
        };
        blocking(finish).await
    }
}

/// The clients of a volume in words: some by name, and their number.
fn in_use(volume: &Volume, some: &[Connection], n: usize) -> String {
    format!("volume `{}` is in use: {}", volume.name, connected(some, n))
}

/// Clients in words: their number, and some by name.
pub(super) fn connected(some: &[Connection], n: usize) -> String {
    let named = some.iter().take(NAMED_MAX).map(|c| format!("{} for {}", c.peer, c.connected));
    let named = named.collect::<Vec<_>>().join(", ");
    let more = n.saturating_sub(NAMED_MAX);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("{n} connected: {named}{more}")
}
