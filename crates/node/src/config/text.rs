//! Values as they are written: sizes and lengths of time.

use super::BadConfig;
use plimsoll_base::Span;
use serde::{Deserialize, Serialize};
use std::fmt;

/// A number of bytes: `4096`, `"64KiB"`, `"8GiB"`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ByteSize(pub u64);

impl std::str::FromStr for ByteSize {
    type Err = BadConfig;
    fn from_str(text: &str) -> Result<ByteSize, BadConfig> {
        plimsoll_base::parse_bytes(text).map(ByteSize).map_err(BadConfig::new)
    }
}

/// In its largest exact unit: `8GiB`.
impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];
        match units.iter().find(|(_, shift)| self.0 > 0 && self.0.trailing_zeros() >= *shift) {
            Some((unit, shift)) => write!(f, "{}{unit}", self.0 >> shift),
            None => write!(f, "{}", self.0),
        }
    }
}

impl Serialize for ByteSize {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        // As people write it, so that it can be pasted into a configuration.
        match self.0.is_multiple_of(1024) && self.0 > 0 {
            true => s.collect_str(self),
            false => s.serialize_u64(self.0),
        }
    }
}

impl<'de> Deserialize<'de> for ByteSize {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<ByteSize, D::Error> {
        struct Visitor;
        impl serde::de::Visitor<'_> for Visitor {
            type Value = ByteSize;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a size such as \"8GiB\", or a number of bytes")
            }
            fn visit_i64<E: serde::de::Error>(self, v: i64) -> Result<ByteSize, E> {
                u64::try_from(v).map(ByteSize).map_err(|_| E::custom("a size is not negative"))
            }
            fn visit_u64<E: serde::de::Error>(self, v: u64) -> Result<ByteSize, E> {
                Ok(ByteSize(v))
            }
            fn visit_str<E: serde::de::Error>(self, v: &str) -> Result<ByteSize, E> {
                v.parse().map_err(E::custom)
            }
        }
        d.deserialize_any(Visitor)
    }
}

/// A length of time: `"20ms"`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SpanText(pub Span);

impl Serialize for SpanText {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(s)
    }
}

impl<'de> Deserialize<'de> for SpanText {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<SpanText, D::Error> {
        let text = String::deserialize(d)?;
        text.parse().map(SpanText).map_err(serde::de::Error::custom)
    }
}
