//! Stories of negotiations, each told in bytes written down from the specification.

use plimsoll_nbd::export::{BlockSizes, ExportInfo, ListedExport, Refusal, RefusalReason};
use plimsoll_nbd::handshake::{
    Closed, Event, Negotiated, OPTION_BYTES_MAX, OPTION_SKIP_BYTES_MAX, OPTIONS_MAX, ServerHandshake, TlsMode,
};
use plimsoll_nbd::wire::{MetaContext, MetaContexts, TransmissionFlags};

const GREETING: &[u8] = b"NBDMAGICIHAVEOPT\x00\x03";
const FIXED_NO_ZEROES: &[u8] = b"\x00\x00\x00\x03";
const REPLY_MAGIC: &[u8] = b"\x00\x03\xe8\x89\x04\x55\x65\xa9";

const GO: u32 = 7;
const ACK: u32 = 1;
const ERR_UNSUP: u32 = 0x8000_0001;
const ERR_POLICY: u32 = 0x8000_0002;
const ERR_INVALID: u32 = 0x8000_0003;
const ERR_TLS_REQD: u32 = 0x8000_0005;
const ERR_UNKNOWN: u32 = 0x8000_0006;
const ERR_SHUTDOWN: u32 = 0x8000_0007;
const ERR_TOO_BIG: u32 = 0x8000_0009;

fn option(number: u32, data: &[u8]) -> Vec<u8> {
    [b"IHAVEOPT", &number.to_be_bytes()[..], &(data.len() as u32).to_be_bytes(), data].concat()
}

fn reply(number: u32, kind: u32, data: &[u8]) -> Vec<u8> {
    [REPLY_MAGIC, &number.to_be_bytes(), &kind.to_be_bytes(), &(data.len() as u32).to_be_bytes(), data].concat()
}

/// A 1 MiB export with every feature; its flags on the wire are 0x0dfd with DF and 0x0d7d without.
fn web() -> ExportInfo {
    use TransmissionFlags as F;
    ExportInfo {
        size_bytes: 1 << 20,
        flags: [
            F::SEND_FLUSH,
            F::SEND_FUA,
            F::ROTATIONAL,
            F::SEND_TRIM,
            F::SEND_WRITE_ZEROES,
            F::SEND_DF,
            F::CAN_MULTI_CONN,
            F::SEND_CACHE,
            F::SEND_FAST_ZERO,
        ]
        .into_iter()
        .fold(F::EMPTY, F::with),
        block_sizes: BlockSizes::default(),
        canonical_name: "web".into(),
        description: "shop".into(),
        meta_contexts: MetaContexts::EMPTY.with(MetaContext::Allocation),
    }
}

/// A server over which the test plays both the socket and the driver.
struct Server {
    machine: ServerHandshake,
}

impl Server {
    fn new(tls: TlsMode) -> Self {
        let mut server = Self { machine: ServerHandshake::new(tls) };
        assert_eq!(server.sent(), GREETING);
        server
    }

    /// A client that has sent its flags: fixed newstyle, no zeroes.
    fn greeted(tls: TlsMode) -> Self {
        let mut server = Self::new(tls);
        server.takes(FIXED_NO_ZEROES);
        server
    }

    fn takes(&mut self, bytes: &[u8]) {
        assert_eq!(self.machine.handle(bytes), bytes.len());
    }

    fn sent(&mut self) -> Vec<u8> {
        let bytes = self.machine.output().to_vec();
        self.machine.output_sent(bytes.len());
        bytes
    }

    /// Sends an option that needs no driver; gives the answer's type.
    fn answer_to(&mut self, number: u32, data: &[u8]) -> u32 {
        self.takes(&option(number, data));
        assert_eq!(self.machine.poll_event(), None);
        let answer = self.sent();
        assert_eq!(answer[..8], *REPLY_MAGIC);
        assert_eq!(answer[8..12], number.to_be_bytes());
        assert_eq!(answer.len(), 20 + u32::from_be_bytes(answer[16..20].try_into().unwrap()) as usize, "one answer");
        u32::from_be_bytes(answer[12..16].try_into().unwrap())
    }

    fn asks_for(&mut self, name: &str, opens: bool) {
        assert_eq!(self.machine.poll_event(), Some(Event::LookUpExport { name: name.into(), opens }));
    }

    fn negotiated(&mut self) -> Negotiated {
        match self.machine.poll_event() {
            Some(Event::Transmission(negotiated)) => *negotiated,
            other => panic!("transmission does not begin: {other:?}"),
        }
    }

    fn closed(&mut self) -> Closed {
        match self.machine.poll_event() {
            Some(Event::Closed(reason)) => reason,
            other => panic!("the connection is not closed: {other:?}"),
        }
    }
}

#[test]
fn go_describes_the_export_and_enters_transmission() {
    let mut server = Server::greeted(TlsMode::Off);
    server.takes(b"IHAVEOPT\x00\x00\x00\x08\x00\x00\x00\x00");
    assert_eq!(server.sent(), b"\x00\x03\xe8\x89\x04\x55\x65\xa9\x00\x00\x00\x08\x00\x00\x00\x01\x00\x00\x00\x00");

    // GO "web?deadline=20ms", wanting NAME, DESCRIPTION and BLOCK_SIZE.
    let go =
        b"IHAVEOPT\x00\x00\x00\x07\x00\x00\x00\x1d\x00\x00\x00\x11web?deadline=20ms\x00\x03\x00\x01\x00\x02\x00\x03";
    let first_request = [0x25, 0x60];
    let both = [&go[..], &first_request].concat();
    assert_eq!(server.machine.handle(&both), go.len(), "the request is not the handshake's");
    server.asks_for("web?deadline=20ms", true);
    server.machine.answer_export(Ok(web()));

    let expected = [
        reply(GO, 3, b"\x00\x00\x00\x00\x00\x00\x00\x10\x00\x00\x0d\xfd"),
        reply(GO, 3, b"\x00\x01web"),
        reply(GO, 3, b"\x00\x02shop"),
        reply(GO, 3, b"\x00\x03\x00\x00\x00\x01\x00\x00\x10\x00\x02\x00\x00\x00"),
        reply(GO, ACK, b""),
    ]
    .concat();
    assert_eq!(server.sent(), expected);
    let negotiated = server.negotiated();
    assert_eq!(negotiated.export_name, "web?deadline=20ms");
    assert!(negotiated.structured_replies && negotiated.block_sizes_told && negotiated.no_zeroes && !negotiated.tls);
    assert!(negotiated.meta_contexts.is_empty() && !negotiated.rules().block_status);
    assert_eq!(server.machine.handle(&first_request), 0, "the handshake is over");
}

#[test]
fn info_describes_without_opening() {
    let mut server = Server::greeted(TlsMode::Off);
    server.takes(&option(6, b"\x00\x00\x00\x00\x00\x00"));
    server.asks_for("", false);
    server.machine.answer_export(Ok(web()));
    let without_df = b"\x00\x00\x00\x00\x00\x00\x00\x10\x00\x00\x0d\x7d";
    assert_eq!(server.sent(), [reply(6, 3, without_df), reply(6, ACK, b"")].concat());
    assert_eq!(server.answer_to(8, b""), ACK, "the haggling goes on");
}

#[test]
fn export_name_answers_with_or_without_the_zeroes() {
    for (flags, zeroes) in [(3u32, 0), (1, 124), (0, 124)] {
        let mut server = Server::new(TlsMode::Off);
        server.takes(&flags.to_be_bytes());
        server.takes(&option(1, b"web"));
        server.asks_for("web", true);
        server.machine.answer_export(Ok(web()));
        let expected = [&b"\x00\x00\x00\x00\x00\x10\x00\x00\x0d\x7d"[..], &vec![0; zeroes]].concat();
        assert_eq!(server.sent(), expected);
        let negotiated = server.negotiated();
        assert_eq!((negotiated.no_zeroes, negotiated.structured_replies), (zeroes == 0, false));
    }
}

#[test]
fn export_name_that_is_refused_closes_without_a_word() {
    let mut server = Server::greeted(TlsMode::Off);
    server.takes(&option(1, b"nope"));
    server.asks_for("nope", true);
    server.machine.answer_export(Err(Refusal::new(RefusalReason::Unknown, "no such volume")));
    assert_eq!(server.sent(), b"");
    assert_eq!(server.closed(), Closed::ExportNameRefused);
}

#[test]
fn export_names_that_are_none_close_too() {
    for name in [&[0xff][..], b"a\0b", &[b'a'; 4097]] {
        let mut server = Server::greeted(TlsMode::Off);
        server.machine.handle(&option(1, name));
        assert_eq!(server.closed(), Closed::ExportNameRefused);
    }
}

#[test]
fn refusals_have_their_reply_and_text() {
    use RefusalReason as R;
    for (reason, kind) in [
        (R::Unknown, ERR_UNKNOWN),
        (R::Unavailable, ERR_UNKNOWN),
        (R::Forbidden, ERR_POLICY),
        (R::TlsRequired, ERR_TLS_REQD),
        (R::ShuttingDown, ERR_SHUTDOWN),
    ] {
        let mut server = Server::greeted(TlsMode::Optional);
        server.takes(&option(GO, b"\x00\x00\x00\x03web\x00\x00"));
        server.asks_for("web", true);
        server.machine.answer_export(Err(Refusal::new(reason, "not you")));
        assert_eq!(server.sent(), reply(GO, kind, b"not you"));
        assert_eq!(server.answer_to(8, b""), ACK, "a refusal does not end the haggling");
    }
}

#[test]
fn list_names_the_exports() {
    let mut server = Server::greeted(TlsMode::Off);
    server.takes(&option(3, b""));
    assert_eq!(server.machine.handle(&option(3, b"")), 0, "nothing is taken before the driver answered");
    assert_eq!(server.machine.poll_event(), Some(Event::ListExports));
    let exports = [
        ListedExport { name: "web".into(), description: "shop".into() },
        ListedExport { name: "archive".into(), description: String::new() },
    ];
    server.machine.answer_list(Ok(&exports));
    let expected =
        [reply(3, 2, b"\x00\x00\x00\x03webshop"), reply(3, 2, b"\x00\x00\x00\x07archive"), reply(3, ACK, b"")];
    assert_eq!(server.sent(), expected.concat());

    server.takes(&option(3, b""));
    assert_eq!(server.machine.poll_event(), Some(Event::ListExports));
    server.machine.answer_list(Err(Refusal::new(RefusalReason::Forbidden, "")));
    assert_eq!(server.sent(), reply(3, ERR_POLICY, b""));
}

#[test]
fn abort_is_acknowledged_whatever_data_it_has() {
    let mut server = Server::greeted(TlsMode::Off);
    server.takes(&option(2, b"bye"));
    assert_eq!(server.sent(), reply(2, ACK, b""));
    assert_eq!(server.closed(), Closed::Aborted);
}

#[test]
fn what_is_wrong_inside_an_option_is_an_answer_and_not_the_end() {
    let mut server = Server::greeted(TlsMode::Off);
    assert_eq!(server.answer_to(11, b""), ERR_UNSUP, "EXTENDED_HEADERS");
    assert_eq!(server.answer_to(4, &vec![7; OPTION_BYTES_MAX + 1]), ERR_UNSUP, "withdrawn, and long");
    assert_eq!(server.answer_to(3, b"x"), ERR_INVALID, "LIST has no data");
    assert_eq!(server.answer_to(8, b"x"), ERR_INVALID, "neither has STRUCTURED_REPLY");
    assert_eq!(server.answer_to(5, b"x"), ERR_INVALID, "nor STARTTLS");
    assert_eq!(server.answer_to(GO, b""), ERR_INVALID, "GO without a name");
    assert_eq!(server.answer_to(GO, b"\x00\x00\x00\x09web\x00\x00"), ERR_INVALID, "the name is longer than the data");
    assert_eq!(server.answer_to(GO, b"\x00\x00\x00\x03web\x00\x02\x00\x03"), ERR_INVALID, "a request is missing");
    assert_eq!(server.answer_to(6, b"\x00\x00\x00\x03web\x00\x00\x00"), ERR_INVALID, "one byte too many");
    assert_eq!(server.answer_to(GO, &vec![0; OPTION_BYTES_MAX + 1]), ERR_TOO_BIG);
    assert_eq!(server.answer_to(9, b"\x00\x00\x00\x00\x00\x00\x00\x00"), ERR_INVALID, "before structured replies");
    assert_eq!(server.answer_to(8, b""), ACK);
    assert_eq!(server.answer_to(10, b"\x00\x00\x00\x00\x00\x00\x00\x01"), ERR_INVALID, "a query is missing");
    assert_eq!(server.answer_to(10, b"\0\0\0\0\0\0\0\x01\0\0\0\x04base"), ERR_INVALID, "no colon");
}

#[test]
fn what_breaks_the_framing_closes() {
    let mut server = Server::new(TlsMode::Off);
    server.takes(b"\x00\x00\x00\x07");
    assert_eq!(server.closed(), Closed::UnknownClientFlags(7));

    let mut server = Server::greeted(TlsMode::Off);
    server.takes(b"IHAVEOPS\x00\x00\x00\x03\x00\x00\x00\x00");
    assert_eq!(server.closed(), Closed::BadOptionMagic(u64::from_be_bytes(*b"IHAVEOPS")));

    let mut server = Server::greeted(TlsMode::Off);
    let length = OPTION_SKIP_BYTES_MAX + 1;
    server.takes(&[b"IHAVEOPT\x00\x00\x00\x07", &length.to_be_bytes()[..]].concat());
    assert_eq!(server.closed(), Closed::OptionTooLong(length));

    let mut server = Server::new(TlsMode::Off);
    server.takes(b"\x00\x00\x00\x02");
    server.takes(&option(3, b""));
    assert_eq!(server.closed(), Closed::NotFixedNewstyle(3));
}

#[test]
fn options_are_counted() {
    let mut server = Server::greeted(TlsMode::Off);
    for _ in 0..OPTIONS_MAX {
        assert_eq!(server.answer_to(8, b""), ACK);
    }
    server.takes(&option(8, b""));
    assert_eq!(server.closed(), Closed::TooManyOptions);
}

/// A SET_META_CONTEXT or LIST_META_CONTEXT of one query for the export `name`.
fn meta(number: u32, name: &str, query: &str) -> Vec<u8> {
    let data = [
        &(name.len() as u32).to_be_bytes()[..],
        name.as_bytes(),
        b"\x00\x00\x00\x01",
        &(query.len() as u32).to_be_bytes(),
        query.as_bytes(),
    ];
    option(number, &data.concat())
}

fn go(name: &str) -> Vec<u8> {
    option(GO, &[&(name.len() as u32).to_be_bytes()[..], name.as_bytes(), b"\x00\x00"].concat())
}

#[test]
fn contexts_are_chosen_for_one_export_name() {
    for (opened, chosen) in [("web", true), ("web?deadline=20ms", false)] {
        let mut server = Server::greeted(TlsMode::Off);
        assert_eq!(server.answer_to(8, b""), ACK);
        server.takes(&meta(10, "web", "base:allocation"));
        server.asks_for("web", false);
        server.machine.answer_export(Ok(web()));
        let expected = [reply(10, 4, b"\x00\x00\x00\x01base:allocation"), reply(10, ACK, b"")].concat();
        assert_eq!(server.sent(), expected);
        server.takes(&go(opened));
        server.asks_for(opened, true);
        server.machine.answer_export(Ok(web()));
        let negotiated = server.negotiated();
        assert_eq!(negotiated.meta_contexts.contains(MetaContext::Allocation), chosen);
        assert_eq!(negotiated.rules().block_status, chosen);
    }
}

#[test]
fn the_last_choice_counts_even_if_it_failed() {
    // Refused by the driver, malformed, too long, and without a query that matches.
    let failures = [
        meta(10, "other", "base:allocation"),
        option(10, b"\xff"),
        option(10, &vec![0; OPTION_BYTES_MAX + 1]),
        meta(10, "web", "base:"),
    ];
    for failure in failures {
        let mut server = Server::greeted(TlsMode::Off);
        assert_eq!(server.answer_to(8, b""), ACK);
        for bytes in [meta(10, "web", "base:allocation"), failure, go("web")] {
            server.takes(&bytes);
            match server.machine.poll_event() {
                Some(Event::LookUpExport { name, .. }) if name == "web" => server.machine.answer_export(Ok(web())),
                Some(_) => server.machine.answer_export(Err(Refusal::new(RefusalReason::Unknown, ""))),
                None => {}
            }
            server.sent();
        }
        assert!(server.negotiated().meta_contexts.is_empty());
    }
}

#[test]
fn the_predicted_wait_is_offered_where_the_driver_says_so() {
    let contexts = MetaContexts::EMPTY.with(MetaContext::Allocation).with(MetaContext::Promise);
    let both = ExportInfo { meta_contexts: contexts, ..web() };
    for (export, query, expected) in [
        (both.clone(), "x-plimsoll:", vec![&b"\0\0\0\0x-plimsoll:promise"[..]]),
        (both, "base:", vec![b"\0\0\0\0base:allocation"]),
        (web(), "x-plimsoll:", vec![]),
        (web(), "qemu:dirty-bitmap:b", vec![]),
    ] {
        let mut server = Server::greeted(TlsMode::Off);
        assert_eq!(server.answer_to(8, b""), ACK);
        server.takes(&meta(9, "web", query));
        server.asks_for("web", false);
        server.machine.answer_export(Ok(export));
        let mut bytes: Vec<u8> = expected.into_iter().flat_map(|data| reply(9, 4, data)).collect();
        bytes.extend(reply(9, ACK, b""));
        assert_eq!(server.sent(), bytes);
    }
}

#[test]
fn required_tls_serves_nothing_before_it_and_everything_after() {
    let mut server = Server::greeted(TlsMode::Required);
    for number in [3, 6, GO, 8, 9, 10, 77] {
        assert_eq!(server.answer_to(number, b"whatever"), ERR_TLS_REQD);
    }
    server.takes(&option(5, b""));
    assert_eq!(server.machine.poll_event(), Some(Event::StartTls));
    assert_eq!(server.sent(), reply(5, ACK, b""));
    server.machine.tls_established();

    assert_eq!(server.answer_to(5, b""), ERR_INVALID, "TLS in TLS");
    server.takes(&go("web"));
    server.asks_for("web", true);
    server.machine.answer_export(Err(Refusal::new(RefusalReason::TlsRequired, "")));
    assert_eq!(server.sent(), reply(GO, ERR_POLICY, b""), "TLS_REQD is not said inside TLS");
    server.takes(&go("web"));
    server.asks_for("web", true);
    server.machine.answer_export(Ok(web()));
    assert!(server.negotiated().tls);
}

#[test]
fn required_tls_closes_on_export_name_and_still_lets_a_client_abort() {
    let mut server = Server::greeted(TlsMode::Required);
    server.machine.handle(&option(1, b"web"));
    assert_eq!(server.closed(), Closed::TlsRequired);

    let mut server = Server::greeted(TlsMode::Required);
    server.takes(&option(2, b""));
    assert_eq!(server.closed(), Closed::Aborted);
}

#[test]
fn without_tls_starttls_is_refused() {
    let mut server = Server::greeted(TlsMode::Off);
    assert_eq!(server.answer_to(5, b""), ERR_POLICY);
}

#[test]
fn what_was_negotiated_in_the_clear_is_forgotten_inside_tls() {
    let mut server = Server::greeted(TlsMode::Optional);
    assert_eq!(server.answer_to(8, b""), ACK);
    server.takes(&meta(10, "web", "base:allocation"));
    server.asks_for("web", false);
    server.machine.answer_export(Ok(web()));
    server.takes(&option(5, b""));
    assert_eq!(server.machine.poll_event(), Some(Event::StartTls));
    server.sent();
    server.machine.tls_established();
    server.takes(&go("web"));
    server.asks_for("web", true);
    server.machine.answer_export(Ok(web()));
    let negotiated = server.negotiated();
    assert!(!negotiated.structured_replies && negotiated.meta_contexts.is_empty());
    assert!(!negotiated.flags.contains(TransmissionFlags::SEND_DF));
}

#[test]
fn bytes_smuggled_in_before_tls_close_the_connection() {
    // In one piece with STARTTLS, and in the next one.
    let mut server = Server::greeted(TlsMode::Optional);
    let smuggled = [option(5, b""), go("web")].concat();
    assert_eq!(server.machine.handle(&smuggled), 16);
    assert_eq!(server.closed(), Closed::PlaintextAfterStartTls);
    assert_eq!(server.machine.handle(&go("web")), 0);

    let mut server = Server::greeted(TlsMode::Optional);
    server.takes(&option(5, b""));
    assert_eq!(server.machine.poll_event(), Some(Event::StartTls));
    assert_eq!(server.machine.handle(b"I"), 0);
    assert_eq!(server.closed(), Closed::PlaintextAfterStartTls);
}

#[test]
fn a_client_that_does_not_read_is_not_listened_to() {
    let mut server = Server::greeted(TlsMode::Off);
    server.takes(&option(3, b""));
    assert_eq!(server.machine.poll_event(), Some(Event::ListExports));
    let exports = vec![ListedExport { name: "x".repeat(4000), description: String::new() }; 20];
    server.machine.answer_list(Ok(&exports));
    assert_eq!(server.machine.handle(&option(3, b"")), 0);
    server.sent();
    server.takes(&option(3, b""));
}
