//! Arbitrary bytes at either end of a handshake: no panic, bounded memory, and the same result however they are cut.

use plimsoll_nbd::client::{ClientEvent, ClientHandshake, OPTION_REPLIES_BYTES_MAX, OPTION_REPLY_BYTES_MAX, Wishes};
use plimsoll_nbd::export::{BlockSizes, ExportInfo, ListedExport, Refusal, RefusalReason};
use plimsoll_nbd::handshake::{Event, OPTION_BYTES_MAX, OUTPUT_BYTES_MAX, ServerHandshake, TlsMode};
use plimsoll_nbd::wire::{MetaContext, MetaContexts, TransmissionFlags};

/// The first byte chooses the end and its options, the second how the rest is cut.
pub fn fuzz_one(data: &[u8]) {
    let [choice, cut, bytes @ ..] = data else { return };
    let piece = usize::from(*cut % 37) + 1;
    if choice & 1 == 0 {
        let whole = serve(*choice, bytes, bytes.len().max(1));
        assert_eq!(serve(*choice, bytes, piece), whole, "the cut changed the server's result");
    } else {
        let whole = connect(*choice, bytes, bytes.len().max(1));
        assert_eq!(connect(*choice, bytes, piece), whole, "the cut changed the client's result");
    }
}

/// Result of giving bytes to a machine: the number taken, the bytes sent, and the events for its driver.
#[derive(Debug, Default, PartialEq)]
struct Outcome {
    taken: usize,
    sent: Vec<u8>,
    told: Vec<String>,
}

fn serve(choice: u8, bytes: &[u8], piece: usize) -> Outcome {
    let mode = [TlsMode::Off, TlsMode::Optional, TlsMode::Required][usize::from(choice >> 1) % 3];
    let mut machine = ServerHandshake::new(mode);
    let mut outcome = Outcome::default();
    for piece in bytes.chunks(piece) {
        let mut rest = piece;
        loop {
            let taken = machine.handle(rest);
            rest = &rest[taken..];
            outcome.taken += taken;
            // Growing doubles, and one refusal's text may come on top of a full output.
            assert!(machine.held_bytes() <= 2 * (OPTION_BYTES_MAX + OUTPUT_BYTES_MAX + 16_384), "too much is held");
            outcome.sent.extend_from_slice(machine.output());
            machine.output_sent(machine.output().len());
            match machine.poll_event() {
                // Told before the bytes after STARTTLS come, and not at all where they came along.
                Some(Event::StartTls) => {}
                Some(event) => {
                    outcome.told.push(format!("{event:?}"));
                    answer(&mut machine, &event);
                }
                None if rest.is_empty() => break,
                None if taken == 0 => return outcome,
                None => {}
            }
        }
    }
    outcome
}

fn answer(machine: &mut ServerHandshake, event: &Event) {
    match event {
        Event::ListExports => machine.answer_list(Ok(&[
            ListedExport { name: "web".into(), description: "shop".into() },
            ListedExport { name: "archive".into(), description: String::new() },
        ])),
        Event::LookUpExport { name, .. } if name.starts_with("web") => machine.answer_export(Ok(export())),
        Event::LookUpExport { name, .. } => {
            machine.answer_export(Err(Refusal::new(RefusalReason::Unknown, format!("no export {name:?}"))));
        }
        // STARTTLS is never carried out: what follows is plaintext, which must close the connection.
        Event::StartTls | Event::Transmission(_) | Event::Closed(_) => {}
    }
}

fn export() -> ExportInfo {
    ExportInfo {
        size_bytes: 1 << 30,
        flags: TransmissionFlags::SEND_FLUSH.with(TransmissionFlags::SEND_DF),
        block_sizes: BlockSizes::default(),
        canonical_name: "web".into(),
        description: "shop".into(),
        meta_contexts: MetaContexts::EMPTY.with(MetaContext::Allocation).with(MetaContext::Promise),
    }
}

fn connect(choice: u8, bytes: &[u8], piece: usize) -> Outcome {
    let wishes = Wishes {
        export_name: (choice & 2 == 0).then(|| "web".into()),
        list: choice & 4 == 0,
        tls: choice & 8 != 0,
        structured_replies: choice & 16 == 0,
        meta_contexts: vec!["base:allocation".into()],
    };
    let mut machine = ClientHandshake::new(wishes);
    let mut outcome = Outcome::default();
    for piece in bytes.chunks(piece) {
        let mut rest = piece;
        loop {
            let taken = machine.handle(rest);
            rest = &rest[taken..];
            outcome.taken += taken;
            assert!(machine.held_bytes() <= OPTION_REPLIES_BYTES_MAX + 2 * OPTION_REPLY_BYTES_MAX, "too much is held");
            outcome.sent.extend_from_slice(machine.output());
            machine.output_sent(machine.output().len());
            match machine.poll_event() {
                Some(ClientEvent::StartTls) if choice & 32 == 0 => machine.tls_established(),
                Some(event) => outcome.told.push(format!("{event:?}")),
                None if rest.is_empty() => break,
                None if taken == 0 => return outcome,
                None => {}
            }
        }
    }
    outcome
}
