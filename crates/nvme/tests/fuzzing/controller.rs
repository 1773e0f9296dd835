//! Arbitrary bytes on an admin queue: no panic, bounded answers, the same result however the bytes are cut.

use plimsoll_nvme::controller::{Controller, Role, Subsystem, Target};
use plimsoll_nvme::host::{Command, Ear, connect_data, parameters};
use plimsoll_nvme::opening::Opening;
use plimsoll_nvme::pdu::{Digests, Fault};
use plimsoll_nvme::queue::Namespace;
use plimsoll_nvme::wire::AnaState;

/// Most bytes of one command's answers: a log page, and an event.
const ANSWER_BYTES_MAX: usize = (128 << 10) + 1024;

/// The first byte chooses the controller and what was negotiated, the second how the rest is cut.
pub fn fuzz_one(data: &[u8]) {
    let [choice, cut, bytes @ ..] = data else { return };
    let whole = serve(*choice, bytes, bytes.len().max(1));
    assert_eq!(serve(*choice, bytes, usize::from(*cut % 37) + 1), whole, "the cut changed the result");
}

fn serve(choice: u8, bytes: &[u8], piece: usize) -> (Result<(), Fault>, Vec<u8>) {
    let digests = Digests { header: choice & 1 != 0, data: choice & 2 != 0 };
    let role = match choice & 4 {
        0 => {
            let namespace = Namespace { blocks: 1 << 20, read_only: choice & 8 != 0 };
            Role::Io(Subsystem { nqn: "nqn.a".into(), serial: "s".into(), uuid: [1; 16], namespace, queues_max: 2 })
        }
        _ => Role::Discovery(vec![Target {
            nqn: "nqn.a".into(),
            address: "[::1]:4420".parse().expect("an address"),
            port_id: 1,
        }]),
    };
    let mut opened = parameters(digests).to_vec();
    let data = connect_data(0xffff, [9; 16], "nqn.h", "nqn.a");
    Command::connect(0, 0, 32, 0, choice & 16 != 0).send(&mut opened, digests, &data);
    Command::property_set(1, 0x14, 0x46_0001).send(&mut opened, digests, &[]);
    Command::set_feature(2, 0xb, 1 << 11).send(&mut opened, digests, &[]);
    let mut opening = Opening::default();
    let mut input = &opened[..];
    opening.take(&mut input).expect("no fault").expect("a Connect");
    let accepted = opening.accept(1);
    let mut controller = Controller::new(role, 1, accepted, 0, 0, AnaState::Optimized);
    controller.take(0, &mut input).expect("no fault");
    controller.take(0, &mut input).expect("no fault");
    controller.set_ana(AnaState::Inaccessible);
    let (mut result, mut all) = (Ok(()), std::mem::take(opening.output()));
    all.append(controller.output());
    'pieces: for piece in bytes.chunks(piece) {
        let mut input = piece;
        while !input.is_empty() {
            result = controller.take(1, &mut input);
            let out = std::mem::take(controller.output());
            assert!(out.len() <= ANSWER_BYTES_MAX, "{} bytes of answers", out.len());
            all.extend_from_slice(&out);
            if result.is_err() {
                break 'pieces;
            }
        }
    }
    // Its answers are PDUs.
    let mut ear = Ear::default();
    let mut said = &all[..];
    while ear.take(&mut said).expect("a target's PDUs").is_some() {}
    assert!(said.is_empty());
    (result, all)
}
