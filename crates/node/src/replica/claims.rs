//! Connections that exclude each other at a volume: the copier of a resync, whose writes are what a peer has, and clients that may
//! change the volume as if it had no other replicas. The copy would overwrite what they write, and the peer never gets it.
//!
//! While a peer's content is being copied (`copied`, below), no such client is attached. Clients that write to all replicas may be: their
//! changes come to the peer, too, and the copier looks at changed places again.
//!
//! ```text
//! copy begins       refused while such a client is attached
//! client attaches   refused while copied and the copier is attached; without a copier the copy is ended: a resync that broke off
//!                   keeps nobody out
//! copier attaches   refused while another one is
//! copier writes     refused unless copied, when the write is offered to the stack
//! ```
//!
//! A copier isn't bound to its attempt. If another attempt supersedes it, it may write until it leaves. That attempt's copier is attached after
//! that, and compares the whole volume.
//!
//! A claim lasts until all requests of its connection have ended. A copy may end before its copier leaves: it is complete, or a writer was lost.
//! Then a client may be attached while the copier's last writes are in flight. They overwrite nothing of the client's: they were accepted
//! before, and the stack carries out overlapping changes in the order in which it accepted them.

use super::{Behind, Replica, ReplicaUse, is_copied};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Attached connections that exclude each other.
#[derive(Default)]
pub(super) struct Claims {
    /// Clients that may change the volume and know no other replicas.
    others: u32,
    /// The copier of a resync is there.
    has_copier: bool,
}

/// Reason to refuse a connection, or the begin of a resync.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Excluded {
    /// A resync overwrites the volume.
    Copied,
    /// Another resync is connected.
    Copier,
    /// That number of clients may change it and don't write to its other replicas.
    Others(u32),
    /// The attempt was ended when it had hardly begun.
    Ended,
}

impl fmt::Display for Excluded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Excluded::Copied => f.write_str(
                "is being overwritten by a resync, so it takes no client that may change it without `replica=write`: connect again when \
                 `plimsoll volume resync` has ended",
            ),
            Excluded::Copier => f.write_str(
                "has the connection of another `plimsoll volume resync`: wait for its end, or disconnect it (`plimsoll connections`)",
            ),
            Excluded::Others(n) => write!(
                f,
                "has {n} clients that may change it and don't write to its other replicas (no `replica=write`): the resync would overwrite \
                 what they write. Disconnect them first (`plimsoll connections`)"
            ),
            Excluded::Ended => f.write_str(
                "isn't being caught up by this attempt any more: another one has begun, a writer was lost, or a client without \
                 `replica=write` came. Begin anew",
            ),
        }
    }
}

/// A connection's part in the exclusion, until this is dropped.
#[derive(Debug)]
pub struct Claim {
    replica: Arc<Replica>,
    is_copier: bool,
}

impl Claim {
    /// Of a connection that is being attached. `None` for one that excludes nobody.
    ///
    /// # Errors
    /// If another one excludes it.
    pub fn of(
        replica: &Arc<Replica>,
        used_as: Option<ReplicaUse>,
        is_read_only: bool,
    ) -> Result<Option<Claim>, Excluded> {
        let is_copier = match used_as {
            _ if is_read_only => return Ok(None),
            Some(ReplicaUse::Read | ReplicaUse::Write) => return Ok(None),
            Some(ReplicaUse::Copy) => true,
            None => false,
        };
        replica.under_claims(|claims| {
            replica.may_attach(claims, is_copier)?;
            if is_copier {
                claims.has_copier = true;
            } else {
                claims.others += 1;
                replica.end_copy();
            }
            Ok(())
        })?;
        Ok(Some(Claim { replica: replica.clone(), is_copier }))
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let is_copier = self.is_copier;
        self.replica.claims.send_modify(|claims| match is_copier {
            true => claims.has_copier = false,
            false => claims.others -= 1,
        });
    }
}

impl Replica {
    /// Waits for at most `patience` until a connection for that use isn't excluded. Only the end of another copier is waited for. A hint:
    /// the connection is attached later, and may be refused then ([`Claim::of`]).
    ///
    /// # Errors
    /// If another connection excludes it.
    pub async fn admits(&self, used_as: Option<ReplicaUse>, patience: Duration) -> Result<(), Excluded> {
        match used_as {
            Some(ReplicaUse::Read | ReplicaUse::Write) => Ok(()),
            Some(ReplicaUse::Copy) => {
                let mut claims = self.claims.subscribe();
                let came = tokio::time::timeout(patience, claims.wait_for(|c| !c.has_copier)).await;
                came.map(drop).map_err(|_| Excluded::Copier)
            }
            None => self.may_attach(&self.claims.borrow(), false),
        }
    }

    /// True while a write of a resync's copier may be carried out.
    pub fn takes_copies(&self) -> bool {
        is_copied(self.behind.load(Ordering::Acquire))
    }

    /// A resync may begin.
    ///
    /// # Errors
    /// If connections exclude it.
    pub fn may_catch_up(&self, copies: bool) -> Result<(), Excluded> {
        may_begin(&self.claims.borrow(), copies)
    }

    /// Begins a resync, unless connections exclude it.
    pub(super) fn unless_excluded(&self, copies: bool, begin: impl FnOnce()) -> Result<(), Excluded> {
        self.under_claims(|claims| {
            may_begin(claims, copies)?;
            begin();
            Ok(())
        })
    }

    fn may_attach(&self, claims: &Claims, is_copier: bool) -> Result<(), Excluded> {
        match is_copier {
            true if claims.has_copier => Err(Excluded::Copier),
            false if claims.has_copier && self.takes_copies() => Err(Excluded::Copied),
            _ => Ok(()),
        }
    }

    /// A copy whose copier has gone is complete for nobody.
    fn end_copy(&self) {
        let is_copied = |was: u64| is_copied(was).then_some(Behind::WriterLost as u64);
        self.change_behind(is_copied);
    }

    fn under_claims<T>(&self, act: impl FnOnce(&mut Claims) -> Result<T, Excluded>) -> Result<T, Excluded> {
        let mut result = None;
        self.claims.send_if_modified(|claims| result.insert(act(claims)).is_ok());
        result.expect("it was called")
    }
}

/// A copy needs the volume for itself. A trust is given to content that nothing overwrites.
fn may_begin(claims: &Claims, copies: bool) -> Result<(), Excluded> {
    match copies {
        true if claims.others > 0 => Err(Excluded::Others(claims.others)),
        false if claims.has_copier => Err(Excluded::Copier),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replica::COPIED;
    use plimsoll_store::ReplicaRecord;

    fn replica() -> Arc<Replica> {
        Replica::new(1 << 20, ReplicaRecord::default(), None)
    }

    fn attach(replica: &Arc<Replica>, used_as: Option<ReplicaUse>) -> Result<Option<Claim>, Excluded> {
        Claim::of(replica, used_as, false)
    }

    /// Either the copier has the volume, or those who know no peer.
    #[test]
    fn a_copier_and_clients_without_replicas_exclude_each_other() {
        let r = replica();
        let plain = attach(&r, None).unwrap();
        let copier = attach(&r, Some(ReplicaUse::Copy)).unwrap();
        assert!(!r.takes_copies(), "nothing has begun");
        assert_eq!(r.catch_up(7, true).unwrap(), Err(Excluded::Others(1)));
        assert_eq!((r.behind(), r.takes_copies()), (Behind::No, false));
        drop(plain);
        r.catch_up(7, true).unwrap().unwrap();
        assert!(r.takes_copies());
        assert_eq!(attach(&r, None).err(), Some(Excluded::Copied));
        assert_eq!(attach(&r, Some(ReplicaUse::Copy)).err(), Some(Excluded::Copier));
        for used_as in [Some(ReplicaUse::Read), Some(ReplicaUse::Write)] {
            assert!(attach(&r, used_as).unwrap().is_none(), "its changes come to the peer, too");
        }
        assert!(Claim::of(&r, None, true).unwrap().is_none(), "it changes nothing");
        assert!(r.caught_up(7, 0).unwrap());
        let plain = attach(&r, None).unwrap();
        assert!(plain.is_some() && !r.takes_copies(), "the copier is still there, and copies nothing more");
        drop((plain, copier));
        assert!(attach(&r, Some(ReplicaUse::Copy)).unwrap().is_some());
    }

    /// A command that was killed keeps no client out, and whoever goes on with its attempt copies nothing.
    #[test]
    fn a_copy_without_its_copier_is_ended_by_the_next_client() {
        let r = replica();
        drop(attach(&r, Some(ReplicaUse::Copy)).unwrap());
        r.catch_up(7, true).unwrap().unwrap();
        let _plain = attach(&r, None).unwrap();
        assert_eq!((r.behind(), r.takes_copies()), (Behind::WriterLost, false));
        assert!(!r.caught_up(7, 0).unwrap());
        assert_eq!(r.behind.load(Ordering::Acquire) & COPIED, 0);
    }

    #[test]
    fn a_trust_goes_on_beside_clients_and_not_beside_a_copier() {
        let r = replica();
        let copier = attach(&r, Some(ReplicaUse::Copy)).unwrap();
        assert_eq!(r.catch_up(7, false).unwrap(), Err(Excluded::Copier));
        drop(copier);
        r.catch_up(8, false).unwrap().unwrap();
        let _plain = attach(&r, None).unwrap();
        assert!(r.caught_up(8, 0).unwrap());
    }
}
