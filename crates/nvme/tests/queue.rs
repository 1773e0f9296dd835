//! An I/O queue's bytes, and what is refused.

use plimsoll_nvme::away::AwayQueue;
use plimsoll_nvme::command::Status;
use plimsoll_nvme::host::{Command, Ear, Heard, connect_data, parameters, range};
use plimsoll_nvme::opening::{Asked, Opening, Terms};
use plimsoll_nvme::pdu::{Digests, Fault, digest};
use plimsoll_nvme::queue::{IoCommand, IoOp, Namespace, Next, Queue, Replies};

const PLAIN: Digests = Digests { header: false, data: false };
const BOTH: Digests = Digests { header: true, data: true };
const HOST: &str = "nqn.2014-08.org.nvmexpress:uuid:11111111-2222-3333-4444-555555555555";
const NAMESPACE: Namespace = Namespace { blocks: 1 << 21, read_only: false };

/// Opens an I/O queue of 32 entries of controller 7, as a driver does.
fn open(digests: Digests, flow_control: bool) -> (Terms, Replies) {
    let mut bytes = parameters(digests).to_vec();
    let data = connect_data(7, [9; 16], HOST, "nqn.2026-11.test:a");
    Command::connect(3, 1, 32, 0, flow_control).send(&mut bytes, digests, &data);
    let mut opening = Opening::default();
    let mut input = &bytes[..];
    let Ok(Some(Asked::Connect(connect))) = opening.take(&mut input) else { panic!("no Connect") };
    assert!(input.is_empty());
    assert_eq!((connect.queue, connect.entries, connect.controller, connect.host_id), (1, 32, 7, [9; 16]));
    assert_eq!((connect.host.as_str(), connect.subsystem.as_str()), (HOST, "nqn.2026-11.test:a"));
    opening.accept(7)
}

fn queue(digests: Digests, read_only: bool) -> Queue {
    Queue::new(open(digests, false).0, Namespace { read_only, ..NAMESPACE })
}

fn sent(command: Command, digests: Digests, data: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    command.send(&mut out, digests, data);
    out
}

fn next(digests: Digests, command: Command, data: &[u8]) -> Next {
    queue(digests, false).next(&sent(command, digests, data)).expect("no fault")
}

fn refused(command: Command, data: &[u8]) -> Status {
    match next(PLAIN, command, data) {
        Next::Refuse { status, .. } => status,
        other => panic!("{other:?}"),
    }
}

fn done(out: &[u8], digests: Digests) -> Vec<Heard> {
    let mut ear = Ear::default();
    let mut heard = Vec::new();
    let mut input = &[&parameters_answer(digests), out].concat()[..];
    while let Some(next) = ear.take(&mut input).expect("a target's PDUs") {
        heard.push(next);
    }
    assert!(input.is_empty());
    heard.split_off(1)
}

fn parameters_answer(digests: Digests) -> [u8; 128] {
    let mut b = parameters(digests);
    b[0] = 1;
    b
}

#[test]
fn the_openings_bytes_are_those_of_the_specification() {
    let mut opening = Opening::default();
    let mut input = &parameters(BOTH)[..];
    assert_eq!(opening.take(&mut input), Ok(None));
    let mut want = [0; 128];
    want[..8].copy_from_slice(&[1, 0, 128, 0, 128, 0, 0, 0]);
    want[11] = 3;
    want[12..16].copy_from_slice(&(1u32 << 20).to_le_bytes());
    assert_eq!(opening.output().as_slice(), want);
}

#[test]
fn a_completions_bytes_are_those_of_the_specification() {
    let (_, mut replies) = open(PLAIN, true);
    let mut out = Vec::new();
    replies.complete(&mut out, 0x1234, 0x0506_0708_0102_0304, Status::INACCESSIBLE);
    let want = [5, 0, 24, 0, 24, 0, 0, 0, 4, 3, 2, 1, 8, 7, 6, 5, 2, 0, 0, 0, 0x34, 0x12, 0x06, 0x06];
    assert_eq!(out, want, "the head is 2: Connect was the first");
    let (_, mut replies) = open(BOTH, false);
    out.clear();
    replies.complete(&mut out, 1, 0, Status::OK);
    assert_eq!(out[..8], [5, 1, 24, 0, 28, 0, 0, 0]);
    assert_eq!(out[16..18], [0xff, 0xff], "no flow control, no head");
    assert_eq!(out[24..28], digest(&out[..24]).to_le_bytes());
}

#[test]
fn the_digest_is_crc32c() {
    assert_eq!(digest(b"123456789"), 0xe306_9283);
}

#[test]
fn data_go_out_with_digests_alignment_and_a_completion_where_there_is_flow_control() {
    for flow_control in [true, false] {
        for digests in [PLAIN, BOTH] {
            let (_, mut replies) = open(digests, flow_control);
            let mut out = Vec::new();
            replies.data(&mut out, 5, &[0xab; 512]);
            let heard = done(&out, digests);
            let data = Heard::Data { id: 5, offset: 0, data: vec![0xab; 512], done: !flow_control };
            let end = Heard::Done { id: 5, status: Status::OK, value: 0, head: 2 };
            assert_eq!(heard, if flow_control { vec![data, end] } else { vec![data] });
        }
    }
    let (_, mut replies) = open(PLAIN, false);
    let mut out = Vec::new();
    replies.data(&mut out, 5, &[1, 2, 3, 4]);
    let want = [7, 12, 24, 24, 28, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4];
    assert_eq!(out, want);
}

#[test]
fn a_host_may_ask_for_aligned_data() {
    let mut bytes = parameters(BOTH).to_vec();
    bytes[10] = 31;
    Command::connect(3, 1, 32, 0, false).send(&mut bytes, BOTH, &connect_data(7, [9; 16], HOST, "nqn.x"));
    let mut opening = Opening::default();
    assert!(opening.take(&mut &bytes[..]).expect("no fault").is_some());
    let (_, mut replies) = opening.accept(7);
    let mut out = Vec::new();
    replies.data(&mut out, 5, &[7; 512]);
    assert_eq!((out[3], out.len()), (128, 128 + 512 + 4));
    assert_eq!(out[128..640], [7; 512]);
}

#[test]
fn commands_become_bytes_of_the_namespace() {
    let serve = |command: Command, data: &[u8]| match next(PLAIN, command, data) {
        Next::Serve { command: IoCommand { id, op, offset, length }, data, taken } => {
            assert_eq!((id, taken), (9, data.end.max(72)));
            (op, offset, length)
        }
        other => panic!("{other:?}"),
    };
    assert_eq!(serve(Command::read(9, 8, 16), &[]), (IoOp::Read, 4096, 8192));
    assert_eq!(serve(Command::flush(9), &[]), (IoOp::Flush, 0, 0));
    assert_eq!(serve(Command::write(9, 1, 1, true), &[1; 512]), (IoOp::Write { durable: false }, 512, 512));
    assert_eq!(serve(Command::write(9, 1, 1, true).durable(), &[1; 512]).0, IoOp::Write { durable: true });
    let zeroes = |durable, deallocates| IoOp::WriteZeroes { durable, deallocates };
    assert_eq!(serve(Command::write_zeroes(9, 0, 65536), &[]), (zeroes(false, false), 0, 32 << 20));
    assert_eq!(serve(Command::write_zeroes(9, 0, 1).dword(12, 1 << 25 | 1 << 30), &[]).0, zeroes(true, true));
    assert_eq!(serve(Command::deallocate(9, 1), &range(16, 1 << 20)), (IoOp::Deallocate, 8192, 512 << 20));
    assert_eq!(serve(Command::deallocate(9, 1).dword(11, 1), &range(16, 8)).0, IoOp::Nothing, "a hint only");
}

#[test]
fn what_cannot_be_served_has_a_status() {
    let cases = [
        (Command::read(1, 1 << 21, 1), Status::OUT_OF_RANGE),
        (Command::read(1, u64::MAX, 2), Status::OUT_OF_RANGE),
        (Command::read(1, 0, 2).data(512, false), Status::DATA_LENGTH),
        (Command::read(1, 0, 4096), Status::INVALID_FIELD),
        (Command::read(1, 0, 1).dword(1, 2), Status::INVALID_NAMESPACE),
        (Command::write(1, 0, 1, true), Status::DATA_LENGTH),
        (Command::admin(0x05, 1, 1), Status::INVALID_OPCODE),
        (Command::deallocate(1, 2), Status::SIZE_LIMIT),
        (Command::deallocate(1, 1).data(16, false), Status::SGL_TYPE),
        (Command::connect(1, 1, 32, 0, true), Status::SEQUENCE),
        (Command::property_get(1, 0, true), Status::SEQUENCE),
    ];
    for (command, status) in cases {
        assert_eq!(refused(command, &[]), status, "{command:?}");
    }
    let mut fused = Command::read(1, 0, 1);
    fused.0[1] |= 1;
    assert_eq!(refused(fused, &[]), Status::FUSED_MISSING);
    let mut pages = Command::read(1, 0, 1);
    pages.0[1] = 0;
    assert_eq!(refused(pages, &[]), Status::INVALID_FIELD);
    let mut unknown = Command::read(1, 0, 1);
    unknown.0[39] = 0x40;
    assert_eq!(refused(unknown, &[]), Status::SGL_TYPE);
    let mut far = Command::write(1, 0, 1, true);
    far.0[24] = 4;
    assert_eq!(refused(far, &[0; 512]), Status::SGL_OFFSET);
    assert_eq!(refused(Command::deallocate(1, 1), &range(0, (1 << 22) + 1)), Status::SIZE_LIMIT);
    for change in [Command::write(1, 0, 1, false), Command::write_zeroes(1, 0, 1)] {
        let next = queue(PLAIN, true).next(&sent(change, PLAIN, &[])).expect("no fault");
        assert!(matches!(next, Next::Refuse { status: Status::WRITE_PROTECTED, .. }), "{next:?}");
    }
}

/// A write whose data are fetched, in several PDUs, with another command between them.
#[test]
fn data_of_a_write_are_asked_for() {
    for digests in [PLAIN, BOTH] {
        let (terms, replies) = open(digests, true);
        let mut queue = Queue::new(terms, NAMESPACE);
        let write = sent(Command::write(4, 0, 8, false), digests, &[]);
        let Ok(Next::Fetch { command, taken }) = queue.next(&write) else { panic!("it is to be fetched") };
        assert_eq!((command.length, taken), (4096, write.len()));
        let r2t = queue.fetch(4, 4096);
        let mut out = Vec::new();
        replies.ready_to_transfer(&mut out, r2t);
        let [ready] = &done(&out, digests)[..] else { panic!("one PDU") };
        assert_eq!(*ready, Heard::Ready { id: 4, tag: 0, offset: 0, length: 4096 });
        let data: Vec<u8> = (0..4096u32).map(|i| i as u8).collect();
        let mut pdus = Vec::new();
        ready.send_data(&mut pdus, digests, &data, 1500);
        let (mut at, mut got) = (0, Vec::new());
        while at < pdus.len() {
            let Ok(Next::Data { head }) = queue.next(&pdus[at..]) else { panic!("data") };
            let n = queue.data_left();
            let from = at + head;
            queue.took_data(n);
            let end = from + n + queue.trailer_bytes();
            assert!(queue.data_are_right(&pdus[from..from + n], &pdus[from + n..end]));
            got.extend_from_slice(&pdus[from..from + n]);
            at = end;
            let read = sent(Command::read(5, 0, 1), digests, &[]);
            assert!(matches!(queue.next(&read), Ok(Next::Serve { .. })), "commands may come between");
        }
        assert_eq!(got, data);
        queue.has_fetched();
        assert_eq!(queue.next(&pdus), Err(Fault::Range), "nothing is asked for any more");
    }
}

#[test]
fn data_that_were_not_asked_for_end_the_connection() {
    let ready = |id, tag, length| Heard::Ready { id, tag, offset: 0, length };
    let fault = |heard: Heard, change: fn(&mut Vec<u8>)| {
        let mut queue = queue(PLAIN, false);
        let _ = queue.fetch(4, 1024);
        let mut out = Vec::new();
        heard.send_data(&mut out, PLAIN, &[0; 4096], 4096);
        change(&mut out);
        queue.next(&out).expect_err("a fault")
    };
    assert_eq!(fault(ready(5, 0, 1024), |_| ()), Fault::Range, "another command's");
    assert_eq!(fault(ready(4, 1, 1024), |_| ()), Fault::Range, "another tag");
    assert_eq!(fault(ready(4, 0, 2048), |_| ()), Fault::Range, "too many");
    assert_eq!(fault(ready(4, 0, 512), |_| ()), Fault::Field(1), "the last, and not all");
    assert_eq!(fault(ready(4, 0, 1024), |out| out[12] = 4), Fault::Range, "not in order");
    assert_eq!(fault(ready(4, 0, 1024), |out| out[16] = 1), Fault::Field(16), "a length that isn't the PDU's");
}

#[test]
fn malformed_pdus_end_the_connection_and_say_why() {
    let read = sent(Command::read(1, 0, 1), BOTH, &[]);
    let fault = |change: fn(&mut Vec<u8>)| {
        let mut bytes = read.clone();
        change(&mut bytes);
        queue(BOTH, false).next(&bytes).expect_err("a fault")
    };
    assert_eq!(fault(|b| b[0] = 8), Fault::Field(0));
    assert_eq!(fault(|b| b[0] = 0), Fault::Sequence);
    assert_eq!(fault(|b| b[1] = 0), Fault::Field(1), "no header digest");
    assert_eq!(fault(|b| b[2] = 24), Fault::Field(2));
    assert_eq!(fault(|b| b[4] = 72), Fault::Field(4));
    assert_eq!(fault(|b| b[5] = 1), Fault::Field(3), "longer than its header, and data nowhere");
    assert_eq!(fault(|b| b[20] ^= 1), Fault::HeaderDigest);
    assert_eq!(fault(|b| b[72] ^= 1), Fault::HeaderDigest);
    assert_eq!(fault(|b| (b[1], b[3], b[6]) = (3, 76, 1)), Fault::Limit);
    let mut out = Vec::new();
    Fault::Field(2).tell(&mut out, &read);
    assert_eq!(out[..14], [3, 0, 24, 0, 24 + 76, 0, 0, 0, 1, 0, 2, 0, 0, 0]);
    assert_eq!(out[24..], read);
    out.clear();
    Fault::DataDigest.tell(&mut out, &read);
    assert!(out.is_empty());
}

#[test]
fn damaged_data_in_a_capsule_can_be_sent_again() {
    let mut bytes = sent(Command::write(1, 0, 1, true), BOTH, &[5; 512]);
    assert!(matches!(queue(BOTH, false).next(&bytes), Ok(Next::Serve { .. })));
    let last = bytes.len() - 5;
    bytes[last] ^= 1;
    let next = queue(BOTH, false).next(&bytes).expect("no fault");
    assert_eq!(next, Next::Refuse { id: 1, status: Status::TRANSPORT, taken: bytes.len() });
}

#[test]
fn a_host_that_ends_the_connection_is_heard() {
    let mut bytes = vec![2, 0, 24, 0, 24, 0, 0, 0, 1, 0];
    bytes.resize(24, 0);
    assert_eq!(queue(PLAIN, false).next(&bytes), Err(Fault::Host(1)));
}

/// A queue whose namespace is served elsewhere: each command ends with a status of the path, however its bytes are cut, and with its data.
#[test]
fn a_queue_of_an_inaccessible_namespace_refuses_each_command_and_goes_on() {
    for (digests, flow_control) in [(PLAIN, false), (BOTH, true)] {
        let (terms, replies) = open(digests, flow_control);
        let mut queue = AwayQueue::new(terms, replies, NAMESPACE);
        let bytes = [
            sent(Command::read(1, 0, 8), digests, &[]),
            sent(Command::write(2, 0, 8, true), digests, &[7; 4096]),
            sent(Command::write(3, 0, 256, false), digests, &[]),
            sent(Command::flush(4), digests, &[]),
            sent(Command::read(5, NAMESPACE.blocks, 1), digests, &[]),
        ]
        .concat();
        for piece in bytes.chunks(7) {
            let mut input = piece;
            while !input.is_empty() {
                queue.take(&mut input).expect("no fault");
            }
        }
        assert!(queue.is_between());
        let ends: Vec<_> = done(queue.output(), digests)
            .into_iter()
            .map(|heard| match heard {
                Heard::Done { id, status, head, .. } => (id, status, head),
                other => panic!("{other:?}"),
            })
            .collect();
        // Connect was the first.
        let head = |n: u16| if flow_control { n + 1 } else { 0xffff };
        let mut expected: Vec<_> = (1..=4).map(|n| (n, Status::INACCESSIBLE, head(n))).collect();
        expected.push((5, Status::OUT_OF_RANGE, head(5)));
        assert_eq!(ends, expected);
        // It goes on where it was.
        let mut out = Vec::new();
        queue.take(&mut &bytes[..3]).unwrap();
        assert!(!queue.is_between());
        queue.into_replies().complete(&mut out, 6, 0, Status::OK);
        assert!(matches!(done(&out, digests)[..], [Heard::Done { id: 6, head: at, .. }] if at == head(6)));
    }
}

/// Data that nobody asked for end the connection.
#[test]
fn a_queue_of_an_inaccessible_namespace_asks_for_no_data() {
    let (terms, replies) = open(PLAIN, false);
    let mut queue = AwayQueue::new(terms, replies, NAMESPACE);
    let ready = Heard::Ready { id: 1, tag: 0, offset: 0, length: 512 };
    let mut bytes = Vec::new();
    ready.send_data(&mut bytes, PLAIN, &[7; 512], 512);
    assert_eq!(queue.take(&mut &bytes[..]), Err(Fault::Sequence));
    assert!(!queue.output().is_empty(), "it is told why");
}
