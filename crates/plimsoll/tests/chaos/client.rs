//! A client of a volume, over NBD or NVMe/TCP.

use super::connection::{Answer, Connection};
use super::nvme::Host;
use plimsoll_chaos::{Asked, Flag};
use std::io;
use std::os::fd::BorrowedFd;

/// A client, by one of the two protocols.
pub enum Client {
    Nbd(Connection),
    Nvme(Host),
}

impl Client {
    pub fn has(&self, asked: &Asked) -> bool {
        let host = |asked: &Asked| Host::has(asked.op, (asked.offset, asked.len), asked.fua);
        matches!(self, Client::Nbd(_)) || (asked.flag == Flag::None && host(asked))
    }

    /// True if the server must refuse this request.
    pub fn refuses(&self, asked: &Asked) -> bool {
        matches!(self, Client::Nbd(c) if c.refuses(asked))
    }

    pub fn send(&mut self, n: u64, asked: &Asked, payload: &[u8]) -> io::Result<()> {
        let range = (asked.offset, asked.len);
        match self {
            Client::Nbd(c) => c.send(n, asked, payload),
            Client::Nvme(h) => h.send(n, asked.op, range, asked.fua, payload),
        }
    }

    pub fn receive(&mut self) -> io::Result<()> {
        match self {
            Client::Nbd(c) => c.receive(),
            Client::Nvme(h) => h.receive(),
        }
    }

    pub fn next_answer(&mut self) -> io::Result<Option<Answer>> {
        match self {
            Client::Nbd(c) => c.next_answer(),
            Client::Nvme(h) => h.next_answer(),
        }
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        match self {
            Client::Nbd(c) => c.fd(),
            Client::Nvme(h) => h.fd(),
        }
    }

    pub fn may_be_refused(&self) -> bool {
        matches!(self, Client::Nbd(c) if c.may_be_refused)
    }
}
