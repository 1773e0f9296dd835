//! Servers that behave as a test wants: our own protocol half, over real sockets, one thread a connection.
#![allow(dead_code)] // each test file uses its own part

use plimsoll_client::live::Address;
use plimsoll_nbd::export::{BlockSizes, ExportInfo};
use plimsoll_nbd::handshake::{Event, Negotiated, ServerHandshake, TlsMode};
use plimsoll_nbd::promise::{self, Deadline, Promise};
use plimsoll_nbd::reply::{self, Last, Replies};
use plimsoll_nbd::request::Incoming;
use plimsoll_nbd::wire::{
    Command, ErrorCode, Extent, MetaContext, MetaContexts, NoteKind, REQUEST_BYTES, TransmissionFlags,
};
use plimsoll_testkit::until;
use std::io::{self, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A server's behaviour on reads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Does {
    /// Answers them: every byte is the server's `fill`.
    Serve,
    /// The same, after a while; changes, too.
    Slow(Duration),
    /// Answers changes as soon as it does anything else.
    HoldChanges,
    /// Holds reads until they are withdrawn, and fails them then, as a node does.
    Hold,
    /// Refuses those with a deadline, with this predicted wait in microseconds; serves others.
    Busy(u32),
    /// Refuses those with a deadline, as a node does whose queue is this long; others have to wait so long.
    Queue(Duration),
    /// Answers nothing at all any more, and keeps the connection.
    Hang,
    /// The same, and doesn't even read what comes until it does anything else.
    HangUnread,
    /// Answers no writer's question how its replica is.
    HangWriters,
    /// Takes a connection and says nothing.
    HangInHandshake,
    /// Sends what is no NBD.
    Garbage,
    /// Says of each read again and again that it has begun, and answers none.
    BeginsAgain,
    /// Fails them.
    Fail,
    /// Says that its replica may lack writes.
    Behind,
    /// Closes the connection on which a read comes.
    Close,
    /// Closes every connection as soon as anything comes.
    Gone,
}

/// Settings of the server and records of its clients, shared with the test.
#[derive(Clone, Debug)]
pub struct State {
    pub does: Does,
    pub fill: u8,
    pub size_bytes: u64,
    pub block_sizes: BlockSizes,
    pub generation: u64,
    /// Knows `x-plimsoll:promise`.
    pub promises: bool,
    /// Knows `x-plimsoll:written` too, and says this of every range.
    pub written: Option<Vec<Extent>>,
    /// The deadlines of the reads that came.
    pub deadlines: Vec<Deadline>,
    /// Offsets of the reads.
    pub offsets: Vec<u64>,
    pub cancels: u32,
    /// Changes and flushes, in order: what, where, how long.
    pub changes: Vec<(Command, u64, u32)>,
    /// Sessions that were ended as NBD wants it, without those of readers.
    pub farewells: u32,
    pub probes: u32,
    /// Confidence in its refusals, in thousandths.
    pub confidence: u32,
    /// Connections with `replica=write`.
    pub writers: u32,
    /// A second one has come.
    pub marked: bool,
    /// Each one seems to be a second one.
    pub marks_writers: bool,
    pub exports: Vec<String>,
}

#[derive(Clone)]
pub struct Fake {
    pub state: Arc<Mutex<State>>,
    path: PathBuf,
}

pub const SIZE: u64 = 1 << 20;

impl Fake {
    /// Serves on a socket in `dir`.
    pub fn start(dir: &std::path::Path, name: &str, fill: u8, does: Does) -> Fake {
        let path = dir.join(format!("{name}.sock"));
        let state = State {
            does,
            fill,
            size_bytes: SIZE,
            block_sizes: BlockSizes::default(),
            generation: 0,
            promises: true,
            written: None,
            deadlines: vec![],
            offsets: vec![],
            cancels: 0,
            changes: Vec::new(),
            farewells: 0,
            probes: 0,
            confidence: 900,
            writers: 0,
            marked: false,
            marks_writers: false,
            exports: vec![],
        };
        let fake = Fake { state: Arc::new(Mutex::new(state)), path: path.clone() };
        let listener = UnixListener::bind(path).unwrap();
        let shared = fake.state.clone();
        std::thread::spawn(move || {
            while let Ok((stream, _)) = listener.accept() {
                let shared = shared.clone();
                std::thread::spawn(move || serve(stream, &shared)); // how a connection ends is the client's business
            }
        });
        fake
    }

    pub fn address(&self) -> Address {
        format!("nbd+unix:///vol?socket={}", self.path.display()).parse().unwrap()
    }

    pub fn set(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state.lock().unwrap());
    }

    pub fn get<T>(&self, what: impl FnOnce(&State) -> T) -> T {
        what(&self.state.lock().unwrap())
    }
}

/// Agreed terms, the bytes that came after them, whether the client only reads, and whether it is a writer.
type Begun<'a> = (Box<Negotiated>, Vec<u8>, bool, Option<Written<'a>>);

/// A writer's connection. A second one marks the replica, as a node does.
struct Written<'a>(&'a Mutex<State>);

impl<'a> Written<'a> {
    fn new(shared: &'a Mutex<State>) -> Written<'a> {
        let mut state = shared.lock().unwrap();
        state.marked |= state.writers > 0 || state.marks_writers;
        state.writers += 1;
        Written(shared)
    }
}

impl Drop for Written<'_> {
    fn drop(&mut self) {
        self.0.lock().unwrap().writers -= 1;
    }
}

fn handshake<'a>(stream: &mut UnixStream, shared: &'a Mutex<State>) -> io::Result<Option<Begun<'a>>> {
    let mut reads = false;
    let mut writes = false;
    let mut machine = ServerHandshake::new(TlsMode::Off);
    let mut have = Vec::new();
    loop {
        while let Some(event) = machine.poll_event() {
            match event {
                Event::LookUpExport { name, .. } => {
                    let state = shared.lock().unwrap();
                    let contexts = MetaContexts::EMPTY.with(MetaContext::Promise);
                    let contexts = if state.written.is_some() { contexts.with(MetaContext::Written) } else { contexts };
                    let info = ExportInfo {
                        size_bytes: state.size_bytes,
                        flags: TransmissionFlags::SEND_DF
                            .with(TransmissionFlags::SEND_FLUSH)
                            .with(TransmissionFlags::SEND_TRIM),
                        block_sizes: state.block_sizes,
                        canonical_name: "vol".into(),
                        description: String::new(),
                        meta_contexts: if state.promises { contexts } else { MetaContexts::EMPTY },
                    };
                    drop(state);
                    reads = name.ends_with("replica=read");
                    writes = name.ends_with("replica=write");
                    shared.lock().unwrap().exports.push(name);
                    machine.answer_export(Ok(info));
                }
                Event::Transmission(agreed) => {
                    stream.write_all(machine.output())?;
                    let written = writes.then(|| Written::new(shared));
                    return Ok(Some((agreed, have, reads, written)));
                }
                _ => return Ok(None),
            }
        }
        stream.write_all(machine.output())?;
        machine.output_sent(machine.output().len());
        if have.is_empty() {
            let mut some = [0; 4096];
            let n = stream.read(&mut some)?;
            if n == 0 {
                return Ok(None);
            }
            have.extend_from_slice(&some[..n]);
        }
        let taken = machine.handle(&have);
        have.drain(..taken);
    }
}

fn refuse(out: &mut Vec<u8>, cookie: u64, wait_us: u32, confidence: u32) {
    let notes = [(NoteKind::WaitUs, wait_us), (NoteKind::Confidence, confidence)];
    promise::notes(out, cookie, MetaContext::Promise.id(), &notes, Last::No);
    reply::error(out, cookie, ErrorCode::Io, "busy", Last::Yes);
}

fn serve(mut stream: UnixStream, shared: &Mutex<State>) {
    if shared.lock().unwrap().does == Does::HangInHandshake {
        std::thread::sleep(Duration::from_secs(60));
        return;
    }
    if shared.lock().unwrap().does == Does::Gone {
        return;
    }
    let Ok(Some((agreed, mut have, reads, written))) = handshake(&mut stream, shared) else { return };
    let (rules, replies) = (agreed.rules(), Replies { structured: agreed.structured_replies });
    loop {
        until("something else to do than to hang", || shared.lock().unwrap().does != Does::HangUnread);
        while have.len() < REQUEST_BYTES {
            let mut some = [0; 4096];
            match stream.read(&mut some) {
                Ok(n) if n > 0 => have.extend_from_slice(&some[..n]),
                _ => return,
            }
        }
        let header: [u8; REQUEST_BYTES] = have[..REQUEST_BYTES].try_into().unwrap();
        have.drain(..REQUEST_BYTES);
        let request = match rules.judge(&header) {
            Ok(Incoming::Serve(request)) => request,
            Ok(Incoming::Disconnect) => {
                shared.lock().unwrap().farewells += u32::from(!reads);
                return;
            }
            _ => return,
        };
        let mut out = Vec::new();
        let state = shared.lock().unwrap().clone();
        if state.does == Does::Gone {
            return;
        }
        let (id, cookie) = (MetaContext::Promise.id(), request.cookie);
        if matches!(state.does, Does::Hang | Does::HangUnread) {
            continue;
        }
        match request.command {
            Command::Write | Command::Trim | Command::Flush => {
                let payload = if request.command == Command::Write { request.length as usize } else { 0 };
                while have.len() < payload {
                    let mut some = [0; 65536];
                    match stream.read(&mut some) {
                        Ok(n) if n > 0 => have.extend_from_slice(&some[..n]),
                        _ => return,
                    }
                }
                assert!(have.drain(..payload).all(|b| b == 7), "tests write sevens");
                shared.lock().unwrap().changes.push((request.command, request.offset, request.length));
                if let Does::Slow(time) = state.does {
                    std::thread::sleep(time);
                }
                until("something else to do than to hold", || shared.lock().unwrap().does != Does::HoldChanges);
                match state.does {
                    Does::Fail => replies.failed(&mut out, cookie, ErrorCode::Io, "the disk is broken"),
                    _ => replies.done(&mut out, cookie),
                }
            }
            Command::Cancel => {
                shared.lock().unwrap().cancels += 1;
                if state.does == Does::Hold {
                    replies.failed(&mut out, cookie, ErrorCode::Io, "withdrawn");
                }
            }
            Command::BlockStatus => {
                shared.lock().unwrap().probes += 1;
                if state.does == Does::HangWriters && written.is_some() {
                    continue;
                }
                let behind = u32::from(state.does == Does::Behind || state.marked);
                let low = (NoteKind::GenerationLow, state.generation as u32);
                let high = (NoteKind::GenerationHigh, (state.generation >> 32) as u32);
                let writers = (NoteKind::Writers, state.writers);
                let notes = [low, high, (NoteKind::InFlight, 0), (NoteKind::Behind, behind), writers];
                let told = state.written.filter(|_| agreed.meta_contexts.contains(MetaContext::Written));
                promise::notes(&mut out, cookie, id, &notes, if told.is_some() { Last::No } else { Last::Yes });
                if let Some(extents) = told {
                    reply::block_status(&mut out, cookie, MetaContext::Written.id(), &extents, Last::Yes);
                }
            }
            Command::Read => {
                let promised = if state.promises { Promise::of(cookie) } else { Promise::default() };
                let mut seen = shared.lock().unwrap();
                seen.deadlines.push(promised.deadline);
                seen.offsets.push(request.offset);
                drop(seen);
                match (state.does, promised.deadline) {
                    (Does::Busy(wait), Deadline::Within(_)) => refuse(&mut out, cookie, wait, state.confidence),
                    (Does::Queue(time), Deadline::Within(_)) => {
                        refuse(&mut out, cookie, time.as_micros() as u32, state.confidence)
                    }
                    (Does::Fail, _) => replies.failed(&mut out, cookie, ErrorCode::Io, "the disk is broken"),
                    (Does::Garbage, _) => out.extend([0x5a; 200]),
                    (Does::Close, _) => return,
                    (Does::BeginsAgain, _) => {
                        for _ in 0..100 {
                            promise::notes(&mut out, cookie, id, &[(NoteKind::Begun, 0)], Last::No);
                        }
                    }
                    (Does::Hold, _) => {}
                    (Does::Behind, _) => {
                        promise::notes(&mut out, cookie, id, &[(NoteKind::Behind, 1)], Last::No);
                        reply::error(&mut out, cookie, ErrorCode::Io, "may lack writes", Last::Yes);
                    }
                    (does, _) => {
                        if let Does::Slow(time) | Does::Queue(time) = does {
                            std::thread::sleep(time);
                        }
                        if state.promises {
                            let generation = state.generation as u32;
                            let notes =
                                [(NoteKind::GenerationBefore, generation), (NoteKind::GenerationLow, generation)];
                            promise::notes(&mut out, cookie, id, &notes, Last::No);
                        }
                        replies.read_whole(&mut out, cookie, request.offset, request.length);
                        out.resize(out.len() + request.length as usize, state.fill);
                    }
                }
            }
            _ => return,
        }
        // A client that has gone may have said farewell before.
        let _ = stream.write_all(&out);
    }
}
