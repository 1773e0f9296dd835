//! Messages to one layer, and reports from it, in that layer's own encoding: the contract carries them and knows none.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A value in one layer's encoding: an operator's order, its part of a volume's or a tenant's terms, or a report of it.
pub trait Message: Serialize + DeserializeOwned {
    /// The layer's name, as [`crate::Layer::name`] has it.
    const LAYER: &'static str;

    /// The value as bytes.
    fn encode(&self) -> Vec<u8> {
        postcard::to_stdvec(self).expect("messages are plain values")
    }

    /// The value of these bytes; `None` if they are none.
    fn decode(bytes: &[u8]) -> Option<Self> {
        postcard::from_bytes(bytes).ok()
    }
}

/// A message on its way to a layer, or a report on its way from one.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Addressed {
    /// The layer's name.
    pub layer: String,
    /// The message, in the layer's encoding.
    pub message: Vec<u8>,
}

impl Addressed {
    /// Addresses `message` to the layer that understands it.
    pub fn new<M: Message>(message: &M) -> Addressed {
        Addressed { layer: M::LAYER.to_string(), message: message.encode() }
    }

    /// The message as an `M`; `None` if it is another layer's, or no `M`.
    pub fn get<M: Message>(&self) -> Option<M> {
        (self.layer == M::LAYER).then(|| M::decode(&self.message)).flatten()
    }
}

/// The parts of a volume's or a tenant's terms that concern one layer each.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct OwnTerms(BTreeMap<String, Vec<u8>>);

impl OwnTerms {
    /// Only this part.
    pub fn of<M: Message>(part: &M) -> OwnTerms {
        OwnTerms::default().with(part)
    }

    /// With this part, too. A layer has one part.
    #[must_use]
    pub fn with<M: Message>(mut self, part: &M) -> OwnTerms {
        self.0.insert(M::LAYER.to_string(), part.encode());
        self
    }

    /// The part of `M`'s layer; `None` if there is none, or it isn't an `M`.
    pub fn get<M: Message>(&self) -> Option<M> {
        self.0.get(M::LAYER).and_then(|bytes| M::decode(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(PartialEq, Debug, Serialize, Deserialize)]
    struct Depth(u32);
    impl Message for Depth {
        const LAYER: &'static str = "queue";
    }
    #[derive(PartialEq, Debug, Serialize, Deserialize)]
    struct Share(String);
    impl Message for Share {
        const LAYER: &'static str = "shares";
    }

    #[test]
    fn each_layer_finds_its_own_part() {
        let own = OwnTerms::of(&Depth(7)).with(&Share("a".into())).with(&Depth(8));
        assert_eq!((own.get::<Depth>(), own.get::<Share>()), (Some(Depth(8)), Some(Share("a".into()))));
        assert_eq!(OwnTerms::default().get::<Depth>(), None);
        assert_eq!(Share::decode(&[200]), None, "no such message");
    }
}
