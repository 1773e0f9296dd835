//! Arbitrary bytes from a target: no panic, the same result however the bytes are cut.

use plimsoll_nvme::host::{Ear, Heard};
use plimsoll_nvme::pdu::Fault;

/// The first byte says how the rest is cut.
pub fn fuzz_one(data: &[u8]) {
    let [cut, bytes @ ..] = data else { return };
    let whole = hear(bytes, bytes.len().max(1));
    assert_eq!(hear(bytes, usize::from(*cut % 37) + 1), whole, "the cut changed the result");
}

fn hear(bytes: &[u8], piece: usize) -> (Vec<Heard>, Option<Fault>) {
    let (mut ear, mut all) = (Ear::default(), Vec::new());
    for piece in bytes.chunks(piece) {
        let mut input = piece;
        while !input.is_empty() {
            match ear.take(&mut input) {
                Ok(heard) => all.extend(heard),
                Err(fault) => return (all, Some(fault)),
            }
        }
    }
    (all, None)
}
