//! Finite-field Diffie-Hellman groups of RFC 7919, for DH-HMAC-CHAP.

use crypto_bigint::modular::{BoxedMontyForm, BoxedMontyParams};
use crypto_bigint::{BoxedUint, Odd, Resize};

/// Bytes of a secret exponent: twice the strength of the largest group here, and more.
pub const EXPONENT_BYTES: usize = 64;

/// A Diffie-Hellman group that hosts may choose.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Group {
    /// None: the challenge alone.
    Null,
    /// ffdhe2048.
    Ffdhe2048,
    /// ffdhe3072.
    Ffdhe3072,
    /// ffdhe4096.
    Ffdhe4096,
}

impl Group {
    /// All groups, the strongest first.
    pub const ALL: [Group; 4] = [Group::Ffdhe4096, Group::Ffdhe3072, Group::Ffdhe2048, Group::Null];

    /// Its number in messages.
    pub const fn to_wire(self) -> u8 {
        match self {
            Group::Null => 0,
            Group::Ffdhe2048 => 1,
            Group::Ffdhe3072 => 2,
            Group::Ffdhe4096 => 3,
        }
    }

    /// Bytes of a public value and of a shared secret; 0 without a group.
    pub const fn value_bytes(self) -> usize {
        match self {
            Group::Null => 0,
            Group::Ffdhe2048 => 256,
            Group::Ffdhe3072 => 384,
            Group::Ffdhe4096 => 512,
        }
    }

    fn prime_hex(self) -> Option<&'static str> {
        match self {
            Group::Null => None,
            Group::Ffdhe2048 => Some(FFDHE2048),
            Group::Ffdhe3072 => Some(FFDHE3072),
            Group::Ffdhe4096 => Some(FFDHE4096),
        }
    }

    fn prime(self) -> Option<BoxedUint> {
        let bits = self.value_bytes() as u32 * 8;
        self.prime_hex().map(|hex| BoxedUint::from_be_hex(hex, bits).expect("a constant of this length"))
    }

    fn power(self, base: BoxedUint, exponent: &[u8; EXPONENT_BYTES]) -> Option<Vec<u8>> {
        let prime = Odd::new(self.prime()?).expect("a prime is odd");
        let exponent = BoxedUint::from_be_slice(exponent, EXPONENT_BYTES as u32 * 8).expect("its length");
        let params = BoxedMontyParams::new(prime);
        Some(BoxedMontyForm::new(base, &params).pow(&exponent).retrieve().to_be_bytes().to_vec())
    }

    /// The public value of a secret exponent, big-endian; empty without a group. Takes milliseconds.
    pub fn public(self, exponent: &[u8; EXPONENT_BYTES]) -> Vec<u8> {
        if self == Group::Null {
            return Vec::new();
        }
        let two = BoxedUint::from(2u8).resize(self.value_bytes() as u32 * 8);
        self.power(two, exponent).unwrap_or_default()
    }

    /// The secret that is shared with the peer whose public value is `other`, big-endian and as long as the prime. `None` if
    /// `other` isn't between 2 and the prime less 2: such a value would make the secret known to everybody. Takes milliseconds.
    pub fn shared(self, exponent: &[u8; EXPONENT_BYTES], other: &[u8]) -> Option<Vec<u8>> {
        if other.len() != self.value_bytes() {
            return None;
        }
        let other = BoxedUint::from_be_slice(other, self.value_bytes() as u32 * 8).ok()?;
        let last = self.prime()?.wrapping_sub(BoxedUint::one_with_precision(self.value_bytes() as u32 * 8));
        if other <= BoxedUint::one_with_precision(other.bits_precision()) || other >= last {
            return None;
        }
        self.power(other, exponent)
    }
}

const FFDHE2048: &str = "\
    ffffffffffffffffadf85458a2bb4a9aafdc5620273d3cf1d8b9c583ce2d3695a9e13641146433fbcc939dce249b3ef97d2fe363630c75d8\
    f681b202aec4617ad3df1ed5d5fd65612433f51f5f066ed0856365553ded1af3b557135e7f57c935984f0c70e0e68b77e2a689daf3efe872\
    1df158a136ade73530acca4f483a797abc0ab182b324fb61d108a94bb2c8e3fbb96adab760d7f4681d4f42a3de394df4ae56ede76372bb19\
    0b07a7c8ee0a6d709e02fce1cdf7e2ecc03404cd28342f619172fe9ce98583ff8e4f1232eef28183c3fe3b1b4c6fad733bb5fcbc2ec22005\
    c58ef1837d1683b2c6f34a26c1b2effa886b423861285c97ffffffffffffffff";

const FFDHE3072: &str = "\
    ffffffffffffffffadf85458a2bb4a9aafdc5620273d3cf1d8b9c583ce2d3695a9e13641146433fbcc939dce249b3ef97d2fe363630c75d8\
    f681b202aec4617ad3df1ed5d5fd65612433f51f5f066ed0856365553ded1af3b557135e7f57c935984f0c70e0e68b77e2a689daf3efe872\
    1df158a136ade73530acca4f483a797abc0ab182b324fb61d108a94bb2c8e3fbb96adab760d7f4681d4f42a3de394df4ae56ede76372bb19\
    0b07a7c8ee0a6d709e02fce1cdf7e2ecc03404cd28342f619172fe9ce98583ff8e4f1232eef28183c3fe3b1b4c6fad733bb5fcbc2ec22005\
    c58ef1837d1683b2c6f34a26c1b2effa886b4238611fcfdcde355b3b6519035bbc34f4def99c023861b46fc9d6e6c9077ad91d2691f7f7ee\
    598cb0fac186d91caefe130985139270b4130c93bc437944f4fd4452e2d74dd364f2e21e71f54bff5cae82ab9c9df69ee86d2bc522363a0d\
    abc521979b0deada1dbf9a42d5c4484e0abcd06bfa53ddef3c1b20ee3fd59d7c25e41d2b66c62e37ffffffffffffffff";

const FFDHE4096: &str = "\
    ffffffffffffffffadf85458a2bb4a9aafdc5620273d3cf1d8b9c583ce2d3695a9e13641146433fbcc939dce249b3ef97d2fe363630c75d8\
    f681b202aec4617ad3df1ed5d5fd65612433f51f5f066ed0856365553ded1af3b557135e7f57c935984f0c70e0e68b77e2a689daf3efe872\
    1df158a136ade73530acca4f483a797abc0ab182b324fb61d108a94bb2c8e3fbb96adab760d7f4681d4f42a3de394df4ae56ede76372bb19\
    0b07a7c8ee0a6d709e02fce1cdf7e2ecc03404cd28342f619172fe9ce98583ff8e4f1232eef28183c3fe3b1b4c6fad733bb5fcbc2ec22005\
    c58ef1837d1683b2c6f34a26c1b2effa886b4238611fcfdcde355b3b6519035bbc34f4def99c023861b46fc9d6e6c9077ad91d2691f7f7ee\
    598cb0fac186d91caefe130985139270b4130c93bc437944f4fd4452e2d74dd364f2e21e71f54bff5cae82ab9c9df69ee86d2bc522363a0d\
    abc521979b0deada1dbf9a42d5c4484e0abcd06bfa53ddef3c1b20ee3fd59d7c25e41d2b669e1ef16e6f52c3164df4fb7930e9e4e58857b6\
    ac7d5f42d69f6d187763cf1d5503400487f55ba57e31cc7a7135c886efb4318aed6a1e012d9e6832a907600a918130c46dc778f971ad0038\
    092999a333cb8b7a1a1db93d7140003c2a4ecea9f98d0acc0a8291cdcec97dcf8ec9b55a7f88a46b4db5a851f44182e1c68a007e5e655f6a\
    ffffffffffffffff";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_sides_share_a_secret() {
        for group in [Group::Ffdhe2048, Group::Ffdhe3072, Group::Ffdhe4096] {
            let (a, b) = ([3; EXPONENT_BYTES], [0xa5; EXPONENT_BYTES]);
            let shared = group.shared(&a, &group.public(&b));
            assert_eq!(shared, group.shared(&b, &group.public(&a)));
            assert_eq!(shared.map(|s| s.len()), Some(group.value_bytes()));
        }
        assert_eq!(Group::Null.public(&[3; EXPONENT_BYTES]), []);
    }

    #[test]
    fn values_that_give_the_secret_away_are_refused() {
        let group = Group::Ffdhe2048;
        let exponent = [3; EXPONENT_BYTES];
        let prime = group.prime().unwrap();
        let one = BoxedUint::one_with_precision(2048);
        let bytes = |n: BoxedUint| n.to_be_bytes().to_vec();
        for bad in [vec![0; 256], bytes(one.clone()), bytes(prime.wrapping_sub(&one)), bytes(prime), vec![0xff; 256]] {
            assert_eq!(group.shared(&exponent, &bad), None);
        }
        assert_eq!(group.shared(&exponent, &[2; 255]), None);
        assert_eq!(Group::Null.shared(&exponent, &[]), None);
    }
}
