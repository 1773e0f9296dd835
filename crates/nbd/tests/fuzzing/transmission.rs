//! Arbitrary bytes at either end of the transmission phase: no panic, bounded memory, nothing served that the
//! rules forbid, no READ called complete that is not, and the same result however the bytes are cut.

use std::collections::BTreeMap;

use plimsoll_nbd::request::{Incoming, Request, Rules};
use plimsoll_nbd::transactions::{CHUNK_BYTES_MAX, Reply, Transactions};
use plimsoll_nbd::wire::{Command, CommandFlags, REQUEST_BYTES, TransmissionFlags};

/// The first byte chooses the end and what was negotiated, the second how the rest is cut.
pub fn fuzz_one(data: &[u8]) {
    let [choice, cut, bytes @ ..] = data else { return };
    if choice & 1 == 0 {
        serve(*choice, *cut, bytes);
    } else {
        let whole = receive(*choice, bytes, bytes.len().max(1));
        let cut = receive(*choice, bytes, usize::from(*cut % 37) + 1);
        assert_eq!(cut, whole, "the cut changed the client's result");
    }
}

fn serve(choice: u8, flags: u8, mut bytes: &[u8]) {
    let rules = Rules {
        size_bytes: 1 << 26,
        flags: TransmissionFlags::from_wire(u16::from(flags) << 1 | u16::from(choice) << 9),
        block_bytes_min: if choice & 2 == 0 { 1 } else { 512 },
        payload_bytes_max: 32 << 20,
        structured_replies: choice & 4 == 0,
        block_status: choice & 8 == 0,
        promises: choice & 16 == 0,
    };
    while let Some((header, rest)) = bytes.split_first_chunk::<REQUEST_BYTES>() {
        bytes = rest;
        let skip = match rules.judge(header) {
            Err(_) | Ok(Incoming::Disconnect) => return,
            Ok(Incoming::Serve(request)) => {
                check_served(&rules, &request);
                assert_eq!(request.to_wire(), *header, "nothing of a request is lost");
                request.payload_bytes()
            }
            Ok(Incoming::Refuse(refused)) => {
                assert!(refused.skip_bytes == 0 || refused.command == Command::Write.to_wire());
                assert!(!refused.message.is_empty());
                refused.skip_bytes
            }
        };
        bytes = bytes.get(skip as usize..).unwrap_or_default();
    }
}

/// The rules once more, in the plainest words.
fn check_served(rules: &Rules, request: &Request) {
    let (offset, length) = (u128::from(request.offset), u128::from(request.length));
    let negotiated = |flag| rules.flags.contains(flag);
    match request.command {
        Command::Cancel => {
            assert!(rules.promises);
            return;
        }
        Command::Flush => assert!(offset == 0 && length == 0 && negotiated(TransmissionFlags::SEND_FLUSH)),
        _ => {
            assert!(length > 0 && offset + length <= u128::from(rules.size_bytes));
            assert_eq!(
                (offset % u128::from(rules.block_bytes_min), length % u128::from(rules.block_bytes_min)),
                (0, 0)
            );
        }
    }
    if matches!(request.command, Command::Read | Command::Write) {
        assert!(request.length <= rules.payload_bytes_max);
    }
    if matches!(request.command, Command::Write | Command::Trim | Command::WriteZeroes) {
        assert!(!negotiated(TransmissionFlags::READ_ONLY));
    }
    assert!(!request.flags.contains(CommandFlags::FUA) || negotiated(TransmissionFlags::SEND_FUA));
    assert!(!request.flags.contains(CommandFlags::DF) || rules.structured_replies);
    assert!(request.flags.to_wire() < 32, "an unknown flag");
    assert_ne!(request.command, Command::Disconnect);
}

/// Requests in flight when the bytes arrive: cookie, command, flags, offset, length.
const IN_FLIGHT: [(u64, Command, CommandFlags, u64, u32); 6] = [
    (0, Command::Read, CommandFlags::EMPTY, 0, 16),
    (1, Command::Read, CommandFlags::EMPTY, 4096, 64),
    (2, Command::Read, CommandFlags::DF, 4096, 64),
    (3, Command::Write, CommandFlags::EMPTY, 0, 16),
    (4, Command::BlockStatus, CommandFlags::EMPTY, 0, 65536),
    (5, Command::BlockStatus, CommandFlags::REQ_ONE, 0, 65536),
];

/// Returns the events that the client received, with the pieces of a chunk's data joined again.
fn receive(choice: u8, bytes: &[u8], piece: usize) -> Vec<String> {
    let contexts = if choice & 4 == 0 { vec![1] } else { vec![1, 2] };
    let mut client = Transactions::new(choice & 2 == 0, contexts);
    let mut header = Vec::new();
    for (cookie, command, flags, offset, length) in IN_FLIGHT {
        client.submit(&mut header, Request { command, flags, cookie, offset, length }).expect("it is new");
    }
    let mut answered: BTreeMap<u64, u64> = BTreeMap::new();
    let mut failed = [false; IN_FLIGHT.len()];
    let mut told: Vec<String> = Vec::new();
    let mut data: Option<(u64, u64, Vec<u8>)> = None;
    let end = |told: &mut Vec<String>, data: &mut Option<(u64, u64, Vec<u8>)>| {
        if let Some(piece) = data.take() {
            told.push(format!("{piece:?}"));
        }
    };
    for mut rest in bytes.chunks(piece) {
        loop {
            let reply = client.poll(&mut rest);
            assert!(client.held_bytes() <= 2 * CHUNK_BYTES_MAX.min(bytes.len() + 64), "more is held than came");
            match reply {
                Ok(None) => break,
                Ok(Some(Reply::Data { cookie, offset, bytes })) => {
                    *answered.entry(cookie).or_default() += bytes.len() as u64;
                    match &mut data {
                        Some((of, from, held)) if *of == cookie && *from + held.len() as u64 == offset => {
                            held.extend_from_slice(bytes);
                        }
                        _ => {
                            end(&mut told, &mut data);
                            data = Some((cookie, offset, bytes.to_vec()));
                        }
                    }
                }
                Ok(Some(reply)) => {
                    end(&mut told, &mut data);
                    match reply {
                        Reply::Hole { cookie, length, .. } => *answered.entry(cookie).or_default() += u64::from(length),
                        Reply::Error { cookie, .. } => failed[cookie as usize] = true,
                        Reply::Done { cookie } => check_done(cookie, failed[cookie as usize], &answered),
                        Reply::Data { .. } | Reply::Status { .. } | Reply::Notes { .. } => {}
                    }
                    told.push(format!("{reply:?}"));
                }
                Err(error) => {
                    end(&mut told, &mut data);
                    assert_eq!(client.poll(&mut rest), Err(error), "an error is for ever");
                    told.push(format!("{error:?}"));
                    return told;
                }
            }
        }
    }
    end(&mut told, &mut data);
    told
}

fn check_done(cookie: u64, failed: bool, answered: &BTreeMap<u64, u64>) {
    let (_, command, _, _, length) = IN_FLIGHT[cookie as usize];
    if command == Command::Read && !failed {
        assert_eq!(answered.get(&cookie), Some(&u64::from(length)), "a READ is done with bytes missing");
    }
}
