//! Ext4 (data=ordered) on the modelled disk of the lab's ML-E2: the same reader and writer, in real time that is stretched, so that the
//! host's own work doesn't count. `make fs-ext4` runs it.
//!
//! A FUSE file stands for the disk: each request is answered when the model has performed it. A loop device makes a disk of the file.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant, UNIX_EPOCH};

use fuser::{
    Config, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, InitFlags, KernelConfig,
    LockOwner, MountOption, OpenFlags, ReplyAttr, ReplyData, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyWrite, Request,
    SessionACL, WriteFlags,
};
use plimsoll_base::Time;
use plimsoll_device::{AnyModel, DeviceOptions, DeviceSpec, Done, Model, Op, Request as DiskRequest};
use rustix::fs::OFlags;

/// Seconds of real time for one of the model's.
const STRETCH: f64 = 10.0;
const READ_BYTES: u64 = 128 << 10;
const FILES: usize = 20;
const FILE_BYTES: u64 = 2 << 30;
const TTL: Duration = Duration::from_secs(3600);

enum Reply {
    Read(ReplyData, Vec<u8>),
    Write(ReplyWrite, u32),
    Flush(ReplyEmpty),
}

struct State {
    model: AnyModel,
    began: Instant,
    tag: u64,
    waiting: std::collections::VecDeque<(DiskRequest, Reply)>,
    replies: BTreeMap<u64, Reply>,
    end: bool,
}

struct Disk {
    content: File,
    bytes: u64,
    /// The loop device has many writes under way; else one at a time.
    parallel: bool,
    /// Requests take the model's time; before the measurement they take none.
    slow: AtomicBool,
    requests: AtomicU64,
    state: Mutex<State>,
    changed: Condvar,
}

impl Reply {
    fn send(self) {
        match self {
            Reply::Read(r, data) => r.data(&data),
            Reply::Write(r, len) => r.written(len),
            Reply::Flush(r) => r.ok(),
        }
    }
}

impl Disk {
    fn submit(&self, op: Op, offset: u64, len: u64, reply: Reply) {
        if !self.slow.load(Ordering::SeqCst) {
            return reply.send();
        }
        self.requests.fetch_add(1, Ordering::Relaxed);
        let mut s = self.state.lock().unwrap();
        s.tag += 1;
        let tag = s.tag;
        s.waiting.push_back((DiskRequest { tag, op, offset, len }, reply));
        self.changed.notify_all();
    }

    /// Performs requests at the model's times until the end.
    fn perform(&self) {
        let mut s = self.state.lock().unwrap();
        while !s.end {
            let now = Time::from_nanos((s.began.elapsed().as_secs_f64() / STRETCH * 1e9) as u64);
            let mut done: Vec<Done> = Vec::new();
            s.model.advance(now, &mut done);
            while s.model.outstanding() < s.model.queue_max() {
                let Some((r, reply)) = s.waiting.pop_front() else { break };
                s.replies.insert(r.tag, reply);
                s.model.submit(now, r);
            }
            let finished: Vec<Reply> = done.iter().filter_map(|d| s.replies.remove(&d.tag)).collect();
            finished.into_iter().for_each(Reply::send);
            let next = s.model.next_event();
            let wait = if next == Time::NEVER {
                Duration::from_secs(1)
            } else {
                Duration::from_secs_f64(next.since(now).as_millis_f64() / 1000.0 * STRETCH)
            };
            s = self.changed.wait_timeout(s, wait.min(Duration::from_secs(1))).unwrap().0;
        }
    }
}

struct Front(Arc<Disk>);

impl Front {
    fn attr(&self, ino: u64) -> FileAttr {
        let (kind, size) = if ino == 1 { (FileType::Directory, 0) } else { (FileType::RegularFile, self.0.bytes) };
        FileAttr {
            ino: INodeNo(ino),
            size,
            blocks: size / 512,
            atime: UNIX_EPOCH,
            mtime: UNIX_EPOCH,
            ctime: UNIX_EPOCH,
            crtime: UNIX_EPOCH,
            kind,
            perm: 0o700,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        }
    }
}

impl Filesystem for Front {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        let _ = config.set_max_background(256);
        let _ = config.set_congestion_threshold(256);
        if self.0.parallel {
            config.add_capabilities(InitFlags::FUSE_ASYNC_DIO).expect("the kernel has it since 3.13");
        }
        Ok(())
    }
    fn lookup(&self, _: &Request, _: INodeNo, name: &OsStr, reply: ReplyEntry) {
        if name == "disk" { reply.entry(&TTL, &self.attr(2), Generation(0)) } else { reply.error(fuser::Errno::ENOENT) }
    }
    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&TTL, &self.attr(ino.0));
    }
    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        let parallel = if self.0.parallel { FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES } else { FopenFlags::empty() };
        reply.opened(FileHandle(0), parallel);
    }
    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let mut data = vec![0; size.min((self.0.bytes - offset) as u32) as usize];
        self.0.content.read_exact_at(&mut data, offset).unwrap();
        self.0.submit(Op::Read, offset, data.len() as u64, Reply::Read(reply, data));
    }
    fn write(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        self.0.content.write_all_at(data, offset).unwrap();
        let len = data.len() as u32;
        self.0.submit(Op::Write { fua: false }, offset, len.into(), Reply::Write(reply, len));
    }
    fn fsync(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        self.0.submit(Op::Flush, 0, 0, Reply::Flush(reply));
    }
}

fn ok(command: &mut Command) -> String {
    let out = command.output().unwrap();
    assert!(out.status.success(), "{command:?}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8_lossy(&out.stdout).trim().to_owned()
}

/// Commands that undo the rest when the test ends, however it ends.
struct Undo(Vec<Command>);

impl Drop for Undo {
    fn drop(&mut self) {
        for mut c in self.0.drain(..).rev() {
            let _ = c.status(); // it may have been undone
        }
    }
}

#[repr(align(4096))]
struct Aligned([u8; READ_BYTES as usize]);

/// Two requests of a sequential reader at once, from `from` on; returns the bytes that were read until `until`.
fn read(big: &Path, from: u64, until: Instant) -> u64 {
    let at = AtomicU64::new(from);
    let total = AtomicU64::new(0);
    std::thread::scope(|s| {
        for _ in 0..2 {
            s.spawn(|| {
                let f = OpenOptions::new().read(true).custom_flags(OFlags::DIRECT.bits() as i32).open(big).unwrap();
                let mut buffer = Box::new(Aligned([0; READ_BYTES as usize]));
                while Instant::now() < until {
                    let offset = at.fetch_add(READ_BYTES, Ordering::Relaxed) % FILE_BYTES;
                    f.read_exact_at(&mut buffer.0, offset).unwrap();
                    total.fetch_add(READ_BYTES, Ordering::Relaxed);
                }
            });
        }
    });
    total.into_inner()
}

struct Outcome {
    writes_per_s: f64,
    read_bytes_per_s: f64,
    sync_ms: f64,
    requests_per_sync: f64,
}

/// The reader beside a writer that syncs after a page in each file, `rate` pages a second at most. Times are the model's.
fn run(disk: &Disk, big: &Path, files: &[File], rate: u32, seconds: f64) -> Outcome {
    let mut seed = 1u64;
    let mut below = |n: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % n
    };
    let (from, requests) = (Instant::now(), disk.requests.load(Ordering::Relaxed));
    let until = from + real(seconds);
    let (mut syncs, mut spent) = (0u64, 0.0);
    let read_bytes = std::thread::scope(|s| {
        let reader = s.spawn(|| read(big, FILE_BYTES / 2, until));
        let mut due = from;
        while due < until {
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            let began = Instant::now();
            due = began.max(due) + real(FILES as f64 / f64::from(rate));
            for f in files {
                f.write_all_at(&[7; 4096], below(1024) * 4096).unwrap();
            }
            rustix::fs::syncfs(&files[0]).unwrap();
            spent += began.elapsed().as_secs_f64() / STRETCH * 1000.0;
            syncs += 1;
        }
        reader.join().unwrap()
    });
    let took = from.elapsed().as_secs_f64() / STRETCH;
    let all = disk.requests.load(Ordering::Relaxed) - requests;
    Outcome {
        writes_per_s: (syncs * FILES as u64) as f64 / took,
        read_bytes_per_s: read_bytes as f64 / seconds,
        sync_ms: spent / syncs as f64,
        requests_per_sync: (all - read_bytes / READ_BYTES) as f64 / syncs as f64,
    }
}

fn real(s: f64) -> Duration {
    Duration::from_secs_f64(s * STRETCH)
}

#[test]
#[ignore = "minutes, and figures to read: make fs-ext4"]
fn writes_at_once() {
    measure(true);
}

#[test]
#[ignore = "minutes, and figures to read: make fs-ext4"]
fn writes_one_at_a_time() {
    measure(false);
}

fn measure(parallel: bool) {
    let seconds: f64 = std::env::var("PLIMSOLL_FS_SECONDS").map_or(6.0, |v| v.parse().expect("seconds"));
    let dir = tempfile::tempdir().unwrap();
    let (front, at) = (dir.path().join("front"), dir.path().join("ext4"));
    fs::create_dir(&front).unwrap();
    fs::create_dir(&at).unwrap();
    let model = DeviceSpec::named("cheetah-15k5").unwrap().build(DeviceOptions { seed: 1, mismatch: 0.0 }).unwrap();
    let bytes = model.size_bytes() / 4096 * 4096;
    let path = dir.path().join("content");
    let content = File::options().read(true).write(true).create_new(true).open(path).unwrap();
    content.set_len(bytes).unwrap();
    let state = State {
        model,
        began: Instant::now(),
        tag: 0,
        waiting: Default::default(),
        replies: BTreeMap::new(),
        end: false,
    };
    let disk = Arc::new(Disk {
        content,
        bytes,
        parallel,
        slow: AtomicBool::new(false),
        requests: AtomicU64::new(0),
        state: Mutex::new(state),
        changed: Condvar::new(),
    });
    let mut config = Config::default();
    config.mount_options = vec![MountOption::FSName("modelled-disk".into())];
    config.acl = SessionACL::Owner;
    let session = fuser::spawn_mount(Front(disk.clone()), &front, &config).unwrap();
    let performer = std::thread::spawn({
        let disk = disk.clone();
        move || disk.perform()
    });
    let mut undo = Undo(Vec::new());
    let device = ok(Command::new("losetup").args(["--find", "--show", "--direct-io=on"]).arg(front.join("disk")));
    let mut detach = Command::new("losetup");
    detach.arg("--detach").arg(&device);
    undo.0.push(detach);
    // A journal of 5 GB isn't to be had; that of 1 GiB isn't full in the time of a run.
    ok(Command::new("mkfs.ext4")
        .args(["-q", "-E", "lazy_itable_init=0,lazy_journal_init=1,nodiscard", "-i", "1048576", "-J", "size=1024"])
        .arg(&device));
    ok(Command::new("mount").args(["-t", "ext4", "-o", "data=ordered,noatime,commit=300"]).arg(&device).arg(&at));
    let mut unmount = Command::new("umount");
    unmount.arg(&at);
    undo.0.push(unmount);
    // Ext4 spreads directories of the root over its groups.
    let files: Vec<File> = (0..FILES)
        .map(|i| {
            let d = at.join(format!("d{i}"));
            fs::create_dir(&d).unwrap();
            let f = File::create(d.join("f")).unwrap();
            f.write_all_at(&vec![1; 4 << 20], 0).unwrap();
            f
        })
        .collect();
    let big = at.join("big");
    let f = File::create(&big).unwrap();
    for mb in 0..FILE_BYTES >> 20 {
        f.write_all_at(&vec![2; 1 << 20], mb << 20).unwrap();
    }
    f.sync_all().unwrap();
    rustix::fs::syncfs(&f).unwrap();
    disk.slow.store(true, Ordering::SeqCst);
    let alone = read(&big, 0, Instant::now() + real(3.0)) as f64 / 3.0;
    println!("alone: {:.1} MB/s of the model", alone / 1e6);
    println!("at once  asked  done writes/s  kept %  sync ms  requests/sync");
    // The disk has the order in its hands.
    fs::write(format!("/sys/block/{}/queue/scheduler", device.trim_start_matches("/dev/")), "none").unwrap();
    for rate in [40, 320] {
        let o = run(&disk, &big, &files, rate, seconds);
        println!(
            "{parallel:<8} {rate:>5} {:>14.0} {:>7.1} {:>8.1} {:>14.1}",
            o.writes_per_s,
            o.read_bytes_per_s / alone * 100.0,
            o.sync_ms,
            o.requests_per_sync
        );
    }
    disk.slow.store(false, Ordering::SeqCst);
    drop((f, files));
    drop(undo);
    session.umount_and_join().unwrap();
    disk.state.lock().unwrap().end = true;
    disk.changed.notify_all();
    performer.join().unwrap();
}
