//! Stories of the client's side, told in bytes written down from the specification.

use plimsoll_nbd::client::{ClientError, ClientEvent, ClientHandshake, Opened, Refused, Wishes};
use plimsoll_nbd::export::{BlockSizes, ListedExport};
use plimsoll_nbd::request::Request;
use plimsoll_nbd::transactions::{Reply, ReplyError, SubmitError, Transactions};
use plimsoll_nbd::wire::{Command, CommandFlags, ErrorCode, Extent, TransmissionFlags};

const GREETING: &[u8] = b"NBDMAGICIHAVEOPT\x00\x03";
const ACK: u32 = 1;
const ERR_UNSUP: u32 = 0x8000_0001;
const ERR_UNKNOWN: u32 = 0x8000_0006;
const SIZE_AND_FLAGS: &[u8] = b"\x00\x00\x00\x00\x00\x10\x00\x00\x00\x0d";

fn option(number: u32, data: &[u8]) -> Vec<u8> {
    [b"IHAVEOPT", &number.to_be_bytes()[..], &(data.len() as u32).to_be_bytes(), data].concat()
}

fn reply(number: u32, kind: u32, data: &[u8]) -> Vec<u8> {
    let magic = b"\x00\x03\xe8\x89\x04\x55\x65\xa9";
    [magic, &number.to_be_bytes()[..], &kind.to_be_bytes(), &(data.len() as u32).to_be_bytes(), data].concat()
}

fn go_web() -> Vec<u8> {
    option(7, b"\x00\x00\x00\x03web\x00\x03\x00\x01\x00\x02\x00\x03")
}

struct Client {
    machine: ClientHandshake,
}

impl Client {
    fn new(wishes: Wishes) -> Self {
        Self { machine: ClientHandshake::new(wishes) }
    }

    /// Feeds all of `bytes`; gives what the client sends for it.
    fn hears(&mut self, bytes: &[u8]) -> Vec<u8> {
        assert_eq!(self.machine.handle(bytes), bytes.len());
        let sent = self.machine.output().to_vec();
        self.machine.output_sent(sent.len());
        sent
    }

    fn event(&mut self) -> ClientEvent {
        self.machine.poll_event().expect("something happened")
    }

    fn opened(&mut self) -> Opened {
        match self.event() {
            ClientEvent::Transmission(opened) => *opened,
            other => panic!("not open: {other:?}"),
        }
    }
}

#[test]
fn a_full_server_is_asked_for_everything() {
    let mut client = Client::new(Wishes::open("web"));
    assert_eq!(client.hears(GREETING), [b"\x00\x00\x00\x03", &option(8, b"")[..]].concat());
    let set = b"\x00\x00\x00\x03web\x00\x00\x00\x01\x00\x00\x00\x0fbase:allocation";
    assert_eq!(client.hears(&reply(8, ACK, b"")), option(10, set));
    assert_eq!(client.hears(&reply(10, 4, b"\x00\x00\x00\x2abase:allocation")), b"");
    assert_eq!(client.hears(&reply(10, ACK, b"")), go_web());
    let told = [
        reply(7, 3, &[b"\x00\x00", SIZE_AND_FLAGS].concat()),
        reply(7, 3, b"\x00\x01web"),
        reply(7, 3, b"\x00\x63whatever"),
        reply(7, 3, b"\x00\x03\x00\x00\x02\x00\x00\x00\x10\x00\x00\x10\x00\x00"),
    ];
    assert_eq!(client.hears(&told.concat()), b"");
    let last = [reply(7, ACK, b""), b"\x66\x8e".to_vec()].concat();
    assert_eq!(client.machine.handle(&last), 20, "the first reply is not the handshake's");
    let expected = Opened {
        size_bytes: 1 << 20,
        flags: TransmissionFlags::HAS_FLAGS.with(TransmissionFlags::SEND_FLUSH).with(TransmissionFlags::SEND_FUA),
        block_sizes: Some(BlockSizes { minimum: 512, preferred: 4096, payload_max: 1 << 20 }),
        canonical_name: Some("web".into()),
        description: None,
        structured_replies: true,
        meta_contexts: vec![(42, "base:allocation".into())],
    };
    assert_eq!(client.opened(), expected);
}

#[test]
fn a_server_without_structured_replies_and_go_is_used_all_the_same() {
    let mut client = Client::new(Wishes::open("web"));
    client.hears(GREETING);
    assert_eq!(client.hears(&reply(8, ERR_UNSUP, b"what?")), go_web(), "no contexts without structured replies");
    assert_eq!(client.hears(&reply(7, ERR_UNSUP, b"")), option(1, b"web"));
    client.hears(SIZE_AND_FLAGS);
    let opened = client.opened();
    assert_eq!((opened.size_bytes, opened.structured_replies), (1 << 20, false));
}

#[test]
fn a_server_from_before_fixed_newstyle_gets_export_name_only() {
    let mut client = Client::new(Wishes::open("web"));
    let sent = client.hears(b"NBDMAGICIHAVEOPT\x00\x00");
    assert_eq!(sent, [b"\x00\x00\x00\x00", &option(1, b"web")[..]].concat());
    client.hears(&[SIZE_AND_FLAGS, &[0; 124]].concat());
    assert_eq!(client.opened().size_bytes, 1 << 20);

    let mut client = Client::new(Wishes { list: true, ..Wishes::open("web") });
    client.hears(b"NBDMAGICIHAVEOPT\x00\x00");
    assert_eq!(client.event(), ClientEvent::Failed(ClientError::NotFixedNewstyle));
}

#[test]
fn a_list_can_be_all_that_is_wished_for() {
    let mut client = Client::new(Wishes { export_name: None, list: true, ..Wishes::open("") });
    assert_eq!(client.hears(GREETING), [b"\x00\x00\x00\x03", &option(3, b"")[..]].concat());
    client.hears(&reply(3, 2, b"\x00\x00\x00\x03webshop"));
    assert_eq!(client.hears(&reply(3, ACK, b"")), option(2, b""));
    let web = ListedExport { name: "web".into(), description: "shop".into() };
    assert_eq!(client.event(), ClientEvent::Listed(Ok(vec![web])));
    client.hears(&reply(2, ACK, b""));
    assert_eq!(client.event(), ClientEvent::Ended);
}

#[test]
fn a_refusal_is_told_with_its_text_and_the_client_says_goodbye() {
    let mut client = Client::new(Wishes { structured_replies: false, ..Wishes::open("web") });
    assert_eq!(client.hears(GREETING), [b"\x00\x00\x00\x03", &go_web()[..]].concat());
    assert_eq!(client.hears(&reply(7, ERR_UNKNOWN, b"no such volume")), option(2, b""));
    let refused = Refused { option: 7, reply: ERR_UNKNOWN, text: "no such volume".into() };
    assert_eq!(client.event(), ClientEvent::Failed(ClientError::Refused(refused)));
}

#[test]
fn tls_comes_first_and_nothing_in_the_clear_after_it() {
    let wishes = Wishes { tls: true, structured_replies: false, ..Wishes::open("web") };
    let mut client = Client::new(wishes.clone());
    assert_eq!(client.hears(GREETING), [b"\x00\x00\x00\x03", &option(5, b"")[..]].concat());
    client.hears(&reply(5, ACK, b""));
    assert_eq!(client.event(), ClientEvent::StartTls);
    client.machine.tls_established();
    assert_eq!(client.machine.output(), go_web());

    let mut client = Client::new(wishes.clone());
    client.hears(GREETING);
    client.hears(&reply(5, ACK, b""));
    assert_eq!(client.event(), ClientEvent::StartTls);
    assert_eq!(client.machine.handle(b"x"), 0);
    assert_eq!(client.event(), ClientEvent::Failed(ClientError::Protocol("bytes in the clear after STARTTLS")));

    let mut client = Client::new(wishes);
    client.hears(GREETING);
    client.hears(&reply(5, 0x8000_0002, b""));
    assert!(matches!(client.event(), ClientEvent::Failed(ClientError::Refused(_))), "no fallback to the clear");
}

#[test]
fn a_server_that_breaks_the_protocol_is_left() {
    for bytes in [
        b"NBDMAGICNBDMAGIC\x00\x03".to_vec(),
        [GREETING, &reply(7, ACK, b"")[..]].concat(),
        [GREETING, &reply(8, 2, b"\x00\x00\x00\x00")].concat(),
        [GREETING, &reply(8, ERR_UNSUP, b""), &reply(7, ACK, b"")].concat(),
        [GREETING, &reply(8, ERR_UNSUP, b""), &reply(7, 3, b"\x00\x00\x01")].concat(),
        [
            GREETING,
            &reply(8, ERR_UNSUP, b""),
            &reply(7, 3, b"\x00\x03\x00\x00\x00\x03\x00\x00\x10\x00\x00\x10\x00\x00"),
        ]
        .concat(),
        [GREETING, b"\x00\x03\xe8\x89\x04\x55\x65\xa9\x00\x00\x00\x08\x00\x00\x00\x01\x7f\xff\xff\xff"].concat(),
    ] {
        let mut client = Client::new(Wishes::open("web"));
        client.machine.handle(&bytes);
        let event = client.event();
        assert!(matches!(event, ClientEvent::Failed(ClientError::Protocol(_))), "{bytes:02x?}: {event:?}");
    }
}

fn request(command: Command, cookie: u64, offset: u64, length: u32) -> Request {
    Request { command, flags: CommandFlags::EMPTY, cookie, offset, length }
}

fn in_flight(structured: bool, requests: &[Request]) -> Transactions {
    let mut transactions = Transactions::new(structured, vec![1]);
    let mut out = Vec::new();
    for request in requests {
        transactions.submit(&mut out, *request).expect("it is new");
    }
    assert_eq!(out.len(), 28 * requests.len());
    transactions
}

fn all<'a>(transactions: &mut Transactions, mut input: &'a [u8]) -> Result<Vec<Reply<'a>>, ReplyError> {
    let mut replies = Vec::new();
    while let Some(reply) = transactions.poll(&mut input)? {
        replies.push(reply);
    }
    assert!(input.is_empty());
    Ok(replies)
}

#[test]
fn a_request_is_written_as_the_specification_says() {
    let mut transactions = Transactions::new(true, vec![]);
    let mut out = Vec::new();
    let read = request(Command::Read, 0x4142_4344_4546_4748, 0x1_0000, 512);
    transactions.submit(&mut out, read).expect("it is new");
    assert_eq!(out, b"\x25\x60\x95\x13\x00\x00\x00\x00ABCDEFGH\x00\x00\x00\x00\x00\x01\x00\x00\x00\x00\x02\x00");
    assert_eq!(transactions.submit(&mut out, read), Err(SubmitError::CookieInUse));
    assert_eq!(transactions.submit(&mut out, request(Command::Read, 9, 0, 0)), Err(SubmitError::EmptyRead));
    assert_eq!((out.len(), transactions.in_flight()), (28, 1));
}

#[test]
fn simple_replies_come_in_any_order() {
    let requests =
        [request(Command::Read, 1, 100, 4), request(Command::Write, 2, 0, 9), request(Command::Read, 3, 0, 4)];
    let mut transactions = in_flight(false, &requests);
    let bytes = b"\x67\x44\x66\x98\0\0\0\0\0\0\0\0\0\0\0\x02\
        \x67\x44\x66\x98\0\0\0\x05\0\0\0\0\0\0\0\x03\
        \x67\x44\x66\x98\0\0\0\0\0\0\0\0\0\0\0\x01data";
    let expected = [
        Reply::Done { cookie: 2 },
        Reply::Error { cookie: 3, code: ErrorCode::Io, message: String::new(), offset: None },
        Reply::Done { cookie: 3 },
        Reply::Data { cookie: 1, offset: 100, bytes: b"data" },
        Reply::Done { cookie: 1 },
    ];
    assert_eq!(all(&mut transactions, bytes).as_deref(), Ok(&expected[..]));
    assert_eq!(transactions.in_flight(), 0);
}

/// A chunk of cookie 1.
fn chunk(last: bool, kind: u16, payload: &[u8]) -> Vec<u8> {
    let flags = u16::from(last).to_be_bytes();
    let head = [b"\x66\x8e\x33\xef", &flags[..], &kind.to_be_bytes(), b"\0\0\0\0\0\0\0\x01"].concat();
    [&head[..], &(payload.len() as u32).to_be_bytes(), payload].concat()
}

#[test]
fn chunks_make_up_a_read() {
    let mut transactions = in_flight(true, &[request(Command::Read, 1, 0x1000, 8)]);
    let bytes = [
        chunk(false, 1, b"\0\0\0\0\0\0\x10\x06xy"),
        chunk(false, 2, b"\0\0\0\0\0\0\x10\x00\0\0\0\x06"),
        chunk(true, 0, b""),
    ]
    .concat();
    let expected = [
        Reply::Data { cookie: 1, offset: 0x1006, bytes: b"xy" },
        Reply::Hole { cookie: 1, offset: 0x1000, length: 6 },
        Reply::Done { cookie: 1 },
    ];
    assert_eq!(all(&mut transactions, &bytes).as_deref(), Ok(&expected[..]));
}

#[test]
fn an_error_chunk_brings_its_message() {
    let mut transactions = in_flight(true, &[request(Command::Read, 1, 0x1000, 8)]);
    let bytes = chunk(true, 0x8002, b"\0\0\0\x05\0\x04disk\0\0\0\0\0\0\x10\x04");
    let expected = [
        Reply::Error { cookie: 1, code: ErrorCode::Io, message: "disk".into(), offset: Some(0x1004) },
        Reply::Done { cookie: 1 },
    ];
    assert_eq!(all(&mut transactions, &bytes).as_deref(), Ok(&expected[..]));

    let mut transactions = in_flight(true, &[request(Command::Flush, 1, 0, 0)]);
    let unknown = chunk(true, 0x8077, b"\0\0\x04\x00\0\x00whatever else");
    let expected = [
        Reply::Error { cookie: 1, code: ErrorCode::Invalid, message: String::new(), offset: None },
        Reply::Done { cookie: 1 },
    ];
    assert_eq!(all(&mut transactions, &unknown).as_deref(), Ok(&expected[..]));
}

#[test]
fn a_block_status_lists_extents() {
    let mut transactions = in_flight(true, &[request(Command::BlockStatus, 1, 0, 8192)]);
    let bytes = chunk(true, 5, b"\0\0\0\x01\0\0\x10\0\0\0\0\0\0\x01\0\0\0\0\0\x03");
    let extents = vec![Extent { length: 4096, status: 0 }, Extent { length: 65536, status: 3 }];
    let expected = [Reply::Status { cookie: 1, context_id: 1, extents }, Reply::Done { cookie: 1 }];
    assert_eq!(all(&mut transactions, &bytes).as_deref(), Ok(&expected[..]));
}

#[test]
fn replies_that_break_the_rules_end_the_connection() {
    let read = request(Command::Read, 1, 0x1000, 8);
    let whole = Request { flags: CommandFlags::DF, ..read };
    let status = request(Command::BlockStatus, 1, 0, 8192);
    let one = Request { flags: CommandFlags::REQ_ONE, ..status };
    let simple = b"\x67\x44\x66\x98\0\0\0\0\0\0\0\0\0\0\0\x01".to_vec();
    let half = chunk(false, 1, b"\0\0\0\0\0\0\x10\x00half");
    let extents = |lengths: &[u32]| {
        let mut payload = b"\0\0\0\x01".to_vec();
        for length in lengths {
            payload.extend(length.to_be_bytes());
            payload.extend([0; 4]);
        }
        payload
    };
    use ReplyError as E;
    let cases = [
        (read, b"\x66\x8e\x33\xee".to_vec(), E::BadMagic(0x668e_33ee)),
        (read, simple.clone(), E::WrongKind(1)),
        (Request { cookie: 2, ..read }, chunk(true, 0, b""), E::UnknownCookie(1)),
        (read, chunk(true, 3, b""), E::UnexpectedChunk(1, 3)),
        (read, chunk(true, 5, &extents(&[8192])), E::UnexpectedChunk(1, 5)),
        (read, chunk(false, 0, b""), E::BadLength(1, 0)),
        (read, chunk(true, 1, b"\0\0\0\0\0\0\x10\x00"), E::BadLength(1, 8)),
        (read, chunk(true, 0x8001, b"\0\0\0\x05\0\x01"), E::BadLength(1, 6)),
        (read, chunk(true, 0x8001, b"\0\0\0\x00\0\x00"), E::BadLength(1, 6)),
        (read, chunk(true, 0x8002, b"\0\0\0\x05\0\x00\0\0\0\0\0\0\x10\x08"), E::BadRange(1)),
        (read, chunk(true, 1, b"\0\0\0\0\0\0\x10\x04fives"), E::BadRange(1)),
        (read, chunk(true, 1, b"\0\0\0\0\0\0\x0f\xfffive"), E::BadRange(1)),
        (read, chunk(true, 2, b"\xff\xff\xff\xff\xff\xff\xff\xff\0\0\0\x02"), E::BadRange(1)),
        (read, chunk(true, 2, b"\0\0\0\0\0\0\x10\x00\0\0\0\x00"), E::BadRange(1)),
        (read, [half.clone(), half.clone()].concat(), E::BadRange(1)),
        (read, [half.clone(), chunk(true, 0, b"")].concat(), E::Incomplete(1)),
        (whole, [half, chunk(true, 1, b"\0\0\0\0\0\0\x10\x04half")].concat(), E::Fragmented(1)),
        (status, simple, E::Incomplete(1)),
        (status, chunk(true, 0, b""), E::Incomplete(1)),
        (status, chunk(true, 5, &extents(&[])), E::BadLength(1, 4)),
        (status, chunk(true, 5, &extents(&[0])), E::BadExtents(1)),
        (status, chunk(true, 5, &extents(&[8192, 1])), E::BadExtents(1)),
        (status, [chunk(false, 5, &extents(&[1])), chunk(true, 5, &extents(&[1]))].concat(), E::BadExtents(1)),
        (status, chunk(true, 5, b"\0\0\0\x02\0\0\x10\0\0\0\0\0"), E::BadExtents(1)),
        (one, chunk(true, 5, &extents(&[4096, 1])), E::BadExtents(1)),
        (one, chunk(true, 5, &extents(&[8193])), E::BadExtents(1)),
    ];
    for (request, bytes, error) in cases {
        let mut transactions = in_flight(true, &[request]);
        assert_eq!(all(&mut transactions, &bytes), Err(error), "{bytes:02x?}");
        assert_eq!(transactions.poll(&mut &b"\x67"[..]), Err(error), "for ever");
    }
    let mut simple_only = in_flight(false, &[read]);
    assert_eq!(all(&mut simple_only, &chunk(true, 0, b"")), Err(E::WrongKind(1)));
}

/// Two Plimsolls: notes before the data, before a refusal, and as a probe's answer; without the context they are an error.
#[test]
fn notes_are_told_where_their_context_was_chosen() {
    use plimsoll_nbd::promise;
    use plimsoll_nbd::reply::{self as server, Last};
    use plimsoll_nbd::wire::{MetaContext, NoteKind};
    let id = MetaContext::Promise.id();
    let read = Request { command: Command::Read, flags: CommandFlags::EMPTY, cookie: 5, offset: 0, length: 4 };
    let probe = Request { command: Command::BlockStatus, cookie: 6, length: 512, ..read };
    let told = [(NoteKind::InFlight, 3), (NoteKind::ServiceUs, 70_000)];
    let mut wire = Vec::new();
    promise::notes(&mut wire, 5, id, &told, Last::No);
    server::offset_data(&mut wire, 5, 0, 4, Last::Yes);
    wire.extend(b"data");
    promise::notes(&mut wire, 6, id, &told, Last::Yes);
    // A kind that this version doesn't know is passed over.
    let unknown = wire.len() - 16;
    wire[unknown..unknown + 4].copy_from_slice(&999u32.to_be_bytes());

    let mut transactions = Transactions::new(true, vec![id]).with_promises(id);
    for request in [read, probe] {
        transactions.submit(&mut Vec::new(), request).unwrap();
    }
    let mut input = &wire[..];
    let mut seen = Vec::new();
    while let Some(reply) = transactions.poll(&mut input).unwrap() {
        seen.push(reply);
    }
    assert_eq!(
        seen,
        [
            Reply::Notes { cookie: 5, notes: told.to_vec() },
            Reply::Data { cookie: 5, offset: 0, bytes: b"data" },
            Reply::Done { cookie: 5 },
            Reply::Notes { cookie: 6, notes: told[1..].to_vec() },
            Reply::Done { cookie: 6 },
        ]
    );
    let mut strangers = Transactions::new(true, vec![id]);
    strangers.submit(&mut Vec::new(), read).unwrap();
    assert!(strangers.poll(&mut &wire[..]).is_err());
}
