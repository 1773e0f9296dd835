//! Properties of the walkers for any bytes, cut anywhere. Also called by `fuzz/`.

use plimsoll_shape::gate::Answered;
use plimsoll_shape::walk::{Protocol, Walker};

const PROTOCOLS: [Protocol; 5] =
    [Protocol::Mysql, Protocol::Postgres, Protocol::Mongo, Protocol::Redis, Protocol::Generic];

/// Pieces of a conversation: from the client (true) or to it.
pub type Talk<'a> = [(bool, &'a [u8])];

/// Conclusions of a walker, at the end and on the way.
#[derive(Debug, PartialEq, Eq, Default)]
pub struct Concluded {
    pub logins: u32,
    pub requests: u32,
    pub answers: u32,
    pub undone: u32,
    pub open: bool,
    pub pinned: bool,
    pub urgent: bool,
    pub moved_on: bool,
    pub lost: bool,
    pub tls: bool,
    pub rest: bool,
    pub account: Vec<u8>,
    pub database: Vec<u8>,
}

/// Walks a conversation, each piece in pieces of `cut` bytes, or cut once at `cut` if `once`.
pub fn walk(protocol: Protocol, talk: &Talk<'_>, cut: usize, once: bool) -> Concluded {
    let mut w = Walker::new(protocol);
    let mut c = Concluded::default();
    for (client, bytes) in talk {
        let pieces: Vec<&[u8]> = match once {
            true => [&bytes[..cut.min(bytes.len())], &bytes[cut.min(bytes.len())..]].to_vec(),
            false => bytes.chunks(cut.max(1)).collect(),
        };
        for piece in pieces {
            if *client {
                let came = w.input(piece);
                c.requests += u32::from(came.request);
                c.urgent |= came.urgent;
                c.moved_on |= came.moved_on;
            } else {
                let went = w.output(piece);
                c.logins += u32::from(went.login);
                c.answers += u32::from(went.done);
                if went.done && w.stands() == Answered::Undone {
                    c.undone += 1;
                }
            }
        }
    }
    c.pinned = w.stands() == Answered::Pinned;
    (c.open, c.lost, c.tls, c.rest) = (w.is_open(), w.is_lost(), w.is_tls(), w.at_rest());
    let (account, database) = w.identity();
    (c.account, c.database) = (account.as_bytes().to_vec(), database.as_bytes().to_vec());
    c
}

/// Any bytes: the first says how to cut and who speaks. Nothing panics.
pub fn any(data: &[u8]) {
    let Some((&how, bytes)) = data.split_first() else { return };
    for protocol in PROTOCOLS {
        let mut w = Walker::new(protocol);
        for (i, piece) in bytes.chunks(1 + usize::from(how % 61)).enumerate() {
            if (i + usize::from(how)) % 3 == 0 {
                w.output(piece);
            } else {
                w.input(piece);
            }
            let _ = (w.is_open(), w.is_lost(), w.at_rest(), w.lacks(), w.identity());
        }
    }
}
