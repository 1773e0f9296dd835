//! NVMe/TCP hosts: their connections' openings, and their controllers.
//!
//! A host's first connection makes a controller, whose admin queue is served here until it ends. Each further connection is an I/O
//! queue of a controller and goes to the volume's pool. When the controller ends, its I/O queues end, too.

mod controllers;
mod watched;

pub use controllers::Controllers;

use self::controllers::{Association, DISCOVERY_IDS, Of, ids_of};
use self::watched::{Watched, WatchedCopy, WatchedImage, WatchedVolume};
use super::{Guest, Service, keep_alive};
use crate::crowd::{PeerKey, Standing};
use crate::directory::{Identity, ImagePath, NvmeName, Shown};
use crate::engine::{HostId, QueueParams, Wire};
use crate::events::{Kind, Severity};
use crate::replica::ReplicaUse;
use crate::seats::Seat;
use crate::secrets::{HostSecrets, random};
use crate::turns::Turns;
use plimsoll_base::VolumeKey;
use plimsoll_nbd::export::{ExportInfo, Refusal, RefusalReason};
use plimsoll_nbd::wire::TransmissionFlags;
use plimsoll_nvme::auth::{Parties, Proof};
use plimsoll_nvme::away::AwayQueue;
use plimsoll_nvme::command::Status;
use plimsoll_nvme::controller::{Controller, Role, Subsystem, Target};
use plimsoll_nvme::opening::{Asked, Connect, Opening, Parameter, Terms};
use plimsoll_nvme::pdu::Fault;
use plimsoll_nvme::queue::{Namespace, Replies};
use plimsoll_nvme::wire::{AnaState, BLOCK_BYTES, DISCOVERY_NQN};
use plimsoll_store::Uuid;
use rustix::io::Errno;
use rustix::net::RecvFlags;
use std::future::pending;
use std::io;
use std::net::SocketAddr;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Time after which a host that doesn't take an answer on its admin queue is disconnected.
const ANSWER_TIME: Duration = Duration::from_secs(30);
const RECEIVE_BYTES: usize = 16 << 10;

/// A refused Connect.
type No = (Status, Option<Parameter>);

/// A controller's place, which is free when this is dropped.
struct Place {
    service: Arc<Service>,
    id: u16,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.service.nvme.remove(self.id);
    }
}

/// Bytes that were received.
#[derive(Default)]
struct Received {
    buffer: Vec<u8>,
    have: Range<usize>,
}

impl Received {
    /// Lets `take` take from what is there.
    fn take<R>(&mut self, take: impl FnOnce(&mut &[u8]) -> R) -> R {
        let mut rest = &self.buffer[self.have.clone()];
        let taken = take(&mut rest);
        self.have.start = self.have.end - rest.len();
        taken
    }

    /// Receives more; false at the end of the stream.
    async fn more(&mut self, stream: &mut TcpStream) -> io::Result<bool> {
        debug_assert!(self.have.is_empty());
        let n = stream.read(&mut self.buffer).await?;
        self.have = 0..n;
        Ok(n > 0)
    }
}

async fn send(stream: &mut TcpStream, output: &mut Vec<u8>) -> io::Result<()> {
    if !output.is_empty() {
        let sent = tokio::time::timeout(ANSWER_TIME, stream.write_all(output)).await;
        sent.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
        output.clear();
    }
    Ok(())
}

/// A connection in its opening.
struct Door {
    stream: TcpStream,
    opening: Opening,
    received: Received,
}

impl Door {
    /// The next thing that its driver is asked; `None` if the connection is over.
    async fn asked(&mut self, guest: &Guest, powers: &Turns) -> io::Result<Option<Asked>> {
        loop {
            let taken = match self.opening.calculates() && !self.received.have.is_empty() {
                true => self.take_beside(guest, powers).await?,
                false => self.received.take(|input| self.opening.take(input)),
            };
            send(&mut self.stream, self.opening.output()).await?;
            match taken {
                Ok(Some(asked)) => return Ok(Some(asked)),
                Err(fault) => return Err(io::Error::other(fault.to_string())),
                // It has stopped before or after a calculation.
                Ok(None) if !self.opening.is_over() && !self.received.have.is_empty() => {}
                Ok(None) if self.opening.is_over() || !self.received.more(&mut self.stream).await? => return Ok(None),
                Ok(None) => guest.pulse.beat(Standing::Speaking),
            }
        }
    }

    /// Takes a command on a thread of its own, when it is its peer's turn: whoever knows a host's name may let the node calculate.
    async fn take_beside(&mut self, guest: &Guest, powers: &Turns) -> io::Result<Result<Option<Asked>, Fault>> {
        let address = guest.who.address.ok_or(io::ErrorKind::NotConnected)?;
        let turn = powers.next(PeerKey::host(address.ip())).await;
        let (mut opening, mut received) = (std::mem::take(&mut self.opening), std::mem::take(&mut self.received));
        let calculation = tokio::task::spawn_blocking(move || {
            let taken = received.take(|input| opening.take(input));
            // The turn is the thread's: a host that leaves meanwhile lets no other thread calculate beside it.
            drop(turn);
            (opening, received, taken)
        });
        let (opening, received, taken) = calculation.await.map_err(io::Error::other)?;
        (self.opening, self.received) = (opening, received);
        Ok(taken)
    }

    /// Accepts a host that has no secret, or lets one that has prove itself first. `None` if it doesn't.
    async fn admit(
        &mut self,
        controller: u16,
        proof: Option<Proof>,
        (guest, powers): (&Guest, &Turns),
    ) -> io::Result<Option<(Terms, Replies)>> {
        let Some(proof) = proof else { return Ok(Some(self.opening.accept(controller))) };
        self.opening.demand_proof(controller, proof);
        let is_proved = matches!(self.asked(guest, powers).await?, Some(Asked::Proved));
        Ok(is_proved.then(|| self.opening.accept_proved()))
    }
}

impl Service {
    /// Takes an NVMe host's connection in.
    pub(super) async fn nvme_client(self: Arc<Self>, stream: TcpStream, mut guest: Guest) -> io::Result<()> {
        stream.set_nodelay(true)?;
        keep_alive(&stream)?;
        let received = Received { buffer: vec![0; RECEIVE_BYTES], have: 0..0 };
        let mut door = Door { stream, opening: Opening::default(), received };
        let Some(Asked::Connect(connect)) = door.asked(&guest, self.nvme.powers()).await? else { return Ok(()) };
        let secrets = self.directory.read().expect("no panic while held").secrets.get(&connect.host).cloned();
        guest.who.host = Some(connect.host.clone());
        guest.who.proves = secrets.is_some();
        let proof = secrets.map(|s| proof(&s, &connect)).transpose()?;
        let done = match connect.queue {
            0 => self.make_controller(&mut door, &connect, proof, &mut guest).await?,
            _ => self.connect_queue(&mut door, &connect, proof, &guest).await?,
        };
        let connected = match done {
            Ok(connected) => connected,
            Err((status, parameter)) => {
                let (host, subsystem) = (&connect.host, &connect.subsystem);
                tracing::debug!(host, subsystem, ?status, ?parameter, "an NVMe host may not connect");
                if !matches!(status, Status::CONNECT_BUSY) {
                    let what = format!(
                        "NVMe host refused: it may not connect to `{subsystem}` ({})",
                        reason_of(status, parameter)
                    );
                    self.events.add(Kind::Refusal, Severity::Warning, Some(guest.who.to_string()), what);
                }
                door.opening.refuse(status, parameter);
                return send(&mut door.stream, door.opening.output()).await;
            }
        };
        send(&mut door.stream, door.opening.output()).await?;
        match connected {
            Connected::Not => {
                if let Some(reason) = door.opening.failure() {
                    let what =
                        format!("NVMe host refused: its authentication for `{}` failed: {reason}", connect.subsystem);
                    self.events.add(Kind::Refusal, Severity::Warning, Some(guest.who.to_string()), what);
                }
                Ok(())
            }
            Connected::Controller(controller, place, watched) => {
                let Guest { seat, .. } = guest;
                let session = attend(door.stream, door.received, *controller, place, watched, seat);
                self.nvme.add_session(session, "an NVMe controller ends");
                Ok(())
            }
            Connected::Away(name, image, (terms, replies)) => {
                // One for its controller, which ends it, and then for its pool; the other is gone by then.
                guest.seat.takes_descriptors(1).map_err(super::full)?;
                let socket = Arc::new(door.stream.as_fd().try_clone_to_owned()?);
                if !self.nvme.join(&connect, &Of::Image, &socket) {
                    return Ok(());
                }
                let namespace = self.namespace_of(&guest.who, &name, &image);
                let waiting = Waiting {
                    watched: WatchedImage::new(&self.directory, &guest.who, &name.export, &image),
                    queue: AwayQueue::new(terms, replies, namespace),
                    params: (host_of(&connect), terms, namespace),
                    export: name.export,
                    socket,
                    guest,
                };
                self.nvme.add_session(
                    waiting.run(self.clone(), door),
                    "an NVMe queue of a volume that is served elsewhere ends",
                );
                Ok(())
            }
            Connected::Queue(name, shown, (terms, replies)) => {
                let std = door.stream.into_std()?;
                std.set_nonblocking(false)?;
                let socket = Arc::new(OwnedFd::from(std));
                if !self.nvme.join(&connect, &of(&name, &shown), &socket) {
                    return Ok(());
                }
                let namespace = match &name.image {
                    Some(image) => self.namespace_of(&guest.who, &name, image),
                    None => namespace_of(&shown.export),
                };
                let wire = Wire::Nvme(QueueParams { host: host_of(&connect), terms, namespace, replies });
                let early = door.received.buffer[door.received.have].to_vec();
                self.attach(socket, (&name.export, wire, &shown.replica), guest, early).map(drop)
            }
        }
    }

    fn nvme_name(&self, nqn: &str) -> Result<NvmeName, No> {
        let directory = self.directory.read().expect("no panic while held");
        directory.subsystems.get(nqn).cloned().ok_or((Status::CONNECT_PARAMETER, Some(Parameter::Subsystem)))
    }

    /// Connects an I/O queue.
    async fn connect_queue(
        &self,
        door: &mut Door,
        connect: &Connect,
        proof: Option<Proof>,
        guest: &Guest,
    ) -> io::Result<Result<Connected, No>> {
        // Whoever has no grant learns nothing of others' controllers.
        let granted = self.nvme_export(connect, &guest.who);
        let checked = granted.and_then(|known| {
            self.nvme.check(connect, &known.of())?;
            Ok(known)
        });
        let known = match checked {
            Ok(checked) => checked,
            Err(no) => return Ok(Err(no)),
        };
        let Some(admitted) = door.admit(connect.controller, proof, (guest, self.nvme.powers())).await? else {
            return Ok(Ok(Connected::Not));
        };
        let (name, shown) = match known {
            Known::Here(name, shown) => (name, shown),
            Known::Away(name, image) => return Ok(Ok(Connected::Away(name, image, admitted))),
        };
        // It may have become writable since its controller was made.
        if let Err(refusal) = self.mark_open(&guest.who, &name.export, &shown).await {
            // Its Connect may have succeeded already: the connection closes, and the host tries again.
            let what = format!("NVMe host refused: `{}`: {}", connect.subsystem, refusal.text);
            self.events.add(Kind::Refusal, Severity::Warning, Some(guest.who.to_string()), what);
            return Ok(Ok(Connected::Not));
        }
        Ok(Ok(Connected::Queue(name, shown, admitted)))
    }

    async fn make_controller(
        self: &Arc<Self>,
        door: &mut Door,
        connect: &Connect,
        proof: Option<Proof>,
        guest: &mut Guest,
    ) -> io::Result<Result<Connected, No>> {
        let known = match connect.subsystem == DISCOVERY_NQN {
            true => None,
            false => match self.nvme_export(connect, &guest.who) {
                Ok(known) => Some(known),
                Err(no) => return Ok(Err(no)),
            },
        };
        let (ids, queues_max) = match &known {
            None => (DISCOVERY_IDS, 0),
            Some(known) => (ids_of(known.name().path.unwrap_or(1)), known.name().queues_max),
        };
        let address = guest.who.address.ok_or(io::ErrorKind::NotConnected)?;
        let peer = PeerKey::host(address.ip());
        let of = known.as_ref().map_or(Of::Discovery, Known::of);
        let id = match self.nvme.add(ids, Association::new(connect, peer, of, queues_max)) {
            Ok(id) => id,
            Err(no) => return Ok(Err(no)),
        };
        let place = Place { service: self.clone(), id };
        let proves = proof.is_some();
        // A host that has a secret opens nothing before it has proved itself.
        let proved = match proof {
            Some(proof) => match door.admit(id, Some(proof), (&*guest, self.nvme.powers())).await? {
                Some(admitted) => Some(admitted),
                None => return Ok(Ok(Connected::Not)),
            },
            None => None,
        };
        let (role, mut watched) = match known {
            None => {
                let ends = self.nvme.add_discovery(peer);
                (Role::Discovery(self.nvme_targets(&guest.who, door.stream.local_addr()?)), Watched::Nothing(ends))
            }
            Some(known) => match self.nvme_subsystem(connect, known, guest).await {
                Ok((subsystem, watched)) => (Role::Io(subsystem), watched),
                // Its Connect has succeeded already: the connection closes, and the host tries again.
                Err(_) if proves => return Ok(Ok(Connected::Not)),
                Err(no) => return Ok(Err(no)),
            },
        };
        let ana = watched.ana();
        let admitted = proved.unwrap_or_else(|| door.opening.accept(id));
        let controller = Controller::new(role, id, admitted, connect.keep_alive_ms, 0, ana);
        Ok(Ok(Connected::Controller(Box::new(controller), place, watched)))
    }

    /// The export of the subsystem that a host asks for, if it may use it. Changes nothing.
    fn nvme_export(&self, connect: &Connect, who: &Identity) -> Result<Known, No> {
        let name = self.nvme_name(&connect.subsystem)?;
        let directory = || self.directory.read().expect("no panic while held");
        if let Some(image) = &name.image {
            let directory = directory();
            let is_here = directory.volumes.get(&image.volume).is_some_and(|v| image.fits(v));
            match directory.look_up(who, &name.export) {
                Ok(_) if is_here => {}
                // Whoever may use the volume is shown its namespace, inaccessible as it is.
                Err(r) if matches!(r.reason, RefusalReason::Forbidden | RefusalReason::TlsRequired) => {
                    return Err(no(r));
                }
                _ if !directory.is_granted(who, &name.export) => {
                    return Err((Status::CONNECT_PARAMETER, Some(Parameter::Subsystem)));
                }
                _ => {
                    let image = image.clone();
                    return Ok(Known::Away(name, image));
                }
            }
        }
        let shown = self.look_up(who, &name.export, true).map_err(|refusal| match refusal.reason {
            // The configuration has the subsystem, so its volume may come: a pool that couldn't be opened yet, or was moved away. Linux gives
            // up a controller that it may not ask for again.
            RefusalReason::Unknown if directory().is_granted(who, &name.export) => (Status::CONNECT_BUSY, None),
            _ => no(refusal),
        })?;
        Ok(Known::Here(name, shown))
    }

    /// A namespace on an RBD image, the same at each gateway.
    fn namespace_of(&self, who: &Identity, name: &NvmeName, image: &ImagePath) -> Namespace {
        let directory = self.directory.read().expect("no panic while held");
        let may_write = directory.may_write(who, &name.export) == Some(true);
        Namespace { blocks: image.size_bytes / BLOCK_BYTES, read_only: image.read_only || !may_write }
    }

    /// Opens a subsystem for a host that may use it.
    async fn nvme_subsystem(
        &self,
        connect: &Connect,
        known: Known,
        guest: &mut Guest,
    ) -> Result<(Subsystem, Watched), No> {
        if let Some(image) = known.name().image.clone() {
            return self.nvme_image(connect, (known.name(), &image), guest);
        }
        let Known::Here(name, shown) = known else { return Err((Status::CONNECT_BUSY, None)) };
        let namespace = namespace_of(&shown.export);
        self.mark_open(&guest.who, &name.export, &shown).await.map_err(no)?;
        let (tenant, data, watched) = {
            let directory = self.directory.read().expect("no panic while held");
            let (_, tenant) = directory.tenant(&guest.who, &name.export).map_err(no)?;
            let volume = directory.volume(&guest.who, &name.export, &shown.replica).map_err(no)?;
            let changes = name.path.map(|_| volume.replica.generation());
            let is_copy = shown.used_as == Some(ReplicaUse::Read);
            let copy = is_copy.then(|| WatchedCopy::new(volume.replica.clone(), changes));
            let data = changes.map_or(Contents::Volume(volume.device_uuid, volume.key), Contents::Copy);
            (tenant, data, WatchedVolume { health: volume.health.clone(), copy })
        };
        guest.seat.belongs_to(tenant).map_err(|_| (Status::CONNECT_BUSY, None))?;
        Ok((subsystem(connect, &name, data, namespace), Watched::Volume(watched)))
    }

    /// Opens a subsystem whose volume is on an RBD image, here or not.
    fn nvme_image(
        &self,
        connect: &Connect,
        (name, image): (&NvmeName, &ImagePath),
        guest: &mut Guest,
    ) -> Result<(Subsystem, Watched), No> {
        // A tenant that isn't known yet takes its seats with the queues.
        let tenant = self.directory.read().expect("no panic while held").tenant(&guest.who, &name.export);
        if let Ok((_, tenant)) = tenant {
            guest.seat.belongs_to(tenant).map_err(|_| (Status::CONNECT_BUSY, None))?;
        }
        let namespace = self.namespace_of(&guest.who, name, image);
        let watched = WatchedImage::new(&self.directory, &guest.who, &name.export, image);
        Ok((subsystem(connect, name, Contents::Image(&image.volume), namespace), Watched::Image(watched)))
    }

    /// Subsystems that a host may use.
    fn nvme_targets(&self, who: &Identity, address: SocketAddr) -> Vec<Target> {
        let directory = self.directory.read().expect("no panic while held");
        let may_use = |(_, name): &(&String, &NvmeName)| {
            let may_come = name.image.is_some() && directory.is_granted(who, &name.export);
            may_come || directory.look_up(who, &name.export).is_ok()
        };
        let target =
            |(nqn, name): (&String, &NvmeName)| Target { nqn: nqn.clone(), address, port_id: name.path.unwrap_or(1) };
        directory.subsystems.iter().filter(may_use).map(target).collect()
    }
}

/// The result of a Connect that wasn't refused.
enum Connected {
    /// The host didn't prove itself, or its subsystem closed meanwhile.
    Not,
    Controller(Box<Controller>, Place, Watched),
    Queue(NvmeName, Shown, (Terms, Replies)),
    /// A queue whose volume is served elsewhere.
    Away(NvmeName, ImagePath, (Terms, Replies)),
}

/// An export that a host may use.
enum Known {
    Here(NvmeName, Shown),
    /// It is on an RBD image, and another gateway serves it, or none.
    Away(NvmeName, ImagePath),
}

impl Known {
    fn name(&self) -> &NvmeName {
        match self {
            Known::Here(name, _) | Known::Away(name, _) => name,
        }
    }

    fn of(&self) -> Of {
        match self {
            Known::Here(name, shown) => of(name, shown),
            Known::Away(..) => Of::Image,
        }
    }
}

/// Namespace of an export that is here.
fn of(name: &NvmeName, shown: &Shown) -> Of {
    if name.image.is_some() { Of::Image } else { Of::volume(&shown.replica) }
}

fn subsystem(connect: &Connect, name: &NvmeName, contents: Contents<'_>, namespace: Namespace) -> Subsystem {
    let nqn = connect.subsystem.clone();
    let of_name = Uuid::new_v5(&Uuid::NAMESPACE_OID, nqn.as_bytes());
    let serial = of_name.simple().to_string()[..20].to_string();
    let uuid = identifier(of_name, contents).into_bytes();
    Subsystem { nqn, serial, uuid, namespace, queues_max: name.queues_max }
}

/// An I/O queue that waits for its volume: each command ends with a status of the path until the volume is served here.
struct Waiting {
    watched: WatchedImage,
    queue: AwayQueue,
    params: (HostId, Terms, Namespace),
    export: String,
    /// The queue's connection, for its controller, and then for the volume's pool.
    socket: Arc<OwnedFd>,
    guest: Guest,
}

impl Waiting {
    async fn run(mut self, service: Arc<Service>, door: Door) -> io::Result<()> {
        let Door { mut stream, mut received, .. } = door;
        loop {
            let is_here = self.watched.ana() == AnaState::Optimized;
            self.refuse(&mut stream, &mut received).await?;
            if is_here && self.queue.is_between() {
                // What came before the volume was served here may be older than changes that its host has made through another path since.
                match rustix::net::recv(&self.socket, &mut received.buffer[..], RecvFlags::DONTWAIT) {
                    Ok((_, 0)) => return Ok(()),
                    Ok((_, n)) => received.have = 0..n,
                    Err(Errno::AGAIN) => return self.hand_over(&service, stream).await,
                    Err(e) => return Err(e.into()),
                }
                continue;
            }
            tokio::select! {
                biased;
                () = self.watched.changes() => {}
                more = received.more(&mut stream) => if !more? {
                    return Ok(());
                },
            }
        }
    }

    /// Refuses all commands that have come.
    async fn refuse(&mut self, stream: &mut TcpStream, received: &mut Received) -> io::Result<()> {
        while !received.have.is_empty() {
            let taken = received.take(|input| self.queue.take(input));
            send(stream, self.queue.output()).await?;
            taken.map_err(|fault| io::Error::other(fault.to_string()))?;
        }
        Ok(())
    }

    /// Gives the queue to its volume's pool.
    async fn hand_over(self, service: &Service, stream: TcpStream) -> io::Result<()> {
        let Waiting { queue, params: (host, terms, namespace), export, socket, guest, .. } = self;
        let shown = service.look_up(&guest.who, &export, true).map_err(super::refused)?;
        service.mark_open(&guest.who, &export, &shown).await.map_err(super::refused)?;
        stream.into_std()?.set_nonblocking(false)?;
        let replies = queue.into_replies();
        let wire = Wire::Nvme(QueueParams { host, terms, namespace, replies });
        service.attach(socket, (&export, wire, &shown.replica), guest, Vec::new()).map(drop)
    }
}

/// The authentication of a host that has a secret.
fn proof(secrets: &HostSecrets, connect: &Connect) -> io::Result<Proof> {
    let parties = Parties {
        host: connect.host.clone(),
        subsystem: connect.subsystem.clone(),
        host_secret: secrets.host.clone(),
        subsystem_secret: secrets.subsystem.clone(),
    };
    Ok(Proof::new(parties, random()?))
}

/// Contents of a namespace, as far as they tell two apart.
enum Contents<'a> {
    /// One of several nodes' copies: the number of changes that it has seen. Copies that have seen different changes have different data.
    Copy(u64),
    /// A volume of one node. One that is made anew, or restored, is another.
    Volume(Option<Uuid>, VolumeKey),
    /// A volume of this name on an RBD image. A gateway that doesn't serve it knows no more of it.
    Image(&'a str),
}

/// The identifier of a subsystem's namespace: of its name and contents. A host joins paths of the same identifier only, and gives up a
/// namespace whose identifier is another after a reconnection: its file system doesn't go on in a volume that has taken the place of its own.
fn identifier(of_name: Uuid, contents: Contents<'_>) -> Uuid {
    match contents {
        Contents::Copy(changes) => Uuid::new_v5(&of_name, &changes.to_le_bytes()),
        Contents::Image(volume) => Uuid::new_v5(&Uuid::new_v5(&of_name, b"image"), volume.as_bytes()),
        Contents::Volume(device, key) => {
            let of_device = Uuid::new_v5(&of_name, device.unwrap_or_default().as_bytes());
            Uuid::new_v5(&of_device, &(u64::from(key.generation) << 32 | u64::from(key.id)).to_le_bytes())
        }
    }
}

/// The host of a connection, by its identifier and its NQN.
fn host_of(connect: &Connect) -> HostId {
    HostId(Uuid::new_v5(&Uuid::from_bytes(connect.host_id), connect.host.as_bytes()).into_bytes())
}

fn namespace_of(export: &ExportInfo) -> Namespace {
    let read_only = export.flags.contains(TransmissionFlags::READ_ONLY);
    Namespace { blocks: export.size_bytes / BLOCK_BYTES, read_only }
}

fn no(refusal: Refusal) -> No {
    match refusal.reason {
        RefusalReason::Unknown => (Status::CONNECT_PARAMETER, Some(Parameter::Subsystem)),
        RefusalReason::Unavailable | RefusalReason::ShuttingDown => (Status::CONNECT_BUSY, None),
        RefusalReason::Forbidden | RefusalReason::TlsRequired => (Status::CONNECT_HOST, None),
    }
}

/// A refusal in an operator's words.
fn reason_of(status: Status, parameter: Option<Parameter>) -> &'static str {
    match parameter {
        None if status == Status::CONNECT_HOST => "no grant allows it",
        None => "its connection comes out of turn",
        Some(Parameter::Subsystem) => {
            "there is no such subsystem, no grant covers its export, or the controller is of another one"
        }
        Some(Parameter::Host) => "the controller is another host's",
        Some(_) => "there is no such controller, or the queue isn't free",
    }
}

/// Serves a controller's admin queue until it ends.
async fn attend(
    mut stream: TcpStream,
    mut received: Received,
    mut controller: Controller,
    place: Place,
    mut watched: Watched,
    _seat: Seat,
) -> io::Result<()> {
    let began = Instant::now();
    let now_ms = || began.elapsed().as_millis() as u64;
    loop {
        while !received.have.is_empty() {
            let taken = received.take(|input| controller.take(now_ms(), input));
            place.service.nvme.set_ready(place.id, controller.is_ready());
            send(&mut stream, controller.output()).await?;
            taken.map_err(|fault| io::Error::other(fault.to_string()))?;
        }
        let expires_in = controller.expires_at_ms().map(|at| Duration::from_millis(at.saturating_sub(now_ms())));
        let expires = async {
            match expires_in {
                Some(time) => tokio::time::sleep(time).await,
                None => pending().await,
            }
        };
        tokio::select! {
            // An end that isn't the host's comes first: one that always sends would never hear of it. What has come counts before a time
            // that is over: the node may have been stopped for a while.
            biased;
            changed = watched.changes() => changed.map_err(io::Error::other)?,
            more = received.more(&mut stream) => if !more? {
                return Ok(());
            },
            () = expires => return Err(io::Error::other("its host didn't keep alive")),
        }
        controller.set_ana(watched.ana());
        send(&mut stream, controller.output()).await?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connect_of(host: &str, subsystem: &str) -> Connect {
        let (host, subsystem) = (host.to_string(), subsystem.to_string());
        Connect { queue: 1, entries: 32, keep_alive_ms: 0, controller: 0, host_id: [7; 16], host, subsystem }
    }

    /// Refused and failed reads of a host are remembered for no other host that claims its identifier or its NQN.
    #[test]
    fn a_host_is_its_identifier_and_its_nqn() {
        let one = connect_of("nqn.h", "nqn.a");
        assert_eq!(host_of(&one), host_of(&connect_of("nqn.h", "nqn.b")));
        assert_ne!(host_of(&one), host_of(&connect_of("nqn.other", "nqn.a")));
        assert_ne!(host_of(&one), host_of(&Connect { host_id: [8; 16], ..one.clone() }));
    }
}
