//! The opening of a connection: the transport's parameters, then the Connect command, then the host's authentication if the driver
//! demands one.

use crate::auth::{MESSAGE_BYTES_MAX, PROTOCOL, PROTOCOL_SPECIFIC, Proof};
use crate::bytes::{set, u16_at, u32_at};
use crate::command::{DataIn, Raw, Status};
use crate::pdu::{Digests, Fault, Gathered, Shape, common};
use crate::queue::Replies;
use crate::wire::{
    ADMIN_CAPSULE_DATA_BYTES_MAX, ADMIN_ENTRIES_MIN, COMMON_BYTES, CONNECT_DATA_BYTES, H2C_DATA_BYTES_MAX, Kind,
    NQN_BYTES_MAX, QUEUE_ENTRIES_MAX, fabrics,
};

/// Connect's request to do without flow control of the submission queue.
const NO_FLOW_CONTROL: u8 = 1 << 2;
/// In a Connect's completion: the host must authenticate itself before the queue serves anything.
const AUTHENTICATION_REQUIRED: u64 = 1 << 17;
/// Greatest alignment of data that a host may ask for, in dwords, from 0.
const ALIGNMENT_MAX: u8 = 31;

/// A host that wants a queue.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Connect {
    /// The queue's number; 0 makes a controller.
    pub queue: u16,
    /// Entries of its submission queue.
    pub entries: u16,
    /// Time without a Keep Alive after which the controller ends, in milliseconds; 0 for never. For queue 0.
    pub keep_alive_ms: u32,
    /// The controller to which the queue belongs; `0xffff` for queue 0.
    pub controller: u16,
    /// The host's identifier.
    pub host_id: [u8; 16],
    /// The host's name.
    pub host: String,
    /// The subsystem's name.
    pub subsystem: String,
}

/// The parameter of a refused Connect that is wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Parameter {
    /// Of its data: the controller.
    Controller,
    /// Of its data: the subsystem's name.
    Subsystem,
    /// Of its data: the host's name.
    Host,
    /// Of the command: the queue's number.
    Queue,
    /// Of the command: the queue's entries.
    Entries,
}

impl Parameter {
    /// The first dword of the completion that names it.
    const fn to_wire(self) -> u32 {
        match self {
            Parameter::Controller => 1 << 16 | 16,
            Parameter::Subsystem => 1 << 16 | 256,
            Parameter::Host => 1 << 16 | 512,
            Parameter::Queue => 42,
            Parameter::Entries => 44,
        }
    }
}

/// Terms of a connection that were negotiated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Terms {
    /// Digests.
    pub digests: Digests,
    /// Alignment in bytes of data that go to the host, within their PDU.
    pub alignment: usize,
    /// Entries of the submission queue.
    pub entries: u16,
    /// The host wants to hear of its submission queue's head.
    pub flow_control: bool,
}

/// Something that the driver answers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Asked {
    /// A host wants a queue: [`Opening::accept`], [`Opening::demand_proof`] or [`Opening::refuse`].
    Connect(Connect),
    /// The host has proved itself: [`Opening::accept_proved`].
    Proved,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Parameters,
    Connect,
    /// The driver is to accept or refuse.
    Asked {
        id: u16,
    },
    /// The host is to prove itself.
    Proving,
    Over,
}

/// See the module's documentation.
#[derive(Debug)]
pub struct Opening {
    state: State,
    gathered: Gathered,
    terms: Terms,
    output: Vec<u8>,
    /// The host's authentication, and the replies of its queue so far.
    proof: Option<(Proof, Replies)>,
}

impl Default for Opening {
    fn default() -> Opening {
        let terms = Terms { digests: Digests::default(), alignment: 4, entries: 0, flow_control: true };
        let (gathered, output) = (Gathered::default(), Vec::new());
        Opening { state: State::Parameters, gathered, terms, output, proof: None }
    }
}

impl Opening {
    /// Takes from the front of `input` until the driver is asked something; `None` wants more input, once the output has been sent. It
    /// also comes, before the input has been taken, where [`Opening::calculates`] becomes true, and after each command while that is so.
    ///
    /// # Errors
    /// A fault. Send the output and close.
    pub fn take(&mut self, input: &mut &[u8]) -> Result<Option<Asked>, Fault> {
        let taken = self.step(input);
        if let Err(fault) = &taken {
            let fault = *fault;
            fault.tell(&mut self.output, self.gathered.pdu());
            self.state = State::Over;
        }
        taken
    }

    fn step(&mut self, input: &mut &[u8]) -> Result<Option<Asked>, Fault> {
        loop {
            let state = self.state;
            let is_proved = self.proof.as_ref().is_some_and(|(proof, _)| proof.is_proved());
            if matches!(state, State::Asked { .. } | State::Over) || is_proved {
                return Ok(None);
            }
            let digests = self.terms.digests;
            let Some(shape) = self.gathered.take(input, |start| shape(state, digests, start))? else { return Ok(None) };
            if shape.kind == Kind::H2cTerm {
                return Err(Fault::Host(u16_at(self.gathered.pdu(), 8)));
            }
            if state == State::Parameters {
                self.take_parameters()?;
                self.gathered.clear();
                continue;
            }
            self.terms.digests.check_header(&shape, self.gathered.pdu())?;
            if state == State::Proving {
                self.take_proof(&shape);
                self.gathered.clear();
                match &self.proof {
                    Some((proof, _)) if proof.is_proved() => return Ok(Some(Asked::Proved)),
                    Some((proof, _)) if proof.calculates() => return Ok(None),
                    _ => continue,
                }
            }
            let asked = self.take_connect(&shape)?;
            self.gathered.clear();
            return Ok(asked.map(Asked::Connect));
        }
    }

    fn take_parameters(&mut self) -> Result<(), Fault> {
        let pdu = self.gathered.pdu();
        if u16_at(pdu, 8) != 0 {
            return Err(Fault::Parameter(8));
        }
        if pdu[10] > ALIGNMENT_MAX {
            return Err(Fault::Field(10));
        }
        self.terms.alignment = (usize::from(pdu[10]) + 1) * 4;
        let wanted = pdu[11];
        self.terms.digests = Digests { header: wanted & 1 != 0, data: wanted & 2 != 0 };
        let mut answer = [0; 128];
        common(&mut answer, Kind::IcResp, 0, 0, 128);
        answer[11] = wanted & 3;
        set(&mut answer, 12, &H2C_DATA_BYTES_MAX.to_le_bytes());
        self.output.extend_from_slice(&answer);
        self.state = State::Connect;
        Ok(())
    }

    fn take_connect(&mut self, shape: &Shape) -> Result<Option<Connect>, Fault> {
        let pdu = self.gathered.pdu();
        let raw = Raw::of(pdu);
        let (id, command) = (raw.id(), raw.bytes());
        let asked = if raw.opcode() != fabrics::OPCODE || raw.fabrics_type() != fabrics::CONNECT {
            Err((Status::SEQUENCE, 0))
        } else if !shape.data_are_right(pdu) {
            Err((Status::TRANSPORT, 0))
        } else if raw.data(shape.data_bytes) != Ok(DataIn::Capsule(CONNECT_DATA_BYTES as u32)) {
            Err((Status::DATA_LENGTH, 0))
        } else if u16_at(command, 40) != 0 {
            Err((Status::CONNECT_FORMAT, 0))
        } else {
            self.terms.flow_control = command[46] & NO_FLOW_CONTROL == 0;
            parse_connect(command, &pdu[shape.data()]).map_err(|p| (Status::CONNECT_PARAMETER, p.to_wire()))
        };
        match asked {
            Ok(connect) => {
                self.terms.entries = connect.entries;
                self.state = State::Asked { id };
                Ok(Some(connect))
            }
            Err((status, value)) => {
                self.replies().complete(&mut self.output, id, u64::from(value), status);
                self.state = State::Over;
                Ok(None)
            }
        }
    }

    /// Takes a command of a host that is to prove itself, and answers it.
    fn take_proof(&mut self, shape: &Shape) {
        let (proof, replies) = self.proof.as_mut().expect("it was demanded");
        let pdu = self.gathered.pdu();
        let raw = Raw::of(pdu);
        let done = if raw.opcode() != fabrics::OPCODE {
            Err(Status::NOT_AUTHENTICATED)
        } else if !shape.data_are_right(pdu) {
            Err(Status::TRANSPORT)
        } else {
            match raw.fabrics_type() {
                fabrics::AUTHENTICATION_SEND => proof_data(raw, shape.data_bytes).map(|_| {
                    proof.take(&pdu[shape.data()]);
                    None
                }),
                fabrics::AUTHENTICATION_RECEIVE => proof_data(raw, shape.data_bytes).and_then(|bytes| {
                    let mut data = proof.fetch()?;
                    if data.len() > bytes {
                        return Err(Status::INVALID_FIELD);
                    }
                    data.resize(bytes, 0);
                    Ok(Some(data))
                }),
                _ => Err(Status::NOT_AUTHENTICATED),
            }
        };
        match done {
            Ok(None) => replies.complete(&mut self.output, raw.id(), 0, Status::OK),
            Ok(Some(data)) => replies.data(&mut self.output, raw.id(), &data),
            Err(status) => {
                replies.complete(&mut self.output, raw.id(), 0, status);
                self.state = State::Over;
            }
        }
        if proof.is_over() {
            self.state = State::Over;
        }
    }

    /// The host is to prove itself before it has its queue, which belongs to `controller`. Send the output, and go on with
    /// [`Opening::take`].
    ///
    /// # Panics
    /// If no host asked.
    pub fn demand_proof(&mut self, controller: u16, proof: Proof) {
        let State::Asked { id } = self.state else { panic!("no host asks for a queue") };
        let mut replies = self.replies();
        let value = u64::from(controller) | AUTHENTICATION_REQUIRED;
        replies.complete(&mut self.output, id, value, Status::OK);
        self.proof = Some((proof, replies));
        self.state = State::Proving;
    }

    /// True if [`Opening::take`] may calculate for milliseconds at the host's next command, before any proof. Not on a thread, then, that
    /// others wait for.
    pub fn calculates(&self) -> bool {
        self.state == State::Proving && self.proof.as_ref().is_some_and(|(proof, _)| proof.calculates())
    }

    /// The reason why the host's authentication failed, if it did.
    pub fn failure(&self) -> Option<crate::auth::Reason> {
        self.proof.as_ref().and_then(|(proof, _)| proof.failed())
    }

    /// A host that has proved itself has its queue. Send the output first; what wasn't taken is the queue's.
    ///
    /// # Panics
    /// If the host hasn't.
    pub fn accept_proved(&mut self) -> (Terms, Replies) {
        let (proof, replies) = self.proof.take().expect("a proof was demanded");
        assert!(proof.is_proved() && self.state == State::Proving, "the host has not proved itself");
        self.state = State::Over;
        (self.terms, replies)
    }

    fn replies(&self) -> Replies {
        Replies::new(self.terms)
    }

    /// The host has its queue, which belongs to `controller`. Send the output first; what wasn't taken is the queue's.
    ///
    /// # Panics
    /// If no host asked.
    pub fn accept(&mut self, controller: u16) -> (Terms, Replies) {
        let State::Asked { id } = self.state else { panic!("no host asks for a queue") };
        let mut replies = self.replies();
        replies.complete(&mut self.output, id, u64::from(controller), Status::OK);
        self.state = State::Over;
        (self.terms, replies)
    }

    /// The host doesn't get a queue. Send the output and close.
    ///
    /// # Panics
    /// If no host asked.
    pub fn refuse(&mut self, status: Status, parameter: Option<Parameter>) {
        let State::Asked { id } = self.state else { panic!("no host asks for a queue") };
        let value = parameter.map_or(0, Parameter::to_wire);
        self.replies().complete(&mut self.output, id, u64::from(value), status);
        self.state = State::Over;
    }

    /// True if no more bytes are taken and no request is unanswered. The connection then closes when the output has been sent,
    /// unless its host was accepted.
    pub fn is_over(&self) -> bool {
        self.state == State::Over
    }

    /// Bytes to be sent; the driver clears them.
    pub fn output(&mut self) -> &mut Vec<u8> {
        &mut self.output
    }
}

fn shape(state: State, digests: Digests, start: &[u8; COMMON_BYTES]) -> Result<Shape, Fault> {
    if state != State::Parameters {
        let shape = digests.shape(start, &[Kind::Command, Kind::H2cTerm], ADMIN_CAPSULE_DATA_BYTES_MAX as usize)?;
        return Ok(shape);
    }
    match digests.shape(start, &[Kind::IcReq], 0)? {
        shape if u32_at(start, 4) == 128 => Ok(shape),
        _ => Err(Fault::Field(4)),
    }
}

fn parse_connect(command: &[u8; 64], data: &[u8]) -> Result<Connect, Parameter> {
    let queue = u16_at(command, 42);
    let entries = u16_at(command, 44).checked_add(1).ok_or(Parameter::Entries)?;
    let least = if queue == 0 { ADMIN_ENTRIES_MIN } else { 2 };
    if !(least..=QUEUE_ENTRIES_MAX).contains(&entries) {
        return Err(Parameter::Entries);
    }
    let controller = u16_at(data, 16);
    if (queue == 0) != (controller == 0xffff) {
        return Err(Parameter::Controller);
    }
    Ok(Connect {
        queue,
        entries,
        keep_alive_ms: u32_at(command, 48),
        controller,
        host_id: data[..16].try_into().expect("its length"),
        subsystem: name(&data[256..512]).ok_or(Parameter::Subsystem)?,
        host: name(&data[512..768]).ok_or(Parameter::Host)?,
    })
}

/// Bytes of the data of an Authentication Send, which came in its capsule, or Receive.
fn proof_data(raw: Raw<'_>, capsule_bytes: usize) -> Result<usize, Status> {
    let command = raw.bytes();
    if (command[43], command[42], command[41]) != (PROTOCOL, PROTOCOL_SPECIFIC, PROTOCOL_SPECIFIC) {
        return Err(Status::INVALID_FIELD);
    }
    let announced = u32_at(command, 44);
    let data = match (raw.fabrics_type(), raw.data(capsule_bytes)?) {
        (fabrics::AUTHENTICATION_SEND, DataIn::Capsule(bytes)) => bytes,
        (fabrics::AUTHENTICATION_RECEIVE, DataIn::Transport(bytes)) => bytes,
        _ => return Err(Status::SGL_TYPE),
    };
    if data != announced || data == 0 || data > MESSAGE_BYTES_MAX {
        return Err(Status::DATA_LENGTH);
    }
    Ok(data as usize)
}

/// An NQN in its field.
fn name(field: &[u8]) -> Option<String> {
    let len = field.iter().position(|b| *b == 0)?;
    let text = std::str::from_utf8(&field[..len]).ok()?;
    is_nqn(text).then(|| text.to_string())
}

/// True if a text has the form of an NQN.
pub fn is_nqn(text: &str) -> bool {
    let is_name = text.starts_with("nqn.") && text.len() > 4 && text.len() <= NQN_BYTES_MAX;
    is_name && !text.contains(|c: char| c.is_control() || c == ' ')
}
