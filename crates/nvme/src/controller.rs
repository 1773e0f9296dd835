//! A controller: the admin queue of one host's association with one subsystem.
//!
//! Its driver feeds it bytes and the time, sends its output, and tells it when the namespace's ANA state changes. It takes one
//! command a call, so that its output has at most one answer that hasn't been sent, and events.

use crate::bytes::{u16_at, u64_at};
use crate::command::{Raw, Status};
use crate::identify::{self, ANA_EVENTS, EVENT_LIMIT};
use crate::logs::{self, Ana};
use crate::opening::Terms;
use crate::pdu::{Fault, Gathered};
use crate::queue::{Namespace, Replies};
use crate::wire::{ADMIN_CAPSULE_DATA_BYTES_MAX, AnaState, Kind, NAMESPACE, QUEUE_ENTRIES_MAX, admin_opcode, fabrics};
use std::net::SocketAddr;

/// Longest answer to Get Log Page.
const LOG_BYTES_MAX: u64 = 128 << 10;
/// Factor of a host's keep-alive time before the host is given up: its commands may be on their way.
const KEEP_ALIVE_GRACE: u64 = 2;
/// Time after which the host of a discovery controller is given up that doesn't keep alive and sends no command: no grant is needed for one.
const DISCOVERY_IDLE_MS: u64 = 120_000;

/// A subsystem that hosts connect to for I/O.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Subsystem {
    /// Its name.
    pub nqn: String,
    /// Its serial number: up to 20 characters.
    pub serial: String,
    /// The name of its namespace, the same on every path to the same data.
    pub uuid: [u8; 16],
    /// Its namespace.
    pub namespace: Namespace,
    /// Most I/O queues of a controller.
    pub queues_max: u16,
}

/// A subsystem in the discovery log page.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Target {
    /// Its name.
    pub nqn: String,
    /// Address for connections to it.
    pub address: SocketAddr,
    /// The number of the node's port.
    pub port_id: u16,
}

/// A controller's purpose.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Role {
    /// It says which subsystems there are.
    Discovery(Vec<Target>),
    /// It serves a subsystem.
    Io(Subsystem),
}

/// See the module's documentation.
#[derive(Debug)]
pub struct Controller {
    role: Role,
    id: u16,
    terms: Terms,
    replies: Replies,
    gathered: Gathered,
    output: Vec<u8>,
    /// Its configuration register.
    configuration: u32,
    keep_alive_ms: u64,
    heard_at_ms: u64,
    enabled_events: u32,
    /// Requests for events that wait for one.
    event_requests: Vec<u16>,
    ana: Ana,
    /// An event of an ANA change is due.
    ana_changed: bool,
    /// One was sent, and the host has not read the log page since.
    ana_told: bool,
}

impl Controller {
    /// The controller of a host that connected at `now_ms`.
    pub fn new(
        role: Role,
        id: u16,
        (terms, replies): (Terms, Replies),
        keep_alive_ms: u32,
        now_ms: u64,
        ana: AnaState,
    ) -> Controller {
        Controller {
            role,
            id,
            terms,
            replies,
            gathered: Gathered::default(),
            output: Vec::new(),
            configuration: 0,
            keep_alive_ms: keep_alive_ms.into(),
            heard_at_ms: now_ms,
            enabled_events: 0,
            event_requests: Vec::new(),
            ana: Ana { state: ana, changes: 0 },
            ana_changed: false,
            ana_told: false,
        }
    }

    /// Bytes to be sent; the driver clears them.
    pub fn output(&mut self) -> &mut Vec<u8> {
        &mut self.output
    }

    /// True if I/O queues may be connected: the host has enabled the controller, which isn't a discovery controller.
    pub fn is_ready(&self) -> bool {
        self.configuration & 1 != 0 && matches!(self.role, Role::Io(_))
    }

    /// Returns the time until which the host must be heard of, if it keeps alive or the controller is for discovery.
    pub fn expires_at_ms(&self) -> Option<u64> {
        let silence_max_ms = match (&self.role, self.keep_alive_ms) {
            (Role::Io(_), 0) => return None,
            (Role::Discovery(_), 0) => DISCOVERY_IDLE_MS,
            (_, keep_alive_ms) => keep_alive_ms * KEEP_ALIVE_GRACE,
        };
        Some(self.heard_at_ms + silence_max_ms)
    }

    /// The namespace's ANA state is this now.
    pub fn set_ana(&mut self, state: AnaState) {
        if self.ana.state != state {
            self.ana = Ana { state, changes: self.ana.changes + 1 };
            self.ana_changed = true;
            self.tell_events();
        }
    }

    fn tell_events(&mut self) {
        if !self.ana_changed || self.ana_told || self.enabled_events & ANA_EVENTS == 0 || self.event_requests.is_empty()
        {
            return;
        }
        let id = self.event_requests.remove(0);
        // A notice (2) of an ANA change (3), with the log page to read.
        let event = 2 | 3 << 8 | u64::from(logs::ANA) << 16;
        self.replies.complete(&mut self.output, id, event, Status::OK);
        (self.ana_changed, self.ana_told) = (false, true);
    }

    /// Takes at most one PDU from the front of `input` and answers it.
    ///
    /// # Errors
    /// A fault. Send the output and close.
    pub fn take(&mut self, now_ms: u64, input: &mut &[u8]) -> Result<(), Fault> {
        let taken = self.step(now_ms, input);
        if let Err(fault) = taken {
            fault.tell(&mut self.output, self.gathered.pdu());
        }
        taken
    }

    fn step(&mut self, now_ms: u64, input: &mut &[u8]) -> Result<(), Fault> {
        let digests = self.terms.digests;
        let kinds = [Kind::Command, Kind::H2cTerm];
        let shape = |start: &_| digests.shape(start, &kinds, ADMIN_CAPSULE_DATA_BYTES_MAX as usize);
        let Some(shape) = self.gathered.take(input, shape)? else { return Ok(()) };
        let pdu = std::mem::take(&mut self.gathered);
        if shape.kind == Kind::H2cTerm {
            return Err(Fault::Host(u16_at(pdu.pdu(), 8)));
        }
        if let Err(fault) = digests.check_header(&shape, pdu.pdu()) {
            self.gathered = pdu;
            return Err(fault);
        }
        self.heard_at_ms = now_ms;
        let raw = Raw::of(pdu.pdu());
        let done = match shape.data_are_right(pdu.pdu()) {
            true => self.serve(raw),
            false => Err(Status::TRANSPORT),
        };
        match done {
            Ok(Answer::Value(value)) => self.replies.complete(&mut self.output, raw.id(), value, Status::OK),
            Ok(Answer::Data(data)) => self.replies.data(&mut self.output, raw.id(), &data),
            Ok(Answer::Later) => self.tell_events(),
            Err(status) => self.replies.complete(&mut self.output, raw.id(), 0, status),
        }
        self.gathered = pdu;
        self.gathered.clear();
        Ok(())
    }

    fn serve(&mut self, raw: Raw<'_>) -> Result<Answer, Status> {
        if raw.opcode() == fabrics::OPCODE {
            return self.serve_fabrics(raw);
        }
        raw.check_flags()?;
        if raw.opcode() != admin_opcode::KEEP_ALIVE && self.configuration & 1 == 0 {
            return Err(Status::SEQUENCE);
        }
        match raw.opcode() {
            admin_opcode::IDENTIFY => self.identify(raw),
            admin_opcode::GET_LOG_PAGE => self.log_page(raw),
            admin_opcode::SET_FEATURES => self.set_features(raw),
            admin_opcode::GET_FEATURES => self.get_features(raw),
            admin_opcode::KEEP_ALIVE => Ok(Answer::Value(0)),
            // The command to be aborted goes on: bit 0 says so, and a host must cope.
            admin_opcode::ABORT => Ok(Answer::Value(1)),
            admin_opcode::ASYNC_EVENT if self.event_requests.len() > usize::from(EVENT_LIMIT) => {
                Err(Status::EVENT_LIMIT)
            }
            admin_opcode::ASYNC_EVENT => {
                self.event_requests.push(raw.id());
                Ok(Answer::Later)
            }
            _ => Err(Status::INVALID_OPCODE),
        }
    }

    fn serve_fabrics(&mut self, raw: Raw<'_>) -> Result<Answer, Status> {
        let is_wide = raw.dword(10) & 7;
        let register = raw.dword(11);
        match raw.fabrics_type() {
            fabrics::PROPERTY_GET => match (register, is_wide) {
                // Queues of this many entries, contiguous, ready within 7.5 s, with the NVM command set.
                (0, 1) => Ok(Answer::Value(u64::from(QUEUE_ENTRIES_MAX - 1) | 1 << 16 | 15 << 24 | 1 << 37)),
                (8, 0) => Ok(Answer::Value(identify::VERSION.into())),
                (0x14, 0) => Ok(Answer::Value(self.configuration.into())),
                (0x1c, 0) => Ok(Answer::Value(self.register_status())),
                _ => Err(Status::INVALID_FIELD),
            },
            fabrics::PROPERTY_SET => match (register, is_wide) {
                (0x14, 0) => {
                    self.configuration = u64_at(raw.bytes(), 48) as u32;
                    Ok(Answer::Value(0))
                }
                _ => Err(Status::INVALID_FIELD),
            },
            fabrics::CONNECT => Err(Status::SEQUENCE),
            _ => Err(Status::INVALID_OPCODE),
        }
    }

    /// Ready while enabled; a shutdown that was asked for is complete.
    fn register_status(&self) -> u64 {
        let shut_down = self.configuration >> 14 & 3 != 0;
        u64::from(self.configuration & 1) | if shut_down { 2 << 2 } else { 0 }
    }

    fn identify(&self, raw: Raw<'_>) -> Result<Answer, Status> {
        if raw.dword(10) & 0xff == 1 {
            return Ok(Answer::data(identify::controller(&self.role, self.id)));
        }
        let Role::Io(subsystem) = &self.role else { return Err(Status::INVALID_FIELD) };
        let is_ours = match raw.namespace() {
            NAMESPACE => Ok(()),
            _ => Err(Status::INVALID_NAMESPACE),
        };
        match raw.dword(10) & 0xff {
            0 => is_ours.map(|()| Answer::data(identify::namespace(subsystem))),
            2 => Ok(Answer::data(identify::active_namespaces(raw.namespace()))),
            3 => is_ours.map(|()| Answer::data(identify::descriptors(subsystem))),
            6 if raw.dword(11) >> 24 == 0 => Ok(Answer::data(identify::command_set_limits())),
            _ => Err(Status::INVALID_FIELD),
        }
    }

    fn log_page(&mut self, raw: Raw<'_>) -> Result<Answer, Status> {
        let (first, second) = (raw.dword(10), raw.dword(11));
        let (log, groups_only, keeps_event) = (first as u8, first >> 8 & 1 != 0, first >> 15 & 1 != 0);
        let bytes = (u64::from(first >> 16) + (u64::from(second & 0xffff) << 16) + 1) * 4;
        let offset = u64::from(raw.dword(12)) | u64::from(raw.dword(13)) << 32;
        if bytes > LOG_BYTES_MAX || !offset.is_multiple_of(4) {
            return Err(Status::INVALID_FIELD);
        }
        let page = logs::page(&self.role, log, self.ana, groups_only).ok_or(Status::INVALID_LOG)?;
        let from = usize::try_from(offset).ok().filter(|o| *o <= page.len()).ok_or(Status::INVALID_FIELD)?;
        if log == logs::ANA && !keeps_event {
            self.ana_told = false;
        }
        let mut data = page;
        data.drain(..from);
        data.resize(bytes as usize, 0);
        Ok(Answer::Data(data))
    }

    fn set_features(&mut self, raw: Raw<'_>) -> Result<Answer, Status> {
        let value = raw.dword(11);
        match (raw.dword(10) & 0xff, &self.role) {
            (feature::QUEUES, Role::Io(subsystem)) => {
                if value & 0xffff == 0xffff || value >> 16 == 0xffff {
                    return Err(Status::INVALID_FIELD);
                }
                let granted = |wanted: u32| u64::from(wanted.min(u32::from(subsystem.queues_max.max(1)) - 1));
                Ok(Answer::Value(granted(value & 0xffff) | granted(value >> 16) << 16))
            }
            (feature::EVENTS, _) => {
                self.enabled_events = value;
                self.tell_events();
                Ok(Answer::Value(0))
            }
            (feature::KEEP_ALIVE, _) => {
                self.keep_alive_ms = value.into();
                Ok(Answer::Value(0))
            }
            (feature::WRITE_CACHE, Role::Io(_)) if value & 1 == 1 => Ok(Answer::Value(0)),
            (feature::WRITE_CACHE, Role::Io(_)) => Err(Status::FIXED_FEATURE),
            (feature::POWER, Role::Io(_)) if value & 0x1f == 0 => Ok(Answer::Value(0)),
            // Nothing here depends on them; a host that sets them is content.
            (feature::ARBITRATION | feature::TEMPERATURE | feature::ERRORS, Role::Io(_)) => Ok(Answer::Value(0)),
            _ => Err(Status::INVALID_FIELD),
        }
    }

    fn get_features(&self, raw: Raw<'_>) -> Result<Answer, Status> {
        let value = match (raw.dword(10) & 0xff, &self.role) {
            (feature::QUEUES, Role::Io(subsystem)) => {
                let last = u64::from(subsystem.queues_max.max(1)) - 1;
                last | last << 16
            }
            (feature::EVENTS, _) => self.enabled_events.into(),
            (feature::KEEP_ALIVE, _) => self.keep_alive_ms,
            (feature::WRITE_CACHE, Role::Io(_)) => 1,
            (feature::POWER | feature::ARBITRATION | feature::TEMPERATURE | feature::ERRORS, Role::Io(_)) => 0,
            _ => return Err(Status::INVALID_FIELD),
        };
        Ok(Answer::Value(value))
    }
}

mod feature {
    pub const ARBITRATION: u32 = 1;
    pub const POWER: u32 = 2;
    pub const TEMPERATURE: u32 = 4;
    pub const ERRORS: u32 = 5;
    pub const WRITE_CACHE: u32 = 6;
    pub const QUEUES: u32 = 7;
    pub const EVENTS: u32 = 0xb;
    pub const KEEP_ALIVE: u32 = 0xf;
}

enum Answer {
    Value(u64),
    Data(Vec<u8>),
    /// Answered when there is an event.
    Later,
}

impl Answer {
    fn data<const N: usize>(bytes: [u8; N]) -> Answer {
        Answer::Data(bytes.to_vec())
    }
}
