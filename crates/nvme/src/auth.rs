//! DH-HMAC-CHAP, the target's side: a host proves that it has a secret, before its queue serves anything.
//!
//! ```text
//!   host                                     target
//!   Send    Negotiate (hashes, groups)  ──►
//!   Receive                             ◄──  Challenge (hash, group, challenge, public value)
//!   Send    Reply (response, challenge) ──►
//!   Receive                             ◄──  Success1 (response), or Failure1
//!   Send    Success2, if it had asked   ──►
//! ```
//!
//! The machine draws no randomness: its driver gives it [`Random`]. The facts are those of the NVM Express base specification
//! 2.0, §8.13.

pub mod groups;
pub mod prover;
pub mod secret;

use crate::bytes::{set, u16_at, u32_at};
use crate::command::Status;
use groups::{EXPONENT_BYTES, Group};
use ring::hmac;
use secret::{Hash, Secret};

/// Longest message of a host or a target: a challenge, a response and a public value of the largest group.
pub const MESSAGE_BYTES_MAX: u32 = 4096;
/// The security protocol of Authentication Send and Receive.
pub(crate) const PROTOCOL: u8 = 0xe9;
/// Its specific part.
pub(crate) const PROTOCOL_SPECIFIC: u8 = 1;

/// The protocol's messages.
pub(crate) mod message {
    pub const COMMON: u8 = 0;
    pub const DHCHAP: u8 = 1;
    pub const NEGOTIATE: u8 = 0;
    pub const CHALLENGE: u8 = 1;
    pub const REPLY: u8 = 2;
    pub const SUCCESS1: u8 = 3;
    pub const SUCCESS2: u8 = 4;
    pub const FAILURE1: u8 = 0xf0;
    pub const FAILURE2: u8 = 0xf1;
}

/// Reason of a failed authentication, as sent to the host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Reason {
    /// The response is wrong: the host has another secret.
    Failed = 1,
    /// No protocol that both know.
    Protocol = 2,
    /// The host wants a secure channel, which this target hasn't.
    Concatenation = 3,
    /// No hash function that both know.
    Hash = 4,
    /// No group that both know.
    Group = 5,
    /// A message is malformed.
    Payload = 6,
    /// A message came that mustn't come now.
    Message = 7,
}

impl std::fmt::Display for Reason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Reason::Failed => {
                "the host and the node have different secrets, or one has none where the other asks for a proof"
            }
            Reason::Protocol => "the host offers no protocol that the node knows",
            Reason::Concatenation => "the host wants a secure channel, which the node does not offer",
            Reason::Hash => "the host offers no hash function that the node knows",
            Reason::Group => "the host offers no Diffie-Hellman group that the node knows",
            Reason::Payload => "a message of the host is malformed",
            Reason::Message => "a message of the host came out of sequence",
        })
    }
}

/// Random bytes for one authentication, from a generator that nobody can predict.
#[derive(Clone)]
pub struct Random {
    /// The challenge; its first bytes are used.
    pub challenge: [u8; 64],
    /// The secret exponent.
    pub exponent: [u8; EXPONENT_BYTES],
    /// The challenge's number; 0 is taken for 1.
    pub sequence: u32,
}

/// Names and secrets of an authentication.
#[derive(Clone, Debug)]
pub struct Parties {
    /// The host's name.
    pub host: String,
    /// The subsystem's name.
    pub subsystem: String,
    /// The host's secret.
    pub host_secret: Secret,
    /// The subsystem's secret, by which it proves itself to a host that asks. Without one, a host that asks is refused.
    pub subsystem_secret: Option<Secret>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Negotiate,
    /// The host is to fetch the challenge.
    Challenge,
    Reply,
    /// The host is to fetch the target's response.
    Success1,
    /// The host is to say whether the target has proved itself.
    Success2,
    /// The host is to fetch the reason.
    Failure(Reason),
    Proved,
    /// Nothing more comes.
    Over(Option<Reason>),
}

/// One queue's authentication.
pub struct Proof {
    parties: Parties,
    random: Random,
    state: State,
    transaction: u16,
    hash: Hash,
    group: Group,
    /// The target's response to the host's challenge.
    response: Option<hmac::Tag>,
}

impl std::fmt::Debug for Proof {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Proof").field("state", &self.state).field("host", &self.parties.host).finish_non_exhaustive()
    }
}

impl Proof {
    /// An authentication that begins.
    pub fn new(parties: Parties, random: Random) -> Proof {
        let (hash, group) = (Hash::Sha256, Group::Null);
        Proof { parties, random, state: State::Negotiate, transaction: 0, hash, group, response: None }
    }

    /// True if the host has proved itself.
    pub fn is_proved(&self) -> bool {
        self.state == State::Proved
    }

    /// The reason why the authentication has failed; `None` while it goes on, and if it succeeded.
    pub fn failed(&self) -> Option<Reason> {
        match self.state {
            State::Failure(reason) => Some(reason),
            State::Over(reason) => reason.or(Some(Reason::Failed)),
            _ => None,
        }
    }

    /// True if the answer to the host's next message may take milliseconds to calculate: a power in a Diffie-Hellman group.
    pub fn calculates(&self) -> bool {
        matches!(self.state, State::Challenge | State::Reply) && self.group != Group::Null
    }

    /// True if no further message is answered.
    pub fn is_over(&self) -> bool {
        matches!(self.state, State::Over(_))
    }

    /// Takes the host's message of an Authentication Send. The next [`Proof::fetch`] reports its error.
    pub fn take(&mut self, data: &[u8]) {
        if let Err(reason) = self.step(data) {
            self.state = State::Failure(reason);
        }
    }

    fn step(&mut self, data: &[u8]) -> Result<(), Reason> {
        if data.len() < 8 {
            return Err(Reason::Payload);
        }
        let transaction = u16_at(data, 4);
        match (self.state, data[0], data[1]) {
            (State::Negotiate, message::COMMON, message::NEGOTIATE) => {
                self.transaction = transaction;
                self.negotiate(data)
            }
            (State::Negotiate, ..) => Err(Reason::Message),
            _ if transaction != self.transaction => Err(Reason::Payload),
            (State::Reply, message::DHCHAP, message::REPLY) => self.check_reply(data),
            (State::Success2, message::DHCHAP, message::SUCCESS2) => {
                self.state = State::Proved;
                Ok(())
            }
            (State::Success2, message::COMMON | message::DHCHAP, message::FAILURE2) => {
                self.state = State::Over(None);
                Ok(())
            }
            _ => Err(Reason::Message),
        }
    }

    fn negotiate(&mut self, data: &[u8]) -> Result<(), Reason> {
        if data[6] != 0 {
            return Err(Reason::Concatenation);
        }
        let protocols = data[8..].chunks_exact(64).take(data[7].into());
        let dhchap = protocols.into_iter().find(|p| p[0] == 1).ok_or(Reason::Protocol)?;
        let (hashes, groups) = (usize::from(dhchap[2]), usize::from(dhchap[3]));
        if hashes > 30 || groups > 30 {
            return Err(Reason::Payload);
        }
        let (hashes, groups) = (&dhchap[4..4 + hashes], &dhchap[34..34 + groups]);
        self.hash = Hash::ALL.into_iter().find(|h| hashes.contains(&h.to_wire())).ok_or(Reason::Hash)?;
        self.group = Group::ALL.into_iter().find(|g| groups.contains(&g.to_wire())).ok_or(Reason::Group)?;
        self.state = State::Challenge;
        Ok(())
    }

    fn check_reply(&mut self, data: &[u8]) -> Result<(), Reason> {
        let n = self.hash.bytes();
        if data.len() < 16 + 2 * n || usize::from(data[6]) != n {
            return Err(Reason::Payload);
        }
        let (asks, value_bytes, sequence) = (data[8] != 0, usize::from(u16_at(data, 10)), u32_at(data, 12));
        let (response, challenge) = (&data[16..16 + n], &data[16 + n..16 + 2 * n]);
        let value = data.get(16 + 2 * n..16 + 2 * n + value_bytes).ok_or(Reason::Payload)?;
        let session = match self.group {
            Group::Null if value_bytes == 0 => None,
            Group::Null => return Err(Reason::Payload),
            group => Some(group.shared(&self.random.exponent, value).ok_or(Reason::Payload)?),
        };
        let key = self.parties.host_secret.key(&self.parties.host, self.hash);
        let ours = self.challenge().to_vec();
        let expected = self.signed(
            session.as_deref(),
            &ours,
            self.sequence(),
            ("HostHost", &self.parties.host, &self.parties.subsystem),
        );
        hmac::verify(&key, &expected, response).map_err(|_| Reason::Failed)?;
        if !asks {
            self.response = None;
            self.state = State::Success1;
            return Ok(());
        }
        // A host that sends the target's own challenge back would get the answer to it.
        if challenge == &ours[..] || sequence == 0 {
            return Err(Reason::Failed);
        }
        let secret = self.parties.subsystem_secret.as_ref().ok_or(Reason::Failed)?;
        let key = secret.key(&self.parties.subsystem, self.hash);
        let text = self.signed(
            session.as_deref(),
            challenge,
            sequence,
            ("Controller", &self.parties.subsystem, &self.parties.host),
        );
        self.response = Some(hmac::sign(&key, &text));
        self.state = State::Success1;
        Ok(())
    }

    fn challenge(&self) -> &[u8] {
        &self.random.challenge[..self.hash.bytes()]
    }

    fn sequence(&self) -> u32 {
        self.random.sequence.max(1)
    }

    /// The text that a response signs.
    fn signed(
        &self,
        session: Option<&[u8]>,
        challenge: &[u8],
        sequence: u32,
        (role, own, other): (&str, &str, &str),
    ) -> Vec<u8> {
        signed(self.hash, session, challenge, (sequence, self.transaction), (role, own, other))
    }

    /// The message that the host fetches by an Authentication Receive.
    ///
    /// # Errors
    /// [`Status::SEQUENCE`] if there is none for it.
    pub fn fetch(&mut self) -> Result<Vec<u8>, Status> {
        let header = |id: u8, bytes: usize| {
            let mut b = vec![0; bytes];
            (b[0], b[1]) = (message::DHCHAP, id);
            set(&mut b, 4, &self.transaction.to_le_bytes());
            b
        };
        let n = self.hash.bytes();
        match self.state {
            State::Challenge => {
                let value = self.group.public(&self.random.exponent);
                let mut b = header(message::CHALLENGE, 16 + n + value.len());
                (b[6], b[8], b[9]) = (n as u8, self.hash.to_wire(), self.group.to_wire());
                set(&mut b, 10, &(value.len() as u16).to_le_bytes());
                set(&mut b, 12, &self.sequence().to_le_bytes());
                set(&mut b, 16, self.challenge());
                set(&mut b, 16 + n, &value);
                self.state = State::Reply;
                Ok(b)
            }
            State::Success1 => {
                let mut b = header(message::SUCCESS1, 16 + n);
                b[6] = n as u8;
                self.state = match &self.response {
                    Some(response) => {
                        b[8] = 1;
                        set(&mut b, 16, response.as_ref());
                        State::Success2
                    }
                    None => State::Proved,
                };
                Ok(b)
            }
            State::Failure(reason) => {
                let mut b = header(message::FAILURE1, 8);
                (b[6], b[7]) = (1, reason as u8);
                self.state = State::Over(Some(reason));
                Ok(b)
            }
            _ => Err(Status::SEQUENCE),
        }
    }
}

/// The text that a response signs: the challenge, bound to the shared secret if there is one, the numbers and the names.
pub(crate) fn signed(
    hash: Hash,
    session: Option<&[u8]>,
    challenge: &[u8],
    (sequence, transaction): (u32, u16),
    (role, own, other): (&str, &str, &str),
) -> Vec<u8> {
    let mut text = match session {
        None => challenge.to_vec(),
        Some(session) => {
            let key = hmac::Key::new(hash.hmac(), hash.digest(session).as_ref());
            hmac::sign(&key, challenge).as_ref().to_vec()
        }
    };
    text.extend_from_slice(&sequence.to_le_bytes());
    text.extend_from_slice(&transaction.to_le_bytes());
    text.push(0); // no secure channel
    text.extend_from_slice(role.as_bytes());
    text.extend_from_slice(own.as_bytes());
    text.push(0);
    text.extend_from_slice(other.as_bytes());
    text
}
