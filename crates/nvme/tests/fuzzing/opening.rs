//! Arbitrary bytes at the opening of a connection: no panic, bounded answers, the same result however the bytes are cut.

use plimsoll_nvme::opening::{Asked, Opening};
use plimsoll_nvme::pdu::Fault;

/// The first byte says how the rest is cut.
pub fn fuzz_one(data: &[u8]) {
    let [cut, bytes @ ..] = data else { return };
    let whole = open(bytes, bytes.len().max(1));
    assert_eq!(open(bytes, usize::from(*cut % 37) + 1), whole, "the cut changed the result");
}

fn open(bytes: &[u8], piece: usize) -> (Result<Option<Asked>, Fault>, Vec<u8>) {
    let mut opening = Opening::default();
    let mut asked = Ok(None);
    'pieces: for piece in bytes.chunks(piece) {
        let mut input = piece;
        while asked == Ok(None) && !input.is_empty() {
            asked = opening.take(&mut input);
            if opening.is_over() {
                break 'pieces;
            }
        }
    }
    if let Ok(Some(Asked::Connect(connect))) = &asked {
        assert!(connect.entries >= 2 && connect.host.starts_with("nqn.") && connect.subsystem.starts_with("nqn."));
        assert_eq!(connect.queue == 0, connect.controller == 0xffff);
        opening.accept(1);
    }
    let out = std::mem::take(opening.output());
    assert!(out.len() <= 128 + 24 + 128, "{} bytes of answers", out.len());
    (asked, out)
}
