//! Arbitrary bytes of a host that is to prove itself: no panic, bounded answers, the same result however the bytes are cut, and no
//! proof without the secret.

use plimsoll_nvme::auth::secret::Secret;
use plimsoll_nvme::auth::{Parties, Proof, Random};
use plimsoll_nvme::host::{Command, Ear, connect_data, parameters};
use plimsoll_nvme::opening::{Asked, Opening};
use plimsoll_nvme::pdu::{Digests, Fault};

/// The first byte says how the rest is cut, and whether the subsystem has a secret.
pub fn fuzz_one(data: &[u8]) {
    let [cut, bytes @ ..] = data else { return };
    let mutual = cut & 1 != 0;
    let whole = open(bytes, bytes.len().max(1), mutual);
    assert_eq!(open(bytes, usize::from(*cut % 37) + 1, mutual), whole, "the cut changed the result");
}

/// Names and secrets of the target whose hosts are fuzzed.
fn parties(mutual: bool) -> Parties {
    let secret = |byte| Secret::of(&[byte; 32]).expect("a secret's length");
    let subsystem_secret = mutual.then(|| secret(2));
    Parties { host: "nqn.h".into(), subsystem: "nqn.a".into(), host_secret: secret(1), subsystem_secret }
}

fn open(bytes: &[u8], piece: usize, mutual: bool) -> (Result<bool, Fault>, Vec<u8>) {
    let mut opened = parameters(Digests::default()).to_vec();
    let connect = connect_data(0xffff, [9; 16], "nqn.h", "nqn.a");
    Command::connect(0, 0, 32, 0, true).send(&mut opened, Digests::default(), &connect);
    let mut opening = Opening::default();
    assert!(matches!(opening.take(&mut &opened[..]), Ok(Some(Asked::Connect(_)))));
    let random = Random { challenge: [7; 64], exponent: [8; 64], sequence: 1 };
    opening.demand_proof(1, Proof::new(parties(mutual), random));
    let mut result = Ok(false);
    'pieces: for piece in bytes.chunks(piece) {
        let mut input = piece;
        while !input.is_empty() {
            match opening.take(&mut input) {
                Ok(None) if !opening.is_over() => {}
                Ok(None) => break 'pieces,
                Ok(Some(Asked::Proved)) => {
                    opening.accept_proved();
                    result = Ok(true);
                    break 'pieces;
                }
                Ok(Some(asked)) => panic!("{asked:?} of a host that has connected"),
                Err(fault) => {
                    result = Err(fault);
                    break 'pieces;
                }
            }
        }
    }
    let out = std::mem::take(opening.output());
    // Each command has at least 72 bytes and at most one message as its answer.
    assert!(out.len() <= 512 + (bytes.len() / 72 + 1) * 4400, "{} bytes of answers", out.len());
    let (mut ear, mut said) = (Ear::default(), &out[..]);
    while ear.take(&mut said).expect("a target's PDUs").is_some() {}
    (result, out)
}
