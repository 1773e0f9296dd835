//! Arbitrary bytes on an I/O queue: no panic, nothing served outside the namespace, no data taken that weren't asked for, the
//! same result however many bytes are looked at.

use plimsoll_nvme::host::{Command, connect_data, parameters};
use plimsoll_nvme::opening::Opening;
use plimsoll_nvme::pdu::{Digests, Fault};
use plimsoll_nvme::queue::{IoCommand, IoOp, Namespace, Next, Queue};
use plimsoll_nvme::wire::TRANSFER_BYTES_MAX;

const NAMESPACE: Namespace = Namespace { blocks: 1 << 20, read_only: false };

/// The first byte chooses what was negotiated, the second how many bytes are there at first.
pub fn fuzz_one(data: &[u8]) {
    let [choice, cut, bytes @ ..] = data else { return };
    let whole = serve(*choice, bytes, bytes.len());
    assert_eq!(serve(*choice, bytes, usize::from(*cut % 37) + 1), whole, "the cut changed the result");
}

fn serve(choice: u8, bytes: &[u8], piece: usize) -> (Vec<Next>, Option<Fault>) {
    let digests = Digests { header: choice & 1 != 0, data: choice & 2 != 0 };
    let mut opened = parameters(digests).to_vec();
    Command::connect(0, 1, 32, 0, false).send(&mut opened, digests, &connect_data(1, [9; 16], "nqn.h", "nqn.a"));
    let mut opening = Opening::default();
    opening.take(&mut &opened[..]).expect("no fault").expect("a Connect");
    let namespace = Namespace { read_only: choice & 4 != 0, ..NAMESPACE };
    let mut queue = Queue::new(opening.accept(1).0, namespace);
    let (mut at, mut there, mut seen) = (0, piece.min(bytes.len()), Vec::new());
    let (mut fetched, mut waiting) = (None::<(u32, u32)>, Vec::new());
    loop {
        if fetched.is_none() && !waiting.is_empty() {
            let command: IoCommand = waiting.remove(0);
            let _ = queue.fetch(command.id, command.length);
            fetched = Some((command.length, 0));
        }
        let next = match queue.next(&bytes[at..there]) {
            Ok(Next::NeedBytes) if there < bytes.len() => {
                there = (there + piece).min(bytes.len());
                continue;
            }
            Ok(next) => next,
            Err(fault) => return (seen, Some(fault)),
        };
        seen.push(next.clone());
        match next {
            Next::NeedBytes => return (seen, None),
            Next::Serve { command, data, taken } => {
                check(&namespace, &command);
                assert!(data.end <= taken && at + taken <= there);
                at += taken;
            }
            Next::Fetch { command, taken } => {
                check(&namespace, &command);
                assert!((1..=TRANSFER_BYTES_MAX).contains(&command.length));
                waiting.push(command);
                at += taken;
            }
            Next::Refuse { taken, .. } => at += taken,
            Next::Data { head } => {
                let n = queue.data_left();
                let (length, got) = fetched.as_mut().expect("data that were asked for");
                *got += n as u32;
                assert!(*got <= *length);
                if got == length {
                    queue.has_fetched();
                    fetched = None;
                }
                let end = at + head + n + queue.trailer_bytes();
                queue.took_data(n);
                if end > bytes.len() {
                    return (seen, None);
                }
                let (data, trailer) = bytes[at + head..end].split_at(n);
                let _ = queue.data_are_right(data, trailer);
                at = end;
                there = there.max(at);
            }
        }
    }
}

fn check(namespace: &Namespace, command: &IoCommand) {
    let end = command.offset + u64::from(command.length);
    assert!(end <= namespace.blocks * 512, "{command:?}");
    let changes = matches!(command.op, IoOp::Write { .. } | IoOp::WriteZeroes { .. } | IoOp::Deallocate);
    assert!(!changes || !namespace.read_only, "{command:?}");
}
