//! Our server and our client talk to each other, their bytes cut anywhere: whatever the cuts, both end up with
//! what they would have agreed on in one piece.

use plimsoll_nbd::client::{ClientEvent, ClientHandshake, Opened, Wishes};
use plimsoll_nbd::export::{BlockSizes, ExportInfo, ListedExport, Refusal, RefusalReason};
use plimsoll_nbd::handshake::{Event, Negotiated, ServerHandshake, TlsMode};
use plimsoll_nbd::reply::{self, Last, Replies};
use plimsoll_nbd::request::{Incoming, Request, Rules};
use plimsoll_nbd::transactions::{Reply, Transactions};
use plimsoll_nbd::wire::{
    Command, CommandFlags, ErrorCode, Extent, MetaContext, MetaContexts, REQUEST_BYTES, TransmissionFlags,
};
use proptest::prelude::*;

const SIZE_BYTES: u64 = 1 << 20;

fn export(offered: MetaContexts) -> ExportInfo {
    use TransmissionFlags as F;
    ExportInfo {
        size_bytes: SIZE_BYTES,
        flags: [F::SEND_FLUSH, F::SEND_FUA, F::SEND_TRIM, F::SEND_WRITE_ZEROES, F::SEND_DF, F::SEND_FAST_ZERO]
            .into_iter()
            .fold(F::EMPTY, F::with),
        block_sizes: BlockSizes { minimum: 1, preferred: 4096, payload_max: 1 << 25 },
        canonical_name: "web".into(),
        description: "shop".into(),
        meta_contexts: offered,
    }
}

/// Lengths of the pieces that the bytes between the two are cut into, over and over.
fn cuts() -> impl Strategy<Value = Vec<usize>> {
    prop::collection::vec(1usize..40, 1..8)
}

/// Bytes on their way, given out in pieces.
struct Pipe<'a> {
    bytes: Vec<u8>,
    cuts: std::iter::Cycle<std::slice::Iter<'a, usize>>,
}

impl<'a> Pipe<'a> {
    fn new(cuts: &'a [usize]) -> Self {
        Self { bytes: Vec::new(), cuts: cuts.iter().cycle() }
    }

    /// Offers the next piece to `take`, which says how much of it it took.
    fn offer(&mut self, take: impl FnOnce(&[u8]) -> usize) {
        let length = self.bytes.len().min(*self.cuts.next().expect("there is a cut"));
        let taken = take(&self.bytes[..length]);
        self.bytes.drain(..taken);
    }
}

#[derive(Debug, Default, PartialEq)]
struct Agreement {
    server: Option<Negotiated>,
    client: Option<Opened>,
    listed: Option<usize>,
    failed: Option<String>,
}

fn talk(wishes: Wishes, tls: TlsMode, offered: MetaContexts, cuts: &[usize]) -> Agreement {
    let (mut server, mut client) = (ServerHandshake::new(tls), ClientHandshake::new(wishes));
    let (mut up, mut down) = (Pipe::new(cuts), Pipe::new(cuts));
    let mut agreement = Agreement::default();
    let (mut server_secured, mut client_secured) = (false, false);
    for _ in 0..100_000 {
        down.bytes.extend_from_slice(server.output());
        server.output_sent(server.output().len());
        up.bytes.extend_from_slice(client.output());
        client.output_sent(client.output().len());
        match server.poll_event() {
            Some(Event::ListExports) => {
                let web = ListedExport { name: "web".into(), description: "shop".into() };
                server.answer_list(Ok(&[web]));
            }
            Some(Event::LookUpExport { name, .. }) if name.starts_with("web") => {
                server.answer_export(Ok(export(offered)));
            }
            Some(Event::LookUpExport { .. }) => {
                server.answer_export(Err(Refusal::new(RefusalReason::Unknown, "no such volume")));
            }
            Some(Event::StartTls) => server_secured = true,
            Some(Event::Transmission(negotiated)) => agreement.server = Some(*negotiated),
            Some(Event::Closed(_)) | None => {}
        }
        match client.poll_event() {
            Some(ClientEvent::Listed(listed)) => agreement.listed = listed.ok().map(|exports| exports.len()),
            Some(ClientEvent::StartTls) => client_secured = true,
            Some(ClientEvent::Transmission(opened)) => agreement.client = Some(*opened),
            Some(ClientEvent::Ended) => return agreement,
            Some(ClientEvent::Failed(error)) => agreement.failed = Some(error.to_string()),
            None => {}
        }
        if server_secured && client_secured {
            assert!(up.bytes.is_empty() && down.bytes.is_empty(), "the TLS handshake has the wire to itself");
            server.tls_established();
            client.tls_established();
            (server_secured, client_secured) = (false, false);
        }
        if agreement.failed.is_some() || (agreement.server.is_some() && agreement.client.is_some()) {
            return agreement;
        }
        up.offer(|piece| server.handle(piece));
        down.offer(|piece| client.handle(piece));
    }
    panic!("the two talk for ever");
}

fn wishes() -> impl Strategy<Value = Wishes> {
    let name = prop::option::weighted(0.9, prop::sample::select(vec!["web", "web?deadline=20ms", "nope", ""]));
    let contexts = vec!["base:allocation".to_owned(), "x-plimsoll:promise".to_owned(), "qemu:x".to_owned()];
    let contexts = prop::sample::subsequence(contexts, 0..=3);
    (name, any::<bool>(), any::<bool>(), any::<bool>(), contexts).prop_map(
        |(name, list, tls, structured_replies, meta_contexts)| Wishes {
            export_name: name.map(str::to_owned),
            list,
            tls,
            structured_replies,
            meta_contexts,
        },
    )
}

proptest! {
    #[test]
    fn the_cuts_change_nothing_in_a_handshake(
        wishes in wishes(),
        tls in prop::sample::select(vec![TlsMode::Off, TlsMode::Optional, TlsMode::Required]),
        predicts in any::<bool>(),
        cuts in cuts(),
    ) {
        let mut offered = MetaContexts::EMPTY.with(MetaContext::Allocation);
        if predicts {
            offered = offered.with(MetaContext::Promise);
        }
        let agreement = talk(wishes.clone(), tls, offered, &cuts);
        prop_assert_eq!(&agreement, &talk(wishes.clone(), tls, offered, &[1 << 20]));

        // Who gets in is what the modes say, and both sides know the same.
        let tls_agrees = match tls {
            TlsMode::Off => !wishes.tls,
            TlsMode::Optional => true,
            TlsMode::Required => wishes.tls,
        };
        let known = wishes.export_name.as_deref().is_some_and(|name| name.starts_with("web"));
        prop_assert_eq!(agreement.server.is_some(), tls_agrees && known);
        prop_assert_eq!(agreement.client.is_some(), tls_agrees && known);
        if let (Some(server), Some(client)) = (agreement.server, agreement.client) {
            prop_assert_eq!(Some(server.export_name), wishes.export_name);
            prop_assert_eq!(server.flags, client.flags);
            prop_assert_eq!(server.structured_replies, client.structured_replies);
            prop_assert_eq!(server.structured_replies, wishes.structured_replies);
            prop_assert_eq!(server.tls, wishes.tls);
            let chosen: Vec<_> = server.meta_contexts.iter().map(|it| (it.id(), it.name().to_owned())).collect();
            prop_assert_eq!(&chosen, &client.meta_contexts);
            for context in MetaContext::ALL {
                let wished = wishes.structured_replies && wishes.meta_contexts.iter().any(|name| name == context.name());
                prop_assert_eq!(server.meta_contexts.contains(context), wished && offered.contains(context));
            }
            prop_assert_eq!(agreement.listed, wishes.list.then_some(1));
        }
    }

    #[test]
    fn requests_survive_the_wire(
        command in 0u16..8, flags in 0u16..32, cookie: u64, offset in 0..SIZE_BYTES, length in 1u32..65536,
    ) {
        let command = Command::from_wire(command).expect("eight are known");
        let request = Request { command, flags: CommandFlags::from_wire(flags), cookie, offset, length };
        let rules = Rules {
            size_bytes: u64::MAX,
            flags: TransmissionFlags::from_wire(0xffff).without(TransmissionFlags::READ_ONLY),
            block_bytes_min: 1,
            payload_bytes_max: 1 << 25,
            structured_replies: true,
            block_status: true,
            promises: true,
        };
        match rules.judge(&request.to_wire()) {
            Ok(Incoming::Serve(served)) => prop_assert_eq!(served, request),
            Ok(Incoming::Refuse(refused)) => prop_assert_eq!(refused.cookie, cookie),
            Ok(Incoming::Disconnect) => prop_assert_eq!(command, Command::Disconnect),
            Err(error) => prop_assert!(false, "{}", error),
        }
    }
}

/// Answer of the next test's server to a READ: each piece's length, whether it is a hole, and whether an error ends it.
type Script = (Vec<(u16, bool)>, bool);

/// Answers READs over a pattern as scripted, several of them interleaved; the payload is copied by the test, which
/// is the socket, and not by the crate.
fn answer_reads(structured: bool, requests: &[(Request, Script)]) -> Vec<u8> {
    let replies = Replies { structured };
    let mut out = Vec::new();
    let mut progress = vec![0u32; requests.len()];
    let mut open = requests.len();
    for round in 0.. {
        if open == 0 {
            break;
        }
        for (index, (read, (pieces, fails))) in requests.iter().enumerate() {
            let done = progress[index];
            if done == u32::MAX {
                continue;
            }
            let offset = read.offset + u64::from(done);
            let left = read.length - done;
            let (length, hole) =
                if replies.may_fragment(read) { pieces[round % pieces.len()] } else { (u16::MAX, false) };
            let length = u32::from(length).min(left);
            let last = length == left && !fails;
            if *fails && length == left {
                replies.failed(&mut out, read.cookie, ErrorCode::Io, "the disk is gone");
                (progress[index], open) = (u32::MAX, open - 1);
                continue;
            }
            if !replies.may_fragment(read) {
                replies.read_whole(&mut out, read.cookie, offset, length);
                out.extend((offset..offset + u64::from(length)).map(pattern));
            } else if hole {
                reply::offset_hole(&mut out, read.cookie, offset, length, Last::No);
            } else {
                let ends = if last { Last::Yes } else { Last::No };
                reply::offset_data(&mut out, read.cookie, offset, length, ends);
                out.extend((offset..offset + u64::from(length)).map(pattern));
            }
            progress[index] = done + length;
            if last {
                if hole && replies.may_fragment(read) {
                    reply::end(&mut out, read.cookie);
                }
                (progress[index], open) = (u32::MAX, open - 1);
            }
        }
    }
    out
}

fn pattern(offset: u64) -> u8 {
    (offset % 251) as u8 + 1
}

proptest! {
    #[test]
    fn reads_arrive_whole_however_they_are_answered_and_cut(
        structured: bool,
        reads in prop::collection::vec(
            (0u64..5000, 1u32..3000, any::<bool>(), (prop::collection::vec((1u16..900, any::<bool>()), 1..5), prop::bool::weighted(0.2))),
            1..5,
        ),
        cuts in cuts(),
    ) {
        let mut client = Transactions::new(structured, vec![]);
        let mut wire = Vec::new();
        let requests: Vec<(Request, Script)> = reads
            .into_iter()
            .zip(0u64..)
            .map(|((offset, length, whole, script), cookie)| {
                let flags = if whole && structured { CommandFlags::DF } else { CommandFlags::EMPTY };
                (Request { command: Command::Read, flags, cookie, offset, length }, script)
            })
            .collect();
        for (request, _) in &requests {
            client.submit(&mut wire, *request).expect("cookies differ");
        }
        prop_assert_eq!(wire.len(), REQUEST_BYTES * requests.len());

        let answers = answer_reads(structured, &requests);
        let mut got: Vec<Vec<Option<u8>>> = requests.iter().map(|(read, _)| vec![None; read.length as usize]).collect();
        let mut failed = vec![false; requests.len()];
        let mut rest = &answers[..];
        for cut in cuts.iter().cycle() {
            let (mut piece, after) = rest.split_at((*cut).min(rest.len()));
            while let Some(told) = client.poll(&mut piece).expect("our server keeps the rules") {
                let mut fill = |cookie: u64, offset: u64, bytes: &mut dyn Iterator<Item = Option<u8>>| {
                    let start = (offset - requests[cookie as usize].0.offset) as usize;
                    bytes.enumerate().for_each(|(index, byte)| got[cookie as usize][start + index] = byte);
                };
                match told {
                    Reply::Data { cookie, offset, bytes } => fill(cookie, offset, &mut bytes.iter().copied().map(Some)),
                    Reply::Hole { cookie, offset, length } => {
                        fill(cookie, offset, &mut std::iter::repeat_n(Some(0), length as usize));
                    }
                    Reply::Error { cookie, code, .. } => {
                        prop_assert_eq!(code, ErrorCode::Io);
                        failed[cookie as usize] = true;
                    }
                    Reply::Done { cookie } if !failed[cookie as usize] => {
                        let (read, _) = &requests[cookie as usize];
                        for (byte, offset) in got[cookie as usize].iter().zip(read.offset..) {
                            prop_assert!([Some(pattern(offset)), Some(0)].contains(byte), "at {}: {:?}", offset, byte);
                        }
                    }
                    Reply::Done { .. } | Reply::Status { .. } | Reply::Notes { .. } => {}
                }
            }
            prop_assert!(piece.is_empty());
            rest = after;
            if rest.is_empty() {
                break;
            }
        }
        prop_assert_eq!(client.in_flight(), 0);
        for ((_, (_, fails)), failed) in requests.iter().zip(failed) {
            prop_assert_eq!(*fails, failed);
        }
    }

    #[test]
    fn statuses_and_errors_survive_the_wire(
        lengths in prop::collection::vec((1u32..100, any::<u32>()), 1..50),
        code in prop::sample::select(vec![1u32, 5, 12, 22, 28, 75, 95, 108]),
        message in ".{0,80}",
        cuts in cuts(),
    ) {
        let extents: Vec<_> = lengths.into_iter().map(|(length, status)| Extent { length, status }).collect();
        let code = ErrorCode::from_wire(code).expect("it is listed");
        let mut client = Transactions::new(true, vec![1, 2]);
        let mut wire = Vec::new();
        for cookie in [1, 2] {
            let request = Request {
                command: Command::BlockStatus, flags: CommandFlags::EMPTY, cookie, offset: 64, length: 1 << 20,
            };
            client.submit(&mut wire, request).expect("cookies differ");
        }
        let mut answers = Vec::new();
        reply::block_status(&mut answers, 1, 2, &extents, Last::No);
        reply::error_at(&mut answers, 2, code, &message, 65, Last::No);
        reply::block_status(&mut answers, 1, 1, &extents, Last::Yes);
        reply::end(&mut answers, 2);
        let mut told = Vec::new();
        let mut rest = &answers[..];
        for cut in cuts.iter().cycle() {
            let (mut piece, after) = rest.split_at((*cut).min(rest.len()));
            while let Some(reply) = client.poll(&mut piece).expect("our server keeps the rules") {
                told.push(reply);
            }
            rest = after;
            if rest.is_empty() {
                break;
            }
        }
        let expected = [
            Reply::Status { cookie: 1, context_id: 2, extents: extents.clone() },
            Reply::Error { cookie: 2, code, message, offset: Some(65) },
            Reply::Status { cookie: 1, context_id: 1, extents },
            Reply::Done { cookie: 1 },
            Reply::Done { cookie: 2 },
        ];
        prop_assert_eq!(told, expected);
    }
}
