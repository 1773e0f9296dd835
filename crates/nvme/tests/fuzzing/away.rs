//! Arbitrary bytes on an I/O queue whose namespace is inaccessible, which its pool takes over at some point: no panic, each command ends
//! once and in order, what isn't refused for itself ends with a status of the path, bounded memory and answers, the same result however the
//! bytes are cut.

use plimsoll_nvme::away::AwayQueue;
use plimsoll_nvme::command::Status;
use plimsoll_nvme::host::{Command, Ear, Heard, connect_data, parameters};
use plimsoll_nvme::opening::{Opening, Terms};
use plimsoll_nvme::pdu::{Digests, Fault};
use plimsoll_nvme::queue::{Namespace, Next, Queue, Replies};
use plimsoll_nvme::wire::{CAPSULE_DATA_BYTES_MAX, Kind};

const NAMESPACE: Namespace = Namespace { blocks: 1 << 20, read_only: false };
const ENTRIES: u16 = 32;
/// A command's header with its digest, padding, data and their digest.
const PDU_BYTES_MAX: usize = 72 + 4 + 128 + CAPSULE_DATA_BYTES_MAX as usize + 4;
/// The longer of a completion and the PDU that ends a connection, which shows a part of the faulty one.
const ANSWER_BYTES_MAX: usize = 24 + 128;

/// Numbers of commands, each with the status of its own if it has one.
type Commands = Vec<(u16, Option<Status>)>;

/// The first byte chooses what was negotiated, the second how the bytes are cut and when the pool takes over.
pub fn fuzz_one(data: &[u8]) {
    let [choice, cut, bytes @ ..] = data else { return };
    let queue = Opened::of(*choice);
    let whole = queue.refuse(bytes, bytes.len().max(1));
    assert_eq!(queue.refuse(bytes, usize::from(*cut % 37) + 1), whole, "the cut changed the result");

    let (commands, rest, fault) = queue.judge(bytes);
    let refused = commands.iter().map(|(id, own)| (*id, own.unwrap_or(Status::INACCESSIBLE)));
    assert!(whole.ended.iter().copied().eq(refused), "{:?} for {commands:?}", whole.ended);
    if whole.fault.is_some() != fault.is_some() {
        // PDUs that mustn't come here, or are too long for what they are, end the connection before all of them is there.
        assert!(fault.is_none() && bytes[rest] != Kind::Command as u8, "{:?} and not {fault:?}", whole.fault);
    }
    assert!(whole.fault.is_some() || whole.is_between == (rest == bytes.len()));
    queue.hand_over(bytes, usize::from(*cut) % (commands.len() + 1), &commands);
}

/// The outcome of a queue's bytes.
#[derive(PartialEq, Eq, Debug)]
struct Seen {
    ended: Vec<(u16, Status)>,
    fault: Option<Fault>,
    is_between: bool,
}

/// A queue that was just connected.
struct Opened {
    digests: Digests,
    terms: Terms,
    replies: Replies,
    namespace: Namespace,
    flow_control: bool,
}

impl Opened {
    fn of(choice: u8) -> Opened {
        let digests = Digests { header: choice & 1 != 0, data: choice & 2 != 0 };
        let flow_control = choice & 8 != 0;
        let mut opened = parameters(digests).to_vec();
        let data = connect_data(1, [9; 16], "nqn.h", "nqn.a");
        Command::connect(0, 1, ENTRIES, 0, flow_control).send(&mut opened, digests, &data);
        let mut opening = Opening::default();
        opening.take(&mut &opened[..]).expect("no fault").expect("a Connect");
        let (terms, replies) = opening.accept(1);
        let namespace = Namespace { read_only: choice & 4 != 0, ..NAMESPACE };
        Opened { digests, terms, replies, namespace, flow_control }
    }

    fn away(&self) -> AwayQueue {
        AwayQueue::new(self.terms, self.replies.clone(), self.namespace)
    }

    /// Refuses all commands of `bytes`, which come in pieces.
    fn refuse(&self, bytes: &[u8], piece: usize) -> Seen {
        let (mut queue, mut said, mut fault) = (self.away(), Vec::new(), None);
        'bytes: for piece in bytes.chunks(piece) {
            let mut input = piece;
            while !input.is_empty() {
                let (before, taken) = (input.len(), queue.take(&mut input));
                let answer = std::mem::take(queue.output());
                assert!(answer.len() <= ANSWER_BYTES_MAX, "{} bytes", answer.len());
                assert!(before - input.len() <= PDU_BYTES_MAX, "one PDU at a time");
                said.extend(answer);
                if let Err(f) = taken {
                    fault = Some(f);
                    break 'bytes;
                }
            }
        }
        Seen { ended: self.ends(&said, fault), fault, is_between: queue.is_between() }
    }

    /// Completions, whose heads are in order, and at the end the reason for a fault.
    fn ends(&self, said: &[u8], fault: Option<Fault>) -> Vec<(u16, Status)> {
        let mut parameters = parameters(self.digests);
        parameters[0] = Kind::IcResp as u8;
        let (mut ear, mut ended, mut terminated) = (Ear::default(), Vec::new(), false);
        let all = [&parameters[..], said].concat();
        let mut input = &all[..];
        while let Some(heard) = ear.take(&mut input).expect("a target's PDUs") {
            assert!(!terminated, "nothing follows");
            match heard {
                Heard::Parameters(..) => {}
                Heard::Done { id, status, head, .. } => {
                    ended.push((id, status));
                    // Connect was the first.
                    let at = (ended.len() as u16 + 1) % ENTRIES;
                    assert_eq!(head, if self.flow_control { at } else { 0xffff });
                }
                Heard::Terminated(_) => terminated = true,
                other => panic!("{other:?}"),
            }
        }
        assert!(input.is_empty());
        assert_eq!(terminated, fault.is_some_and(|f| !matches!(f, Fault::DataDigest | Fault::Host(_))), "{fault:?}");
        ended
    }

    /// The commands of a queue that is served, each with the status of its own if it has one; the bytes until the first that is no whole
    /// command, and the fault in it.
    fn judge(&self, bytes: &[u8]) -> (Commands, usize, Option<Fault>) {
        let (mut queue, mut commands, mut at) = (Queue::new(self.terms, self.namespace), Vec::new(), 0);
        loop {
            match queue.next(&bytes[at..]) {
                Ok(Next::Serve { command, taken, .. } | Next::Fetch { command, taken }) => {
                    commands.push((command.id, None));
                    at += taken;
                }
                Ok(Next::Refuse { id, status, taken }) => {
                    commands.push((id, Some(status)));
                    at += taken;
                }
                Ok(Next::NeedBytes) => return (commands, at, None),
                Ok(Next::Data { .. }) => panic!("nobody asked for data"),
                Err(fault) => return (commands, at, Some(fault)),
            }
        }
    }

    /// The pool takes the queue over after `refused` commands, and carries the others out.
    fn hand_over(&self, bytes: &[u8], refused: usize, commands: &[(u16, Option<Status>)]) {
        let (mut away, mut input) = (self.away(), bytes);
        (0..refused).for_each(|_| away.take(&mut input).expect("a command"));
        assert!(away.is_between());
        let mut said = std::mem::take(away.output());
        let mut replies = away.into_replies();
        let (later, ..) = self.judge(input);
        later.iter().for_each(|(id, own)| replies.complete(&mut said, *id, 0, own.unwrap_or(Status::OK)));
        let ended = self.ends(&said, None);
        assert!(ended.iter().map(|(id, _)| id).eq(commands.iter().map(|(id, _)| id)), "each ends once");
    }
}
