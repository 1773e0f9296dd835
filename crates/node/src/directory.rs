//! The directory: the volumes and tenants of the node, and the peers that may use each.
//!
//! An export's name only chooses among the volumes and tenants that the peer was granted; it never grants anything.

use crate::config::{BadConfig, Config, Grant, Peer, SubsystemConfig, TenantConfig, VolumeConfig, check_deadline};
use crate::engine::{AutoTerms, DeadlineFrom, ExportParams, Health, PermitLimits, Wire};
use crate::predict::auto_terms;
use crate::replica::{Behind, Replica, ReplicaUse, UnknownUse};
use crate::secrets::AllSecrets;
use plimsoll_base::{BadPriority, Class, OnBusy, Priority, Span, TenantId, VolumeKey};
use plimsoll_nbd::export::{BlockSizes, ExportInfo, ListedExport, Refusal, RefusalReason};
use plimsoll_nbd::wire::{MetaContext, MetaContexts, TransmissionFlags};
use plimsoll_stack::{Extent, LayerState};
use plimsoll_store::Uuid;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::sync::watch;

/// Identity of a peer, as far as it is known.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Identity {
    /// On the unix socket, or from a loopback address.
    pub local: bool,
    /// The unix peer's user id.
    pub uid: Option<u32>,
    /// The common name of a verified TLS client certificate.
    pub cert: Option<String>,
    /// A TCP peer's address.
    pub address: Option<SocketAddr>,
    /// An NVMe host's NQN, as it says itself.
    pub host: Option<String>,
    /// The host proves that it is `host` before it is served.
    pub proves: bool,
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(host) = &self.host {
            f.write_str(host)?;
            return self.address.map_or(Ok(()), |address| write!(f, " {address}"));
        }
        match (&self.cert, self.address, self.uid) {
            (Some(name), Some(address), _) => write!(f, "cert:{name} {address}"),
            (Some(name), None, _) => write!(f, "cert:{name}"),
            (None, Some(address), _) => write!(f, "{address}"),
            (None, None, Some(uid)) => write!(f, "uid:{uid}"),
            (None, None, None) => f.write_str("unix"),
        }
    }
}

/// A volume's life.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum VolumeState {
    /// Its layers aren't ready yet; it isn't exported.
    Recovering,
    /// Served.
    Ready,
    /// Less than promised: a layer does without what it lost, or a flush has failed.
    Degraded,
    /// Not served.
    Failed,
}

impl VolumeState {
    /// The word for the API and the metrics.
    pub const fn name(self) -> &'static str {
        match self {
            VolumeState::Recovering => "recovering",
            VolumeState::Ready => "ready",
            VolumeState::Degraded => "degraded",
            VolumeState::Failed => "failed",
        }
    }
}

/// A volume.
#[derive(Clone, Debug)]
pub struct Volume {
    /// Its name within the node.
    pub name: String,
    /// Its name within its pool.
    pub key: VolumeKey,
    /// Number of the pool.
    pub pool: usize,
    /// The pool's device; a null device has none.
    pub device_uuid: Option<Uuid>,
    /// Size.
    pub size_bytes: u64,
    /// True if changes are refused.
    pub read_only: bool,
    /// Tenant that is charged, unless the connection names another.
    pub tenant: String,
    /// Its pool's.
    pub health: watch::Receiver<Health>,
    /// Its pool.
    pub extents: Vec<Extent>,
    /// Its device turns: clients may want to know.
    pub rotational: bool,
    /// New state as a replica.
    pub replica: Arc<Replica>,
}

impl Volume {
    /// Its life, as of now.
    pub fn state(&self) -> VolumeState {
        match *self.health.borrow() {
            Health { state: LayerState::Recovering, .. } => VolumeState::Recovering,
            Health { state: LayerState::Failed, .. } => VolumeState::Failed,
            Health { state: LayerState::Degraded, .. } | Health { flush_failed: true, .. } => VolumeState::Degraded,
            Health { state: LayerState::Ready, .. } => VolumeState::Ready,
        }
    }

    /// Identifies it among the volumes that its pool has had, whatever its name. After a restore of a backup of another history a later volume
    /// may have that of an earlier one. So may volumes of a pool without a device, which last until its end only, after a restart.
    pub fn uuid(&self) -> Uuid {
        let of = self.device_uuid.unwrap_or_else(|| Uuid::from_u128(self.pool as u128));
        Uuid::new_v5(&of, format!("volume {}.{}", self.key.id, self.key.generation).as_bytes())
    }

    /// Returns the reason that keeps new clients out, if there is one. Clients that are connected when a flush fails stay, and
    /// every flush reports it to them. Later clients haven't heard of the failure, and might take what they read for durable.
    fn closed(&self) -> Option<String> {
        let health = *self.health.borrow();
        match health.state {
            LayerState::Recovering => Some("is recovering: try again later".into()),
            LayerState::Failed => Some("has failed: the node's log says why".into()),
            LayerState::Ready | LayerState::Degraded => {
                let what =
                    "has seen a flush fail: it is exported again once the node's operator has recovered the pool";
                health.flush_failed.then(|| what.into())
            }
        }
    }
}

/// A tenant.
#[derive(Clone, Debug)]
pub struct Tenant {
    /// Its number while the node runs.
    pub id: TenantId,
    /// Promise.
    pub class: Class,
    /// Limits of its requests in flight.
    pub permits: PermitLimits,
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub struct Directory {
    /// By name.
    pub volumes: BTreeMap<String, Volume>,
    /// By name.
    pub tenants: BTreeMap<String, Tenant>,
    /// As configured.
    pub grants: Vec<Grant>,
    next_tenant: u16,
    /// Secrets of NVMe/TCP hosts, as configured.
    pub secrets: AllSecrets,
    /// Names for NVMe/TCP hosts, as configured.
    pub subsystems: BTreeMap<String, NvmeName>,
    /// Promises for requests that ask for none themselves.
    pub promises: Promises,
    /// Counts its changes, for those who wait for a volume.
    pub changes: watch::Sender<u64>,
}

/// A name for NVMe/TCP hosts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NvmeName {
    /// Its volume and promise, as in an NBD export's name.
    pub export: String,
    /// Most I/O queues of a host.
    pub queues_max: u16,
    /// The node's number among several that serve it, from 1.
    pub path: Option<u16>,
    /// Its volume on an RBD image, where the gateways of the image are the paths.
    pub image: Option<ImagePath>,
}

/// A volume on an RBD image, as each of the image's gateways configures it. Only the gateway with the image's lock serves it. The others know
/// of it what stands here, and show the same namespace.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ImagePath {
    /// Its name.
    pub volume: String,
    /// Name of its pool.
    pub pool: String,
    /// Its size for hosts.
    pub size_bytes: u64,
    /// True if changes are refused.
    pub read_only: bool,
}

impl ImagePath {
    /// True if the volume is at least as large as its hosts know it, and takes the changes that they may make.
    pub fn fits(&self, volume: &Volume) -> bool {
        volume.size_bytes >= self.size_bytes && (self.read_only || !volume.read_only)
    }
}

impl NvmeName {
    /// Those of a configuration that was checked.
    pub fn all(config: &Config) -> BTreeMap<String, NvmeName> {
        let name = |s: &SubsystemConfig| {
            let path = s.path.as_ref().map(|p| *p.get_ref());
            let image = s.volume_on_image(config).filter(|_| path.is_some()).map(|v| ImagePath {
                volume: v.name.get_ref().clone(),
                pool: v.pool.get_ref().clone(),
                size_bytes: v.size.0,
                read_only: v.read_only,
            });
            let name = NvmeName { export: s.export.get_ref().clone(), queues_max: s.queues, path, image };
            (s.nqn.get_ref().clone(), name)
        };
        config.subsystem.iter().map(name).collect()
    }
}

/// A tenant's promise to requests that ask for nothing themselves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Promise {
    /// Deadline of its reads.
    pub deadline: Option<Span>,
    /// Terms of a deadline that sets itself, where there is no fixed one.
    pub auto: Option<AutoTerms>,
    /// Answer to a read that would miss either.
    pub busy: OnBusy,
    /// For schedulers that know priorities.
    pub priority: Priority,
}

impl Promise {
    /// Of a tenant that was promised nothing.
    pub const NONE: Promise = Promise { deadline: None, auto: None, busy: OnBusy::Wait, priority: Priority::DEFAULT };
}

/// A volume's promise to reads that ask for nothing themselves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct VolumePromise {
    /// Deadline of its reads.
    pub deadline: Span,
    /// Answer to a read that would miss the deadline.
    pub busy: OnBusy,
}

/// The promises of volumes and tenants, by names: as configured, or as changed live since.
#[derive(Clone, Debug, Default)]
pub struct Promises {
    /// Tenants'.
    pub tenants: BTreeMap<String, Promise>,
    /// Volumes' with a deadline.
    pub volumes: BTreeMap<String, VolumePromise>,
}

impl Promises {
    /// A tenant's.
    pub fn tenant(&self, name: &str) -> Promise {
        self.tenants.get(name).copied().unwrap_or(Promise::NONE)
    }

    /// The deadline of reads on an export with its source, and what becomes of reads that would miss it. The source of the deadline
    /// also decides that: the export's name, its volume, or its tenant. Only the name may overrule the other two.
    fn of_export(&self, tenant: &str, asked: &Asked<'_>) -> (Option<(Span, DeadlineFrom)>, OnBusy) {
        let own = asked.deadline.map(|deadline| (deadline, DeadlineFrom::Connection, OnBusy::Wait));
        let of_volume = || self.volumes.get(asked.volume).map(|p| (p.deadline, DeadlineFrom::Volume, p.busy));
        let promise = self.tenant(tenant);
        let (deadline, busy) = match own.or_else(of_volume) {
            Some((deadline, from, busy)) => (Some((deadline, from)), busy),
            None => (promise.deadline.map(|deadline| (deadline, DeadlineFrom::Tenant)), promise.busy),
        };
        (deadline, asked.busy.unwrap_or(busy))
    }

    /// The same of connections to a volume that ask for nothing.
    pub fn of_volume(&self, volume: &str, tenant: &str) -> (Option<(Span, DeadlineFrom)>, OnBusy) {
        self.of_export(tenant, &Asked::plain(volume))
    }

    /// Those of a configuration that was checked.
    pub fn of(config: &Config) -> Promises {
        let tenant = |t: &TenantConfig| {
            let priority = t.priority.as_ref().and_then(|p| p.get_ref().parse().ok()).unwrap_or(Priority::DEFAULT);
            let auto = auto_terms(t).ok().flatten();
            let busy = t.busy.unwrap_or_default();
            (t.name.get_ref().clone(), Promise { deadline: t.deadline.map(|d| d.0), auto, busy, priority })
        };
        let volume = |v: &VolumeConfig| {
            let promise = VolumePromise { deadline: v.deadline?.0, busy: v.busy.unwrap_or_default() };
            Some((v.name.get_ref().clone(), promise))
        };
        Promises {
            tenants: config.tenant.iter().map(tenant).collect(),
            volumes: config.volume.iter().filter_map(volume).collect(),
        }
    }
}

/// Requests in an export's name.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Asked<'a> {
    volume: &'a str,
    deadline: Option<Span>,
    busy: Option<OnBusy>,
    priority: Option<Priority>,
    tenant: Option<&'a str>,
    replica: Option<ReplicaUse>,
}

impl Asked<'_> {
    /// A volume's name alone.
    fn plain(volume: &str) -> Asked<'_> {
        Asked { volume, deadline: None, busy: None, priority: None, tenant: None, replica: None }
    }
}

fn parse_name(name: &str) -> Result<Asked<'_>, BadConfig> {
    let (volume, query) = name.split_once('?').unwrap_or((name, ""));
    let mut asked = Asked::plain(volume);
    for part in query.split('&').filter(|p| !p.is_empty()) {
        match part.split_once('=') {
            Some(("deadline", t)) => match t.parse::<Span>() {
                Ok(d) => {
                    check_deadline(d)?;
                    asked.deadline = Some(d);
                }
                Err(e) => return Err(BadConfig::new(format!("deadline: {e}"))),
            },
            Some(("busy", b)) => asked.busy = Some(b.parse().map_err(|e: String| BadConfig::new(e))?),
            Some(("replica", r)) => asked.replica = Some(r.parse().map_err(|e: UnknownUse| BadConfig::found(e))?),
            Some(("tenant", t)) => asked.tenant = Some(t),
            Some(("priority", p)) => asked.priority = Some(p.parse().map_err(|e: BadPriority| BadConfig::found(e))?),
            _ => {
                let known =
                    "deadline=TIME, busy=wait|error, priority=CLASS:LEVEL, tenant=NAME or replica=read|write|copy";
                return Err(BadConfig::new(format!("`{part}` is unknown in an export name: {known}")));
            }
        }
    }
    Ok(asked)
}

/// Checks the name of an export that NVMe/TCP hosts use; the name of its volume.
pub fn check_export(name: &str) -> Result<&str, BadConfig> {
    let asked = parse_name(name)?;
    match asked.replica {
        None | Some(ReplicaUse::Read) => Ok(asked.volume),
        Some(_) => Err(BadConfig::new("an NVMe host uses a replica with replica=read, or without `replica`")),
    }
}

/// True if an export's name asks for one of several replicas, to read.
pub fn is_read_of_replica(name: &str) -> bool {
    parse_name(name).is_ok_and(|asked| asked.replica == Some(ReplicaUse::Read))
}

/// An export as it was shown to a client, with the volume behind it. Its name may be another volume's a moment later: what is done for
/// the client from then on is done for this volume, or refused.
#[derive(Clone, Debug)]
pub struct Shown {
    /// Its properties, as the client receives them.
    pub export: ExportInfo,
    /// The volume. No two volumes share one, and a volume's is another one when its pool was opened again.
    pub replica: Arc<Replica>,
    /// Its use as one of several replicas.
    pub used_as: Option<ReplicaUse>,
}

impl Shown {
    /// Returns true if the client may change the volume.
    pub fn writes(&self) -> bool {
        !self.export.flags.contains(TransmissionFlags::READ_ONLY)
    }
}

/// Refuses a volume that isn't the one that a client was shown.
fn must_be(volume: &Volume, shown: &Arc<Replica>) -> Result<(), Refusal> {
    if Arc::ptr_eq(&volume.replica, shown) {
        return Ok(());
    }
    let what = format!("`{}` is another volume by now, or its pool was opened again: connect again", volume.name);
    Err(Refusal::new(RefusalReason::Unavailable, what))
}

impl Directory {
    /// Returns the name of a pool's volume; its number if it is deleted.
    pub fn volume_name(&self, pool: usize, key: VolumeKey) -> String {
        let named = self.volumes.values().find(|v| v.pool == pool && v.key == key);
        named.map_or_else(|| Directory::unnamed(key), |v| v.name.clone())
    }

    /// The text in the place of the name of a volume that is deleted.
    pub(crate) fn unnamed(key: VolumeKey) -> String {
        format!("{}.{}", key.id, key.generation)
    }

    /// Adds a tenant or changes its class and permits; its number stays.
    ///
    /// # Errors
    /// If there are 65,535 already.
    pub fn set_tenant(&mut self, name: &str, class: Class, permits: PermitLimits) -> Result<TenantId, BadConfig> {
        let id = match self.tenants.get(name) {
            Some(t) => t.id,
            None => {
                self.next_tenant = self
                    .next_tenant
                    .checked_add(1)
                    .ok_or(BadConfig::new("65,535 tenants were declared since the start: restart the node"))?;
                TenantId(self.next_tenant)
            }
        };
        self.tenants.insert(name.to_string(), Tenant { id, class, permits });
        Ok(id)
    }

    /// The pools in which a tenant owns a volume, or may use one that it was granted.
    pub fn pools_of(&self, tenant: &str) -> BTreeSet<usize> {
        let may_use =
            |volume: &str| self.grants.iter().any(|g| covers(g, volume) && g.tenants.iter().any(|t| t == tenant));
        self.volumes.values().filter(|v| v.tenant == tenant || may_use(&v.name)).map(|v| v.pool).collect()
    }

    fn grants_for<'a>(&'a self, who: &'a Identity) -> impl Iterator<Item = &'a Grant> {
        self.grants.iter().filter(move |g| match Peer::parse(g.peer.get_ref()) {
            Ok(Peer::Local) => who.local,
            Ok(Peer::Uid(uid)) => who.uid == Some(uid),
            Ok(Peer::Cert(name)) => who.cert.as_deref() == Some(&name),
            Ok(Peer::Host(nqn, address)) => {
                let is_there = match address {
                    None => who.local || who.proves,
                    Some(address) => who.address.is_some_and(|a| a.ip().to_canonical() == address),
                };
                is_there && who.host.as_deref() == Some(&nqn)
            }
            Err(_) => false, // refused when the configuration was read
        })
    }

    /// The exports that `who` may see.
    pub fn list(&self, who: &Identity) -> Vec<ListedExport> {
        let sees = |v: &&Volume| self.grants_for(who).any(|g| covers(g, &v.name));
        let listed =
            |v: &Volume| ListedExport { name: v.name.clone(), description: self.describe(v, &Asked::plain(&v.name)) };
        self.volumes.values().filter(sees).map(listed).collect()
    }

    /// The export that `name` asks for, if `who` was granted it.
    pub fn look_up(&self, who: &Identity, name: &str) -> Result<Shown, Refusal> {
        let (volume, asked, write) = self.resolve(who, name)?;
        let mut flags = TransmissionFlags::SEND_FLUSH
            .with(TransmissionFlags::SEND_FUA)
            .with(TransmissionFlags::SEND_TRIM)
            .with(TransmissionFlags::SEND_WRITE_ZEROES)
            .with(TransmissionFlags::SEND_FAST_ZERO)
            .with(TransmissionFlags::SEND_DF)
            .with(TransmissionFlags::SEND_CACHE)
            .with(TransmissionFlags::CAN_MULTI_CONN);
        if asked.replica == Some(ReplicaUse::Write) {
            // A second connection is taken for the first one's client that lost its link. And a request that one replica refuses as it would
            // be slow there, while others carry it out, makes that one lack a change.
            flags = flags.without(TransmissionFlags::CAN_MULTI_CONN).without(TransmissionFlags::SEND_FAST_ZERO);
        }
        if volume.read_only || !write || asked.replica == Some(ReplicaUse::Read) {
            flags = flags.with(TransmissionFlags::READ_ONLY);
        }
        if volume.rotational {
            flags = flags.with(TransmissionFlags::ROTATIONAL);
        }
        let export = ExportInfo {
            size_bytes: volume.size_bytes,
            flags,
            block_sizes: BlockSizes { minimum: 1, preferred: 4096, payload_max: 32 << 20 },
            canonical_name: volume.name.clone(),
            description: self.describe(volume, &asked),
            meta_contexts: MetaContext::ALL.into_iter().fold(MetaContexts::EMPTY, MetaContexts::with),
        };
        Ok(Shown { export, replica: volume.replica.clone(), used_as: asked.replica })
    }

    /// The tenant that pays for what `name` asks for.
    pub fn tenant(&self, who: &Identity, name: &str) -> Result<(String, TenantId), Refusal> {
        let (volume, asked, _) = self.resolve(who, name)?;
        let tenant = asked.tenant.unwrap_or(&volume.tenant);
        Ok((tenant.to_string(), self.tenants[tenant].id))
    }

    /// The volume that a client was shown as the export `name`.
    ///
    /// # Errors
    /// If the name is another volume's by now.
    pub fn volume(&self, who: &Identity, name: &str, shown: &Arc<Replica>) -> Result<&Volume, Refusal> {
        let (volume, ..) = self.resolve(who, name)?;
        must_be(volume, shown)?;
        Ok(volume)
    }

    /// A connection to the export `name`, on which its client speaks `wire`: the pool's number and the parameters. `shown` is the volume
    /// that was made ready for it.
    ///
    /// # Errors
    /// If the name is another volume's by now, or the client may no longer write there as it was shown.
    pub fn open(
        &self,
        who: &Identity,
        name: &str,
        wire: Wire,
        shown: &Arc<Replica>,
    ) -> Result<(usize, ExportParams), Refusal> {
        let (volume, asked, write) = self.resolve(who, name)?;
        must_be(volume, shown)?;
        if !wire.is_read_only() && (volume.read_only || !write) {
            let what = format!("`{}` can't be written by you any more: connect again", volume.name);
            return Err(Refusal::new(RefusalReason::Forbidden, what));
        }
        let tenant = asked.tenant.unwrap_or(&volume.tenant);
        let (deadline, busy) = self.promises.of_export(tenant, &asked);
        let is_told = matches!(wire, Wire::Nbd { meta_contexts, .. } if meta_contexts.contains(MetaContext::Promise));
        let params = ExportParams {
            peer: who.to_string().into(),
            volume: volume.key,
            tenant: self.tenants[tenant].id,
            deadline,
            on_busy: if is_told { OnBusy::Error } else { busy },
            auto: self.promises.tenant(tenant).auto,
            as_of: *self.changes.borrow(),
            priority: asked.priority.unwrap_or(self.promises.tenant(tenant).priority),
            wire,
            replica: volume.replica.clone(),
            used_as: asked.replica,
        };
        Ok((volume.pool, params))
    }

    /// Returns whether a grant of `who` covers the volume of an export, which may not be there.
    pub fn is_granted(&self, who: &Identity, name: &str) -> bool {
        self.may_write(who, name).is_some()
    }

    /// Returns whether `who` may write the volume of an export, which may not be there. `None` without a grant.
    pub fn may_write(&self, who: &Identity, name: &str) -> Option<bool> {
        let volume = parse_name(name).ok()?.volume;
        self.grants_for(who).filter(|g| covers(g, volume)).map(|g| g.write).reduce(|a, b| a || b)
    }

    fn resolve<'a, 'n>(&'a self, who: &Identity, name: &'n str) -> Result<(&'a Volume, Asked<'n>, bool), Refusal> {
        let asked = parse_name(name).map_err(|e| Refusal::new(RefusalReason::Unknown, e.to_string()))?;
        let grants: Vec<&Grant> = self.grants_for(who).filter(|g| covers(g, asked.volume)).collect();
        let unknown = || {
            let what =
                format!("there is no volume `{}` for you here; list the exports to see what there is", asked.volume);
            Refusal::new(RefusalReason::Unknown, what)
        };
        if grants.is_empty() {
            return Err(unknown()); // whether it exists is not told
        }
        let volume = self.volumes.get(asked.volume).ok_or_else(unknown)?;
        if let Some(why) = volume.closed() {
            return Err(Refusal::new(RefusalReason::Unavailable, format!("volume `{}` {why}", volume.name)));
        }
        let tenant = asked.tenant.unwrap_or(&volume.tenant);
        let may_use =
            tenant == volume.tenant || grants.iter().any(|g| g.tenants.iter().any(|t| t == tenant || t == "*"));
        if !may_use || !self.tenants.contains_key(tenant) {
            let what = format!("tenant `{tenant}` isn't granted to you on volume `{}`", volume.name);
            return Err(Refusal::new(RefusalReason::Forbidden, what));
        }
        let write = grants.iter().any(|g| g.write);
        if asked.replica == Some(ReplicaUse::Write) && (volume.read_only || !write) {
            let what = format!("`{}` can't be written by you here: replica=write isn't for you", volume.name);
            return Err(Refusal::new(RefusalReason::Forbidden, what));
        }
        Ok((volume, asked, write))
    }

    /// An export in words, for whoever lists exports or asks for one: what it is, and what its reads are promised.
    fn describe(&self, v: &Volume, asked: &Asked<'_>) -> String {
        let behind = match v.replica.behind() {
            Behind::No => String::new(),
            why => format!(", may lack writes of other replicas ({why})"),
        };
        let tenant = asked.tenant.unwrap_or(&v.tenant);
        let (deadline, busy) = self.promises.of_export(tenant, asked);
        let deadline = match (deadline, self.promises.tenant(tenant).auto) {
            (Some((deadline, _)), _) => Some(format!("deadline {deadline}")),
            (None, Some(_)) => Some("a deadline that sets itself".into()),
            (None, None) => None,
        };
        let promise = deadline.map_or_else(String::new, |d| format!(", {d}, busy={}", busy.name()));
        let read_only = if v.read_only { ", read-only" } else { "" };
        format!("{} of tenant {tenant}{read_only}{promise}{behind}", v.state().name())
    }
}

fn covers(g: &Grant, volume: &str) -> bool {
    g.volumes.iter().any(|v| v == "*" || v == volume)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use plimsoll_nbd::handshake::Negotiated;
    use plimsoll_nbd::request::Rules;

    fn directory() -> Directory {
        let text = r#"
            [[pool]]
            name = "p"
            device = { null = true, size = "1GiB" }
            [[grant]]
            peer = "local"
            volumes = ["web"]
            write = false
            [[grant]]
            peer = "uid:7"
            volumes = ["*"]
            tenants = ["reports"]
            [[grant]]
            peer = "cert:backup"
            volumes = ["web"]
        "#;
        let grants = Config::parse(text, std::path::Path::new("t")).unwrap().grant;
        let mut d = Directory { grants, ..Directory::default() };
        for t in ["web", "reports", "secret"] {
            d.set_tenant(t, Class::BestEffort { weight: 100 }, PermitLimits::default()).unwrap();
        }
        for (i, name) in ["web", "reports", "sick"].into_iter().enumerate() {
            let state = if name == "sick" { LayerState::Failed } else { LayerState::Ready };
            let (_, health) = watch::channel(Health { state, flush_failed: false });
            let v = Volume {
                name: name.into(),
                key: VolumeKey { id: i as u32 + 1, generation: 1 },
                pool: 0,
                device_uuid: None,
                size_bytes: 1 << 20,
                read_only: false,
                tenant: if name == "sick" { "web" } else { name }.into(),
                health,
                extents: vec![],
                rotational: false,
                replica: Replica::new(1 << 20, Default::default(), None),
            };
            d.volumes.insert(name.into(), v);
        }
        d
    }

    fn reason(d: &Directory, who: &Identity, name: &str) -> Option<RefusalReason> {
        d.look_up(who, name).err().map(|r| r.reason)
    }

    #[test]
    fn a_name_chooses_only_among_what_is_granted() {
        let d = directory();
        let local = Identity { local: true, ..Identity::default() };
        let seven = Identity { local: true, uid: Some(7), ..Identity::default() };
        let backup = Identity { cert: Some("backup".into()), ..Identity::default() };
        let names = |who| d.list(who).into_iter().map(|e| e.name).collect::<Vec<_>>();
        assert_eq!(names(&local), ["web"]);
        assert_eq!(names(&seven), ["reports", "sick", "web"]);
        assert_eq!(names(&Identity::default()), [""; 0]);
        assert!(!d.look_up(&local, "web").unwrap().writes());
        assert!(d.look_up(&seven, "web").unwrap().writes());
        assert_eq!(reason(&d, &local, "reports"), Some(RefusalReason::Unknown));
        assert_eq!(reason(&d, &seven, "no such"), Some(RefusalReason::Unknown));
        assert_eq!(reason(&d, &seven, "sick"), Some(RefusalReason::Unavailable));
        assert_eq!(reason(&d, &seven, "web?tenant=reports"), None);
        assert_eq!(reason(&d, &seven, "web?tenant=secret"), Some(RefusalReason::Forbidden));
        assert_eq!(reason(&d, &backup, "web?tenant=reports"), Some(RefusalReason::Forbidden));
        assert_eq!(reason(&d, &backup, "web?deadline=20ms&tenant=web"), None);
    }

    /// A host of another machine is known by its proof, or by its address; its name alone is anybody's.
    #[test]
    fn a_host_without_proof_is_granted_what_names_its_address() {
        let mut d = directory();
        let nqn = "nqn.2014-08.org.nvmexpress:uuid:1";
        let grant = |peer: String| {
            let pool = "[[pool]]\nname = \"p\"\ndevice = { null = true, size = \"1GiB\" }\n";
            let text = format!("{pool}[[grant]]\npeer = \"{peer}\"\nvolumes = [\"web\"]\n");
            Config::parse(&text, std::path::Path::new("t")).unwrap().grant
        };
        let at = |address: &str, proves| Identity {
            host: Some(nqn.into()),
            address: Some(format!("{address}:4420").parse().unwrap()),
            proves,
            ..Identity::default()
        };
        d.grants = grant(format!("host:{nqn}"));
        assert_eq!(reason(&d, &at("192.0.2.7", false), "web"), Some(RefusalReason::Unknown));
        assert_eq!(reason(&d, &at("192.0.2.7", true), "web"), None);
        let local = Identity { local: true, ..at("127.0.0.1", false) };
        assert_eq!(reason(&d, &local, "web"), None);
        d.grants = grant(format!("host:{nqn}@192.0.2.7"));
        assert_eq!(reason(&d, &at("192.0.2.7", false), "web"), None);
        assert_eq!(reason(&d, &at("192.0.2.8", false), "web"), Some(RefusalReason::Unknown));
        let other = Identity { host: Some("nqn.2014-08.org.nvmexpress:uuid:2".into()), ..at("192.0.2.7", true) };
        assert_eq!(reason(&d, &other, "web"), Some(RefusalReason::Unknown));
        // A volume that is away is known to those to whom it is granted.
        let here = at("192.0.2.7", false);
        assert!(
            d.is_granted(&here, "web?deadline=20ms") && !d.is_granted(&here, "reports") && !d.is_granted(&other, "web")
        );
    }

    #[test]
    fn a_tenant_uses_the_pools_of_its_volumes_and_of_those_granted() {
        let mut d = directory();
        for (pool, name) in ["web", "reports", "sick"].into_iter().enumerate() {
            d.volumes.get_mut(name).expect("made above").pool = pool;
        }
        let of = |tenant| d.pools_of(tenant).into_iter().collect::<Vec<_>>();
        assert_eq!(of("web"), [0, 2], "its own two");
        assert_eq!(of("reports"), [0, 1, 2], "one of its own, and who has uid 7 may use any as it");
        assert_eq!(of("secret"), [0; 0]);
    }

    #[test]
    fn only_what_serves_all_it_promises_is_exported() {
        let mut d = directory();
        let local = Identity { local: true, ..Identity::default() };
        for (state, flush_failed, open, word) in [
            (LayerState::Ready, false, true, "ready"),
            (LayerState::Degraded, false, true, "degraded"),
            (LayerState::Ready, true, false, "degraded"),
            (LayerState::Recovering, false, false, "recovering"),
            (LayerState::Failed, true, false, "failed"),
        ] {
            let (_, health) = watch::channel(Health { state, flush_failed });
            d.volumes.get_mut("web").expect("made above").health = health;
            assert_eq!(d.volumes["web"].state().name(), word);
            let looked_up = d.look_up(&local, "web");
            assert_eq!(looked_up.is_ok(), open, "{state:?} {flush_failed}");
        }
    }

    /// The answer to a late read is set with the deadline; an export's name may overrule it; clients that negotiated promises are told.
    #[test]
    fn a_late_read_waits_unless_the_export_or_its_client_says_otherwise() {
        let mut d = directory();
        let who = Identity { uid: Some(7), ..Identity::default() };
        let (ms, wait, error) = (Span::from_millis, OnBusy::Wait, OnBusy::Error);
        let tenant = |busy| Promise { deadline: Some(ms(50)), auto: None, busy, priority: Priority::DEFAULT };
        d.promises.tenants = [("web".into(), tenant(wait)), ("reports".into(), tenant(error))].into();
        let opened = |d: &Directory, name: &str, contexts: MetaContexts| {
            let shown = d.look_up(&who, name).unwrap();
            let agreed = Negotiated {
                export_name: name.into(),
                export: shown.export,
                flags: TransmissionFlags::SEND_FLUSH,
                structured_replies: true,
                meta_contexts: contexts,
                block_sizes_told: true,
                no_zeroes: true,
                tls: false,
            };
            let params = d.open(&who, &agreed.export_name, Wire::from(&agreed), &shown.replica).unwrap().1;
            (params.deadline.map(|(deadline, _)| deadline), params.on_busy, agreed.export.description)
        };
        let plain = |d: &Directory, name| {
            let (deadline, busy, _) = opened(d, name, MetaContexts::EMPTY);
            (deadline, busy)
        };
        assert_eq!(plain(&d, "web"), (Some(ms(50)), wait));
        assert_eq!(plain(&d, "web?busy=error"), (Some(ms(50)), error));
        assert_eq!(plain(&d, "reports"), (Some(ms(50)), error));
        assert_eq!(plain(&d, "reports?busy=wait"), (Some(ms(50)), wait));
        assert_eq!(plain(&d, "reports?deadline=20ms"), (Some(ms(20)), wait), "its own deadline, and nothing said");
        assert_eq!(plain(&d, "web?deadline=20ms&busy=error"), (Some(ms(20)), error));
        d.promises.volumes.insert("web".into(), VolumePromise { deadline: ms(10), busy: error });
        d.promises.volumes.insert("reports".into(), VolumePromise { deadline: ms(10), busy: wait });
        assert_eq!(plain(&d, "web"), (Some(ms(10)), error));
        assert_eq!(plain(&d, "reports"), (Some(ms(10)), wait));
        let told = MetaContexts::EMPTY.with(MetaContext::Promise);
        for name in ["web?busy=wait", "reports", "reports?deadline=20ms"] {
            assert_eq!(opened(&d, name, told).1, error, "{name}: it knows what the error says");
        }
        let said = opened(&d, "web?deadline=20ms&busy=error", MetaContexts::EMPTY).2;
        assert_eq!(said, "ready of tenant web, deadline 20.0ms, busy=error");
    }

    /// Between the handshake and the attachment a volume may be deleted and made again, its pool closed and opened, a grant taken away.
    #[test]
    fn a_client_gets_the_volume_that_it_was_shown() {
        let mut d = directory();
        let who = Identity { uid: Some(7), ..Identity::default() };
        let wire = |flags| Wire::Nbd {
            rules: Rules {
                size_bytes: 1 << 20,
                flags,
                block_bytes_min: 1,
                payload_bytes_max: 1 << 20,
                structured_replies: true,
                block_status: false,
                promises: false,
            },
            meta_contexts: MetaContexts::EMPTY,
        };
        let (writes, reads) = (wire(TransmissionFlags::SEND_FLUSH), wire(TransmissionFlags::READ_ONLY));
        let shown = d.look_up(&who, "web").unwrap().replica;
        let opened = |d: &Directory, wire: &Wire| d.open(&who, "web", wire.clone(), &shown).err().map(|r| r.reason);
        assert_eq!((opened(&d, &writes), opened(&d, &reads)), (None, None));
        let volume = d.volumes["web"].clone();
        d.volumes.insert("web".into(), Volume { read_only: true, ..volume.clone() });
        assert_eq!((opened(&d, &writes), opened(&d, &reads)), (Some(RefusalReason::Forbidden), None));
        // Made again with the same key, as far as one can tell: nobody has marked that one open.
        let made_again = Volume { replica: Replica::new(1 << 20, Default::default(), None), ..volume.clone() };
        d.volumes.insert("web".into(), made_again);
        for wire in [&writes, &reads] {
            assert_eq!(opened(&d, wire), Some(RefusalReason::Unavailable));
        }
        assert!(d.volume(&who, "web", &shown).is_err());
        d.volumes.insert("web".into(), volume);
        assert_eq!((opened(&d, &writes), d.volume(&who, "web", &shown).is_ok()), (None, true));
    }

    #[test]
    fn promises_in_names() {
        let ok = |n: &'static str| parse_name(n).unwrap();
        assert_eq!(ok("a"), Asked::plain("a"));
        assert_eq!(ok("a?replica=write&deadline=1ms").replica, Some(ReplicaUse::Write));
        assert_eq!(ok("a?deadline=20ms"), Asked { deadline: Some(Span::from_millis(20)), ..Asked::plain("a") });
        for bad in [
            "a?deadline=20",
            "a?deadline=0",
            "a?deadline=2h",
            "a?priority=fast",
            "a?priority=rt:9",
            "a?x=1",
            "a?replica=yes",
            "a?deadline",
            "a?deadline=1ms&busy=late",
        ] {
            assert!(parse_name(bad).is_err(), "{bad}");
        }
    }
}
