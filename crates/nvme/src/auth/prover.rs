//! A host's side of an authentication, for tests and load generators.

use super::groups::{EXPONENT_BYTES, Group};
use super::secret::{Hash, Secret};
use super::{Parties, message, signed};
use crate::bytes::{set, u16_at, u32_at};
use ring::hmac;

/// A host that proves itself, and may ask the subsystem to do so.
#[derive(Clone, Debug)]
pub struct Prover {
    /// Names and secrets; the subsystem's secret if the host asks for its proof.
    pub parties: Parties,
    /// The number of the authentication.
    pub transaction: u16,
    /// The host's challenge.
    pub challenge: [u8; 64],
    /// The host's secret exponent.
    pub exponent: [u8; EXPONENT_BYTES],
    /// The subsystem's response that is to come.
    expected: Option<(hmac::Key, Vec<u8>)>,
}

impl Prover {
    /// A host before its first message.
    pub fn new(parties: Parties, transaction: u16, challenge: [u8; 64], exponent: [u8; EXPONENT_BYTES]) -> Prover {
        Prover { parties, transaction, challenge, exponent, expected: None }
    }

    /// The first message: the hash functions and groups that the host knows.
    pub fn negotiate(&self, hashes: &[Hash], groups: &[Group]) -> Vec<u8> {
        let mut b = vec![0; 72];
        (b[0], b[1], b[7]) = (message::COMMON, message::NEGOTIATE, 1);
        set(&mut b, 4, &self.transaction.to_le_bytes());
        (b[8], b[10], b[11]) = (1, hashes.len() as u8, groups.len() as u8);
        hashes.iter().enumerate().for_each(|(i, h)| b[12 + i] = h.to_wire());
        groups.iter().enumerate().for_each(|(i, g)| b[42 + i] = g.to_wire());
        b
    }

    /// The answer to a challenge; `None` if the message is none.
    pub fn reply(&mut self, message: &[u8]) -> Option<Vec<u8>> {
        if message.len() < 16 || message[..2] != [message::DHCHAP, message::CHALLENGE] {
            return None;
        }
        let hash = Hash::from_wire(message[8])?;
        let group = Group::ALL.into_iter().find(|g| g.to_wire() == message[9])?;
        let (n, value_bytes, sequence) = (hash.bytes(), usize::from(u16_at(message, 10)), u32_at(message, 12));
        let theirs = message.get(16..16 + n)?;
        let value = message.get(16 + n..16 + n + value_bytes)?;
        let session = match group {
            Group::Null => None,
            group => Some(group.shared(&self.exponent, value)?),
        };
        let (host, subsystem) = (self.parties.host.clone(), self.parties.subsystem.clone());
        let sign = |challenge: &[u8], sequence, role, own: &str, other: &str| {
            signed(hash, session.as_deref(), challenge, (sequence, self.transaction), (role, own, other))
        };
        let text = sign(theirs, sequence, "HostHost", &host, &subsystem);
        let response = hmac::sign(&self.parties.host_secret.key(&host, hash), &text);
        let own = group.public(&self.exponent);
        let mut b = vec![0; 16 + 2 * n + own.len()];
        (b[0], b[1], b[6]) = (message::DHCHAP, message::REPLY, n as u8);
        set(&mut b, 4, &self.transaction.to_le_bytes());
        set(&mut b, 10, &(own.len() as u16).to_le_bytes());
        set(&mut b, 16, response.as_ref());
        set(&mut b, 16 + 2 * n, &own);
        if let Some(secret) = self.parties.subsystem_secret.as_ref() {
            b[8] = 1;
            let sequence = sequence.wrapping_add(1).max(1);
            set(&mut b, 12, &sequence.to_le_bytes());
            set(&mut b, 16 + n, &self.challenge[..n]);
            let text = sign(&self.challenge[..n], sequence, "Controller", &subsystem, &host);
            self.expected = Some((Secret::key(secret, &subsystem, hash), text));
        }
        Some(b)
    }

    /// True if a message is the target's success. If the host asked for the subsystem's proof, the message must carry a valid one.
    pub fn accepts(&self, message: &[u8]) -> bool {
        if message.len() < 16 || message[..2] != [message::DHCHAP, message::SUCCESS1] {
            return false;
        }
        let Some((key, text)) = &self.expected else { return true };
        let response = message.get(16..16 + usize::from(message[6]));
        message[8] == 1 && response.is_some_and(|r| hmac::verify(key, text, r).is_ok())
    }

    /// The last message of a host that asked for the subsystem's proof: the proof is right, or it isn't.
    pub fn verdict(&self, accepts: bool) -> Vec<u8> {
        let mut b = vec![0; if accepts { 16 } else { 8 }];
        (b[0], b[1]) = (message::DHCHAP, if accepts { message::SUCCESS2 } else { message::FAILURE2 });
        set(&mut b, 4, &self.transaction.to_le_bytes());
        b
    }
}
