//! A blocking NBD client over `plimsoll-nbd`'s client half: many requests in flight, replies in any order.

use plimsoll_nbd::client::{ClientEvent, ClientHandshake, Opened, Wishes};
use plimsoll_nbd::request::Request;
use plimsoll_nbd::transactions::{Reply, Transactions};
use plimsoll_nbd::wire::{Command, CommandFlags};
use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

/// Result of a request: the data of a read, or the server's error message.
pub type Ended = Result<Vec<u8>, String>;

pub struct Client {
    stream: UnixStream,
    transactions: Transactions,
    received: Vec<u8>,
    next_cookie: u64,
    partial: BTreeMap<u64, (u64, Ended)>,
    pub opened: Opened,
}

impl Client {
    /// Connects as soon as the pool serves: right after a start it may still be recovering.
    ///
    /// # Panics
    /// If it doesn't within 20 s.
    pub fn once_served(socket: &Path, export: &str) -> Client {
        let began = Instant::now();
        loop {
            match Client::connect(socket, export) {
                Ok(client) => return client,
                Err(e) => assert!(began.elapsed() < Duration::from_secs(20), "{e}"),
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    pub fn connect(socket: &Path, export: &str) -> io::Result<Client> {
        let mut stream = UnixStream::connect(socket)?;
        let mut handshake = ClientHandshake::new(Wishes::open(export));
        let mut buffer = Vec::new();
        loop {
            stream.write_all(handshake.output())?;
            handshake.output_sent(handshake.output().len());
            match handshake.poll_event() {
                Some(ClientEvent::Transmission(opened)) => {
                    let ids = opened.meta_contexts.iter().map(|c| c.0).collect();
                    let transactions = Transactions::new(opened.structured_replies, ids);
                    let partial = BTreeMap::new();
                    return Ok(Client {
                        stream,
                        transactions,
                        received: buffer,
                        next_cookie: 1,
                        partial,
                        opened: *opened,
                    });
                }
                Some(other) => return Err(io::Error::other(format!("{other:?}"))),
                None => {}
            }
            if buffer.is_empty() {
                let mut some = [0; 4096];
                let n = stream.read(&mut some)?;
                if n == 0 {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                buffer.extend_from_slice(&some[..n]);
            }
            let taken = handshake.handle(&buffer);
            buffer.drain(..taken);
        }
    }

    /// Sends a request; its cookie.
    pub fn send(
        &mut self,
        command: Command,
        flags: CommandFlags,
        offset: u64,
        length: u32,
        data: &[u8],
    ) -> io::Result<u64> {
        let cookie = self.next_cookie;
        self.next_cookie += 1;
        let mut out = Vec::new();
        let request = Request { command, flags, cookie, offset, length };
        self.transactions.submit(&mut out, request).map_err(|e| io::Error::other(format!("{e:?}")))?;
        let len = if command == Command::Read { length as usize } else { 0 };
        self.partial.insert(cookie, (offset, Ok(vec![0; len])));
        out.extend_from_slice(data);
        self.stream.write_all(&out)?;
        Ok(cookie)
    }

    /// Waits for the next request to end.
    pub fn receive(&mut self) -> io::Result<(u64, Ended)> {
        loop {
            let mut rest = &self.received[..];
            let mut done = None;
            while done.is_none()
                && let Some(reply) =
                    self.transactions.poll(&mut rest).map_err(|e| io::Error::other(format!("{e:?}")))?
            {
                match reply {
                    Reply::Data { cookie, offset, bytes } => {
                        let (start, Ok(data)) = self.partial.get_mut(&cookie).unwrap() else { continue };
                        let at = (offset - *start) as usize;
                        data[at..at + bytes.len()].copy_from_slice(bytes);
                    }
                    Reply::Hole { .. } | Reply::Status { .. } | Reply::Notes { .. } => {}
                    Reply::Error { cookie, code, message, .. } => {
                        self.partial.get_mut(&cookie).unwrap().1 = Err(format!("{code}: {message}"));
                    }
                    Reply::Done { cookie } => done = Some((cookie, self.partial.remove(&cookie).unwrap().1)),
                }
            }
            let taken = self.received.len() - rest.len();
            self.received.drain(..taken);
            if let Some(done) = done {
                return Ok(done);
            }
            let mut some = vec![0; 1 << 16];
            let n = self.stream.read(&mut some)?;
            if n == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            self.received.extend_from_slice(&some[..n]);
        }
    }

    /// One request, start to end, with nothing else in flight.
    pub fn call(
        &mut self,
        command: Command,
        flags: CommandFlags,
        offset: u64,
        length: u32,
        data: &[u8],
    ) -> io::Result<Ended> {
        let cookie = self.send(command, flags, offset, length, data)?;
        let (got, ended) = self.receive()?;
        assert_eq!(got, cookie);
        Ok(ended)
    }

    pub fn read(&mut self, offset: u64, length: u32) -> io::Result<Ended> {
        self.call(Command::Read, CommandFlags::EMPTY, offset, length, &[])
    }
    pub fn write(&mut self, offset: u64, data: &[u8]) -> io::Result<Ended> {
        self.call(Command::Write, CommandFlags::EMPTY, offset, data.len() as u32, data)
    }
    pub fn flush(&mut self) -> io::Result<Ended> {
        self.call(Command::Flush, CommandFlags::EMPTY, 0, 0, &[])
    }
    /// Raw bytes, for what no client should send.
    pub fn stream(&mut self) -> &mut UnixStream {
        &mut self.stream
    }
}
