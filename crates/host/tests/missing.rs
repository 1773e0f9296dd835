//! Kernels, agents and files without which there are no deadlines: the reason is reported, once, and reads go on.

mod common;
#[path = "common/posed.rs"]
mod posed;

use common::{Loop, ROLE, WHERE, as_process};
use plimsoll_host::agent::{Agent, Requests, Wanted};
use plimsoll_host::link::{Link, reach};
use plimsoll_host::shared::now_ns;
use plimsoll_host::{Answer, Options, Reader};
use plimsoll_testkit::until;
use posed::Posed;
use rustix::fs::{Advice, MemfdFlags, fadvise, memfd_create};
use std::fs::{File, Permissions};
use std::io::{ErrorKind, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::time::Duration;

const NOBODY: libc::uid_t = 65_534;
/// Reasons that readers of this process gave.
static SAID: Mutex<Vec<String>> = Mutex::new(Vec::new());

fn reader(socket: &Path) -> Reader {
    let say = |words: &str| SAID.lock().unwrap().push(words.into());
    Reader::new(Options { socket: socket.into(), say, ..Options::default() })
}

/// Reads go on, without a deadline that nobody could keep; the reason.
fn plain(reader: &Reader, file: &File) -> String {
    let mut buf = [0; 7];
    // Until the search for an agent has ended there is no reason to report.
    until("the reason is reported", || {
        assert_eq!(reader.read(file.as_fd(), &mut buf, 0, Duration::ZERO).unwrap(), Answer::Read(7));
        !SAID.lock().unwrap().is_empty()
    });
    let before = reader.counts();
    for _ in 0..20 {
        assert_eq!(reader.read(file.as_fd(), &mut buf, 0, Duration::ZERO).unwrap(), Answer::Read(7));
    }
    assert_eq!((&buf, reader.counts().plain), (b"content", before.plain + 20));
    let said = std::mem::take(&mut *SAID.lock().unwrap());
    assert_eq!(said.len(), 1, "once: {said:?}");
    said.into_iter().next().unwrap()
}

fn written(path: &Path) -> File {
    std::fs::write(path, b"content").unwrap();
    File::open(path).unwrap().sync_all().unwrap();
    File::open(path).unwrap()
}

/// Not a test of its own: a start on a kernel that lacks something.
#[test]
fn role() {
    let (Ok(role), Some(dir)) = (std::env::var(ROLE), std::env::var_os(WHERE).map(PathBuf::from)) else { return };
    assert_eq!(role, "start");
    for error in [Agent::start(Wanted::default()).err(), Requests::open().err()] {
        println!("{}", error.map_or_else(|| "STARTED".into(), |e| e.to_string()));
    }
    println!("READ {}", plain(&reader(&dir.join("host.sock")), &File::open(dir.join("f")).unwrap()));
}

/// A start where `mount` has changed what the kernel shows of itself, for one process alone.
fn starts(dir: &Path, mount: &str) -> String {
    let role = as_process("start", dir);
    let mut program = Command::new("unshare");
    program.args(["--mount", "--propagation", "private", "sh", "-c", &format!("{mount} && exec \"$@\""), "sh"]);
    program.arg(role.get_program()).args(role.get_args()).env(ROLE, "start").env(WHERE, dir).current_dir("/");
    let output = program.output().unwrap();
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[test]
fn a_kernel_without_type_information_is_reported_and_reads_go_on() {
    let dir = tempfile::tempdir().unwrap();
    written(&dir.path().join("f"));
    let said = starts(dir.path(), "true");
    assert_eq!(said.matches("STARTED").count(), 2, "this kernel has all: {said}");
    let said = starts(dir.path(), "mount -t tmpfs none /sys/kernel/btf");
    assert_eq!(said.matches("host mode needs a kernel with CONFIG_DEBUG_INFO_BTF").count(), 2, "{said}");
    assert!(said.contains("/sys/kernel/btf/vmlinux: No such file") && said.contains("READ no host agent"), "{said}");
}

#[test]
fn a_kernel_without_a_tracepoint_is_reported_and_reads_go_on() {
    let dir = tempfile::tempdir().unwrap();
    written(&dir.path().join("f"));
    let mut types = std::fs::read("/sys/kernel/btf/vmlinux").unwrap();
    let name = b"btf_trace_block_rq_insert\0";
    let at = types.windows(name.len()).position(|bytes| bytes == name).expect("this kernel has the tracepoint");
    types[at + name.len() - 2] = b'x';
    let poor = dir.path().join("vmlinux");
    std::fs::write(&poor, types).unwrap();
    let said = starts(dir.path(), &format!("mount --bind {} /sys/kernel/btf/vmlinux", poor.display()));
    let named = "tracepoint block_rq_insert: ";
    assert_eq!(said.matches(named).count(), 2, "{said}");
    assert!(said.contains("host mode needs Linux 5.17 or later") && said.contains("READ no host agent"), "{said}");
}

#[test]
fn each_reason_for_a_plain_read_is_reported_once() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    std::fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
    let socket = dir.path().join("host.sock");
    let file = written(&dir.path().join("f"));
    let dev = file.metadata().unwrap().dev();
    assert!(plain(&reader(&socket), &file).starts_with("no host agent can be reached"));

    let agent = Posed::start(dir.path(), &socket, false);
    let linked = || {
        let reader = reader(&socket);
        until("the agent is found", || reader.forecast(dev, 4096).is_some());
        reader
    };
    let reader_of_all = linked();
    let mut buf = [0; 7];
    let mut is_refused = |reader: &Reader| {
        fadvise(&file, 0, None, Advice::DontNeed).unwrap();
        matches!(reader.read(file.as_fd(), &mut buf, 0, Duration::ZERO).unwrap(), Answer::Busy(_))
    };
    until("a read has its deadline", || is_refused(&reader_of_all));

    // A file system without a disk.
    let mut memory = File::from(memfd_create("memory", MemfdFlags::CLOEXEC).unwrap());
    memory.write_all(b"content").unwrap();
    assert!(plain(&reader_of_all, &memory).contains("no disk of its own"));

    // A disk that isn't watched.
    let disk = Loop::new(dir.path(), 1 << 20);
    File::options().write(true).open(&disk.0).unwrap().write_all(b"content").unwrap();
    assert!(plain(&reader_of_all, &File::open(&disk.0).unwrap()).contains("doesn't watch a file's disk"));

    // A user without permission: to ask which pages of another's file are in memory, and to connect.
    let theirs = written(&dir.path().join("theirs"));
    std::thread::scope(|s| {
        let nobody = s.spawn(|| {
            let before = linked();
            // SAFETY: the bare system call changes this thread alone, which ends here.
            assert_eq!(unsafe { libc::syscall(libc::SYS_setresuid, NOBODY, NOBODY, NOBODY) }, 0);
            assert!(plain(&before, &theirs).contains("doesn't tell which pages"));
            assert_eq!(reach(&socket).unwrap_err().kind(), ErrorKind::PermissionDenied);
            assert!(plain(&reader(&socket), &theirs).starts_with("no host agent can be reached"));
        });
        nobody.join().unwrap();
    });

    // An agent whose heartbeat is too old, until it beats again.
    let link = Link::connect(&socket).unwrap();
    let last = now_ns();
    agent.heartbeat(Some(last));
    assert!(link.is_fresh(last + 99_999_999) && !link.is_fresh(last + 100_000_000));
    // It's ahead in a time namespace with an older clock, and would be so for ever.
    assert!(link.is_fresh(last - 999_999_999) && !link.is_fresh(last - 1_000_000_000));
    agent.heartbeat(Some(now_ns() - 100_000_000));
    assert!(plain(&reader_of_all, &file).contains("has stopped"));
    agent.heartbeat(None);
    until("a read has its deadline again", || is_refused(&reader_of_all));
    agent.heartbeat(Some(now_ns() - 100_000_000));
    assert!(!is_refused(&reader_of_all) && SAID.lock().unwrap().is_empty(), "once a process");
}
