//! A single connection with one request after another: for tools that copy and compare replicas.

use super::address::Address;
use super::connect::connect;
use super::home::{FORKED, Home};
use super::link::{CONFIDENCE_MAX, merge};
use super::stream::Stream;
use super::tls::Reading;
use plimsoll_nbd::client::Opened;
use plimsoll_nbd::promise::{Deadline, NUMBERS, Note, Promise};
use plimsoll_nbd::request::Request;
use plimsoll_nbd::transactions::{Reply, Transactions};
use plimsoll_nbd::wire::{Command, CommandFlags, Extent, MetaContext, NoteKind};
use std::io;
use std::time::Duration;

/// A volume's ranges are fewer, not counting those that are cut where a question ends.
const EXTENTS_MAX: u64 = 1 << 13;

/// Longer payloads go to the socket from where they are, in a system call of their own.
const COPIED_BYTES_MAX: usize = 16 << 10;

/// State of a replica, as it reports it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Health {
    /// Changes that it has acknowledged.
    pub generation: u64,
    /// Reason why it may lack some, as a number on the wire; 0: it lacks none.
    pub behind: u32,
    /// Clients that write to all replicas and are connected to it.
    pub writers: u32,
}

/// Outcome of a read with a deadline.
#[derive(Clone, PartialEq, Debug)]
pub enum Promised {
    /// Its bytes.
    Done {
        /// The bytes.
        data: Vec<u8>,
        /// The server's forecast of the time it takes; `None` from servers without forecasts.
        forecast: Option<Duration>,
    },
    /// Refused: it would have been late.
    Busy {
        /// Its predicted wait.
        wait: Duration,
        /// The server's forecast of the time that it would have taken, with its own service; `None` from servers that only say the wait.
        forecast: Option<Duration>,
        /// Confidence of that, 0 to 1: how well the server knows the device, 1 is exact. No probability. `None` from servers without forecasts.
        confidence: Option<f64>,
    },
}

/// See the module's documentation. After a request that failed half way, for example by its time, or whose future was dropped, a session
/// takes no more: its server may still answer, and that answer must not be taken for another's. An error that the server reports
/// doesn't end it. In a child that was forked, its requests fail, and closing or dropping it does nothing.
pub struct Session {
    home: Home,
    /// `None` once it is closed.
    stream: Option<Stream>,
    transactions: Transactions,
    received: Vec<u8>,
    opened: Box<Opened>,
    /// The id of `x-plimsoll:written`.
    written_id: u32,
    number: u32,
    patience: Duration,
    /// Reason why nothing more is asked.
    broken: Option<String>,
    /// A request that changes nothing was sent completely, and its answer hasn't come.
    asked: bool,
}

impl Drop for Session {
    fn drop(&mut self) {
        if self.home.is_left() {
            // Closing the copy of the socket here would end it in the parent's event loop.
            std::mem::forget(self.stream.take());
        }
    }
}

#[derive(Default)]
struct Answer {
    data: Vec<u8>,
    extents: Vec<(u32, Vec<Extent>)>,
    notes: Vec<Note>,
}

impl Answer {
    fn heard(&mut self, notes: Vec<Note>) {
        merge(&mut self.notes, notes);
    }
}

impl Session {
    /// Opens an export of a Plimsoll node by `name`. The node must answer each request, this one included, within `patience`.
    ///
    /// # Errors
    /// The error of the socket or the server.
    pub async fn open(address: &Address, name: String, patience: Duration) -> io::Result<Session> {
        let contexts = [MetaContext::Promise, MetaContext::Written].map(|c| c.name().to_string());
        let (stream, opened, early) =
            within(patience, connect(&address.place, name, contexts.to_vec(), &Reading::default())).await?;
        let id = |context: MetaContext| opened.meta_contexts.iter().find(|c| c.1 == context.name()).map(|c| c.0);
        let (Some(promise), Some(written_id)) = (id(MetaContext::Promise), id(MetaContext::Written)) else {
            return Err(io::Error::other("the server doesn't tell of its replicas: is it a Plimsoll node?"));
        };
        let transactions = Transactions::new(true, vec![promise, written_id]).with_promises(promise);
        Ok(Session::new(stream, transactions, early, opened, patience, written_id))
    }

    /// Opens an export of any NBD server: no deadlines, and neither [`Session::health`] nor [`Session::written`].
    ///
    /// # Errors
    /// The error of the socket or the server.
    pub async fn open_foreign(address: &Address, patience: Duration) -> io::Result<Session> {
        let (stream, opened, early) =
            within(patience, connect(&address.place, address.export.clone(), Vec::new(), &Reading::default())).await?;
        let transactions = Transactions::new(opened.structured_replies, Vec::new());
        Ok(Session::new(stream, transactions, early, opened, patience, 0))
    }

    fn new(
        stream: Stream,
        transactions: Transactions,
        received: Vec<u8>,
        opened: Box<Opened>,
        patience: Duration,
        written_id: u32,
    ) -> Session {
        let (home, stream) = (Home::here(), Some(stream));
        Session {
            home,
            stream,
            transactions,
            received,
            opened,
            written_id,
            number: 0,
            patience,
            broken: None,
            asked: false,
        }
    }

    /// Size of the export in bytes.
    pub fn size_bytes(&self) -> u64 {
        self.opened.size_bytes
    }

    /// Reads.
    ///
    /// # Errors
    /// The error of the socket or the server.
    pub async fn read(&mut self, offset: u64, length: u32) -> io::Result<Vec<u8>> {
        Ok(self.call(Command::Read, offset, length, &[]).await?.data)
    }

    /// Reads within a deadline, or within the export's own (`None`).
    ///
    /// # Errors
    /// The socket's or the server's, or a deadline that is none.
    pub async fn read_within(&mut self, offset: u64, length: u32, deadline: Option<Duration>) -> io::Result<Promised> {
        let deadline = match deadline.map(|d| u32::try_from(d.as_micros())) {
            None => Deadline::Exports,
            Some(Ok(us)) if us != 0 && us != u32::MAX => Deadline::Within(us),
            Some(_) => return Err(io::Error::other("a deadline has a microsecond at least, and an hour at most")),
        };
        let patience = self.patience;
        let (answer, error) = within(patience, self.exchange(Command::Read, offset, length, &[], deadline)).await?;
        let note = |kind| answer.notes.iter().find(|n| n.0 == kind).map(|n| n.1);
        let micros = |us: u32| Duration::from_micros(us.into());
        let forecast = note(NoteKind::ForecastUs).map(micros);
        match (error, note(NoteKind::WaitUs)) {
            (None, _) => Ok(Promised::Done { forecast, data: answer.data }),
            (Some(_), Some(wait)) => {
                let confidence =
                    note(NoteKind::Confidence).map(|thousandths| f64::from(thousandths.min(CONFIDENCE_MAX)) / 1000.0);
                Ok(Promised::Busy { wait: micros(wait), forecast, confidence })
            }
            (Some(error), None) => Err(io::Error::other(error)),
        }
    }

    /// Writes.
    ///
    /// # Errors
    /// The error of the socket or the server, or data longer than a write may be ([`Session::payload_bytes_max`]): nothing was sent then.
    pub async fn write(&mut self, offset: u64, data: &[u8]) -> io::Result<()> {
        let (most, _) = self.payload_bytes_max();
        let length = u32::try_from(data.len()).ok().filter(|length| *length <= most).ok_or_else(|| {
            let length = data.len();
            io::Error::other(format!(
                "a write of {length} bytes: the server takes at most {most} at once, nothing was sent"
            ))
        })?;
        self.call(Command::Write, offset, length, data).await.map(drop)
    }

    /// Gives up a range's content.
    ///
    /// # Errors
    /// The error of the socket or the server.
    pub async fn trim(&mut self, offset: u64, length: u32) -> io::Result<()> {
        self.call(Command::Trim, offset, length, &[]).await.map(drop)
    }

    /// The longest payload of a write and the unit of offsets and lengths, in bytes.
    pub fn payload_bytes_max(&self) -> (u32, u32) {
        let sizes = self.opened.block_sizes.unwrap_or_default();
        (sizes.payload_max, sizes.minimum)
    }

    /// Returns whether it takes no more requests, though the server has all changes: a flush or a question about the replica was sent, and
    /// its answer hasn't come.
    pub fn lacks_nothing(&self) -> bool {
        self.broken.is_some() && self.asked
    }

    /// Ends the session as NBD wants it: a server knows then that nothing of it is missing.
    ///
    /// # Errors
    /// The error of the socket. After a request that failed half way it only disconnects, and that is the error. A flush or a question about
    /// the replica is no such request once it is sent.
    pub async fn close(mut self) -> io::Result<()> {
        if self.home.is_left() || !self.asked {
            self.usable()?;
        }
        let request =
            Request { command: Command::Disconnect, flags: CommandFlags::EMPTY, cookie: 0, offset: 0, length: 0 };
        let mut out = Vec::new();
        self.transactions.submit(&mut out, request).map_err(|e| io::Error::other(e.to_string()))?;
        let Some(stream) = self.stream.take() else { return Ok(()) };
        within(self.patience, async {
            send(&stream, &out).await?;
            stream.close().await;
            Ok(())
        })
        .await
    }

    /// Makes what was written durable.
    ///
    /// # Errors
    /// The error of the socket or the server.
    pub async fn flush(&mut self) -> io::Result<()> {
        self.call(Command::Flush, 0, 0, &[]).await.map(drop)
    }

    /// Asks for the replica's state.
    ///
    /// # Errors
    /// The error of the socket or the server.
    pub async fn health(&mut self) -> io::Result<Health> {
        let (_, unit_bytes) = self.payload_bytes_max();
        let answer = self.call(Command::BlockStatus, 0, unit_bytes.max(512), &[]).await?;
        let note = |kind| answer.notes.iter().find(|n| n.0 == kind).map_or(0, |n| n.1);
        let generation = u64::from(note(NoteKind::GenerationHigh)) << 32 | u64::from(note(NoteKind::GenerationLow));
        Ok(Health { generation, behind: note(NoteKind::Behind), writers: note(NoteKind::Writers) })
    }

    /// Returns the lower halves of the generations at which the volume was last changed, by pieces from its beginning on.
    /// Together the pieces are as long as the volume.
    ///
    /// # Errors
    /// The error of the socket or the server, or an answer with more pieces than there can be.
    pub async fn written(&mut self) -> io::Result<Vec<(u64, u32)>> {
        let (mut at, size, mut all) = (0, self.size_bytes(), Vec::new());
        let most = EXTENTS_MAX + 2 * (size >> 30);
        while at < size {
            let length = (size - at).min(1 << 30) as u32;
            let answer = self.call(Command::BlockStatus, at, length, &[]).await?;
            let extents = answer.extents.into_iter().find(|e| e.0 == self.written_id).map_or(Vec::new(), |e| e.1);
            if extents.is_empty() || (all.len() + extents.len()) as u64 > most {
                return Err(io::Error::other("the server tells of more changed pieces than there can be, or of none"));
            }
            for e in extents {
                // The last one may go on after what was asked for.
                let len = u64::from(e.length).min(size - at);
                all.extend((len > 0).then_some((len, e.status)));
                at += len;
            }
        }
        Ok(all)
    }

    async fn call(&mut self, command: Command, offset: u64, length: u32, payload: &[u8]) -> io::Result<Answer> {
        // What the volume promises is for others: here a read may take its time, and must not be refused.
        let deadline = if command == Command::Read { Deadline::None } else { Deadline::Exports };
        let (answer, error) = within(self.patience, self.exchange(command, offset, length, payload, deadline)).await?;
        error.map_or(Ok(answer), |e| Err(io::Error::other(e)))
    }

    /// Asks, and returns the answer with the server's error, if it was one.
    async fn exchange(
        &mut self,
        command: Command,
        offset: u64,
        length: u32,
        payload: &[u8],
        deadline: Deadline,
    ) -> io::Result<(Answer, Option<String>)> {
        self.usable()?;
        self.number = (self.number + 1) % NUMBERS;
        let cookie = Promise { deadline, tells: false }.cookie(self.number);
        let request = Request { command, flags: CommandFlags::EMPTY, cookie, offset, length };
        let mut out = Vec::new();
        self.transactions.submit(&mut out, request).map_err(|e| io::Error::other(e.to_string()))?;
        // It stays so if this future is dropped half way.
        self.broken = Some("a request was given up before its answer had come".into());
        self.asked = false;
        let ended = self.carry_out(&request, out, payload).await;
        self.broken = ended.as_ref().err().map(|e| format!("a request on it failed: {e}"));
        self.asked &= ended.is_err();
        ended
    }

    async fn carry_out(
        &mut self,
        request: &Request,
        mut out: Vec<u8>,
        payload: &[u8],
    ) -> io::Result<(Answer, Option<String>)> {
        let stream = self.stream()?;
        if payload.len() <= COPIED_BYTES_MAX {
            out.extend_from_slice(payload);
            send(stream, &out).await?;
        } else {
            send(stream, &out).await?;
            send(stream, payload).await?;
        }
        self.asked = matches!(request.command, Command::Flush | Command::BlockStatus);
        self.answer(request).await
    }

    fn stream(&self) -> io::Result<&Stream> {
        self.stream.as_ref().ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    fn usable(&self) -> io::Result<()> {
        if self.home.is_left() {
            return Err(io::Error::other(FORKED));
        }
        let closed =
            |why| io::Error::other(format!("this session takes no more requests: {why}; open another session"));
        self.broken.as_ref().map_or(Ok(()), |why| Err(closed(why)))
    }

    async fn answer(&mut self, request: &Request) -> io::Result<(Answer, Option<String>)> {
        let (mut answer, mut error) = (Answer::default(), None);
        if request.command == Command::Read {
            answer.data.resize(request.length as usize, 0);
        }
        loop {
            let mut rest = &self.received[..];
            let mut done = false;
            while let Some(reply) = self.transactions.poll(&mut rest).map_err(|e| io::Error::other(e.to_string()))? {
                let (Reply::Data { cookie, .. }
                | Reply::Hole { cookie, .. }
                | Reply::Status { cookie, .. }
                | Reply::Notes { cookie, .. }
                | Reply::Error { cookie, .. }
                | Reply::Done { cookie }) = reply;
                if cookie != request.cookie {
                    return Err(io::Error::other("the server answers another request than the one that was sent"));
                }
                match reply {
                    Reply::Data { offset, bytes, .. } => {
                        let at = (offset - request.offset) as usize;
                        answer.data[at..at + bytes.len()].copy_from_slice(bytes);
                    }
                    Reply::Hole { .. } => {}
                    Reply::Status { context_id, extents, .. } => answer.extents.push((context_id, extents)),
                    Reply::Notes { notes, .. } => answer.heard(notes),
                    Reply::Error { code, message, .. } => error = Some(format!("{code}: {message}")),
                    Reply::Done { .. } => done = true,
                }
            }
            let taken = self.received.len() - rest.len();
            self.received.drain(..taken);
            if done {
                return Ok((answer, error));
            }
            let mut some = vec![0; 256 << 10];
            let stream = self.stream()?;
            match stream.read_now(&mut some)? {
                Some(0) => return Err(io::Error::other("the server closed the connection")),
                Some(n) => self.received.extend_from_slice(&some[..n]),
                None => stream.readable().await?,
            }
        }
    }
}

async fn send(stream: &Stream, bytes: &[u8]) -> io::Result<()> {
    let mut sent = 0;
    while sent < bytes.len() {
        match stream.write_now(&bytes[sent..])? {
            Some(0) => return Err(io::ErrorKind::WriteZero.into()),
            Some(n) => sent += n,
            None => stream.writable().await?,
        }
    }
    Ok(())
}

async fn within<T>(patience: Duration, what: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    let late = |_| Err(io::Error::new(io::ErrorKind::TimedOut, format!("no answer within {patience:?}")));
    tokio::time::timeout(patience, what).await.unwrap_or_else(late)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_says_much_doesnt_fill_the_memory() {
        let mut answer = Answer::default();
        (0..10_000).for_each(|us| answer.heard(vec![(NoteKind::WaitUs, us), (NoteKind::InFlight, 7)]));
        assert_eq!(answer.notes, [(NoteKind::WaitUs, 9_999), (NoteKind::InFlight, 7)]);
    }

    #[tokio::test]
    async fn a_child_of_fork_sends_and_closes_nothing() {
        let (near, far) = tokio::net::UnixStream::pair().unwrap();
        let transactions = Transactions::new(true, Vec::new());
        let opened = Box::new(Opened { size_bytes: 1 << 20, ..Opened::default() });
        let patience = Duration::from_secs(20);
        let mut session = Session::new(Stream::Unix(near), transactions, Vec::new(), opened, patience, 0);
        session.home = Home::elsewhere();
        let e = session.write(0, &[7; 512]).await.unwrap_err();
        assert!(e.to_string().contains("forked"), "{e}");
        assert!(session.close().await.unwrap_err().to_string().contains("forked"));
        let end = far.try_read(&mut [0; 512]).map_err(|e| e.kind());
        assert_eq!(end, Err(io::ErrorKind::WouldBlock), "nothing was sent, and nothing ended");
    }
}
