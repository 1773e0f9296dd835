//! Secrets of hosts and subsystems, in the form that `nvme gen-dhchap-key` prints.

use data_encoding::BASE64;
use ring::hmac;
use std::fmt;

/// A hash function of DH-HMAC-CHAP.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Hash {
    /// SHA-256.
    Sha256,
    /// SHA-384.
    Sha384,
    /// SHA-512.
    Sha512,
}

impl Hash {
    /// All of them, in the order in which they are chosen.
    pub const ALL: [Hash; 3] = [Hash::Sha256, Hash::Sha384, Hash::Sha512];

    /// Its number in messages and secrets.
    pub const fn to_wire(self) -> u8 {
        match self {
            Hash::Sha256 => 1,
            Hash::Sha384 => 2,
            Hash::Sha512 => 3,
        }
    }

    /// The function with this number.
    pub fn from_wire(number: u8) -> Option<Hash> {
        Hash::ALL.into_iter().find(|h| h.to_wire() == number)
    }

    /// Bytes of a value.
    pub const fn bytes(self) -> usize {
        match self {
            Hash::Sha256 => 32,
            Hash::Sha384 => 48,
            Hash::Sha512 => 64,
        }
    }

    pub(crate) fn hmac(self) -> hmac::Algorithm {
        match self {
            Hash::Sha256 => hmac::HMAC_SHA256,
            Hash::Sha384 => hmac::HMAC_SHA384,
            Hash::Sha512 => hmac::HMAC_SHA512,
        }
    }

    pub(crate) fn digest(self, bytes: &[u8]) -> ring::digest::Digest {
        let algorithm = match self {
            Hash::Sha256 => &ring::digest::SHA256,
            Hash::Sha384 => &ring::digest::SHA384,
            Hash::Sha512 => &ring::digest::SHA512,
        };
        ring::digest::digest(algorithm, bytes)
    }
}

/// A secret that a host or a subsystem shares with its peers. Its bytes are never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret {
    /// The function that binds it to a name; `None` if it is used as it stands.
    bound_by: Option<Hash>,
    bytes: Vec<u8>,
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// A text that is no secret.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BadSecret {
    /// It isn't `DHHC-1:HH:BASE64:`.
    Form,
    /// Its hash function is unknown.
    Hash,
    /// It has neither 32, 48 nor 64 bytes, or fewer than its hash function needs.
    Length,
    /// Its checksum is wrong: it was mistyped.
    Checksum,
}

impl fmt::Display for BadSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            BadSecret::Form => "a secret has the form DHHC-1:HH:BASE64: (`nvme gen-dhchap-key` prints one)",
            BadSecret::Hash => "a secret's hash function is 00, 01, 02 or 03",
            BadSecret::Length => "a secret has the length of its hash function: 32, 48 or 64 bytes",
            BadSecret::Checksum => "the secret's checksum is wrong: it isn't the text that was generated",
        })
    }
}

impl Secret {
    /// From its text; white space around it is ignored.
    ///
    /// # Errors
    /// See [`BadSecret`]. The error doesn't show the text.
    pub fn parse(text: &str) -> Result<Secret, BadSecret> {
        let rest = text.trim().strip_prefix("DHHC-1:").ok_or(BadSecret::Form)?;
        let (hash, rest) = rest.split_once(':').ok_or(BadSecret::Form)?;
        let encoded = rest.strip_suffix(':').ok_or(BadSecret::Form)?;
        let bound_by = match hash {
            "00" => None,
            "01" => Some(Hash::Sha256),
            "02" => Some(Hash::Sha384),
            "03" => Some(Hash::Sha512),
            _ => return Err(BadSecret::Hash),
        };
        let mut bytes = BASE64.decode(encoded.as_bytes()).map_err(|_| BadSecret::Form)?;
        let key_bytes = bytes.len().checked_sub(4).ok_or(BadSecret::Length)?;
        if !matches!(key_bytes, 32 | 48 | 64) || bound_by.is_some_and(|h| h.bytes() != key_bytes) {
            return Err(BadSecret::Length);
        }
        let checksum = bytes.split_off(key_bytes);
        if crc32fast::hash(&bytes).to_le_bytes() != checksum[..] {
            return Err(BadSecret::Checksum);
        }
        Ok(Secret { bound_by, bytes })
    }

    /// Its text.
    pub fn to_text(&self) -> String {
        let mut bytes = self.bytes.clone();
        bytes.extend_from_slice(&crc32fast::hash(&self.bytes).to_le_bytes());
        format!("DHHC-1:{:02}:{}:", self.bound_by.map_or(0, Hash::to_wire), BASE64.encode(&bytes))
    }

    /// A secret of these bytes, used as it stands.
    ///
    /// # Errors
    /// [`BadSecret::Length`] unless there are 32, 48 or 64.
    pub fn of(bytes: &[u8]) -> Result<Secret, BadSecret> {
        match bytes.len() {
            32 | 48 | 64 => Ok(Secret { bound_by: None, bytes: bytes.to_vec() }),
            _ => Err(BadSecret::Length),
        }
    }

    /// The key of `nqn`, whose secret this is, for authentication with `hash`.
    pub(crate) fn key(&self, nqn: &str, hash: Hash) -> hmac::Key {
        let Some(bound_by) = self.bound_by else { return hmac::Key::new(hash.hmac(), &self.bytes) };
        let mut context = hmac::Context::with_key(&hmac::Key::new(bound_by.hmac(), &self.bytes));
        context.update(nqn.as_bytes());
        context.update(b"NVMe-over-Fabrics");
        hmac::Key::new(hash.hmac(), context.sign().as_ref())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_read_back() {
        for (text, bound_by) in [
            (Secret::of(&[7; 32]).unwrap().to_text(), None),
            (Secret { bound_by: Some(Hash::Sha384), bytes: vec![9; 48] }.to_text(), Some(Hash::Sha384)),
        ] {
            let secret = Secret::parse(&format!("{text}\n")).unwrap();
            assert_eq!((secret.bound_by, secret.to_text()), (bound_by, text));
            assert_eq!(format!("{secret:?}"), "Secret(..)");
        }
    }

    #[test]
    fn every_mistyped_text_is_refused() {
        let right = Secret::of(&[0x5a; 32]).unwrap().to_text();
        for at in 0..right.len() {
            let mut bytes = right.clone().into_bytes();
            bytes[at] = if bytes[at] == b'A' { b'B' } else { b'A' };
            let text = String::from_utf8(bytes).unwrap();
            assert!(Secret::parse(&text).is_err(), "{text}");
        }
        for (text, why) in [
            ("", BadSecret::Form),
            ("DHHC-1:00:AAAA", BadSecret::Form),
            ("DHHC-1:00:AAAA:", BadSecret::Length),
            ("DHHC-1:04:AAAA:", BadSecret::Hash),
        ] {
            assert_eq!(Secret::parse(text), Err(why));
        }
    }
}
