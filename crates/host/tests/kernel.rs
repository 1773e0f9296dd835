//! Against the running kernel, as root: counts, forecasts, refusals, and everything that may be missing or hostile.

mod common;

use common::{Blocks, Loop, Modelled, Noise, ROLE, Ticking, WHERE, as_process, run};
use plimsoll_host::agent::{Access, Agent, Change, Handout, StartError, TICK, Wanted};
use plimsoll_host::link::Link;
use plimsoll_host::{Answer, Options, Reader};
use plimsoll_testkit::until;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

const NOBODY: u32 = 65_534;

fn only(disk: &Loop) -> Wanted {
    Wanted { disks: vec![disk.name().into()], ..Wanted::default() }
}

fn quiet(socket: &Path) -> Options {
    Options { socket: socket.into(), say: |_| {}, ..Options::default() }
}

/// Not a test of its own: what other processes do.
#[test]
fn role() {
    let (Ok(role), Some(dir)) = (std::env::var(ROLE), std::env::var_os(WHERE).map(PathBuf::from)) else { return };
    match role.as_str() {
        "start" => match Agent::start(Wanted::default()) {
            Ok(_) => println!("STARTED"),
            Err(e) => println!("{e}"),
        },
        "agent" => {
            let mut agent = Agent::start(Wanted {
                disks: vec![std::fs::read_to_string(dir.join("name")).unwrap()],
                ..Wanted::default()
            })
            .unwrap();
            let (states, notice) = agent.shared().unwrap();
            let _handout = Handout::listen(&dir.join("host.sock"), Access::All, states, notice).unwrap();
            loop {
                agent.tick();
                std::thread::sleep(TICK);
            }
        }
        "stranger" => println!("{}", stranger(&dir)),
        other => panic!("{other}"),
    }
}

/// Rights of a process without privilege on the descriptors that it is handed.
fn stranger(dir: &Path) -> String {
    use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
    let socket = dir.join("host.sock");
    if let Err(e) = Link::connect(&socket) {
        return format!("NO LINK {e}");
    }
    let stream = UnixStream::connect(&socket).unwrap();
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut hello = [0; 64];
    recvmsg(&stream, &mut [std::io::IoSliceMut::new(&mut hello)], &mut ancillary, RecvFlags::empty()).unwrap();
    let fds: Vec<_> = ancillary
        .drain()
        .filter_map(|m| if let RecvAncillaryMessage::ScmRights(fds) = m { Some(fds.collect::<Vec<_>>()) } else { None })
        .flatten()
        .collect();
    let mut could = Vec::new();
    for (i, fd) in fds.iter().enumerate() {
        let options = || {
            let mut o = memmap2::MmapOptions::new();
            o.len(4096);
            o
        };
        if options().map_raw(fd).is_ok() {
            could.push(format!("map {i} for writing"));
        }
        if options().map_raw_read_only(fd).is_err() {
            could.push(format!("not even read {i}"));
        }
        let file = File::from(fd.try_clone().unwrap());
        if file.write_at(&[1], 0).is_ok() || file.set_len(0).is_ok() {
            could.push(format!("change {i}"));
        }
        // BPF_MAP_UPDATE_ELEM of key 0.
        let (key, value) = (0u32, vec![0u8; 16_384]);
        let attributes: [u64; 4] =
            [std::os::fd::AsRawFd::as_raw_fd(fd) as u64, &raw const key as u64, value.as_ptr() as u64, 0];
        // SAFETY: the kernel reads the attributes, the key and the value, all alive, or refuses.
        if unsafe { libc::syscall(libc::SYS_bpf, 2, attributes.as_ptr(), size_of_val(&attributes)) } == 0 {
            could.push(format!("update {i}"));
        }
    }
    format!("{} descriptors, can {could:?}", fds.len())
}

#[test]
fn counts_are_exact_and_a_fresh_compilation_behaves_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("bpf/build.sh");
    run(script.to_str().unwrap(), &[dir.path().to_str().unwrap()]);
    let fresh = std::fs::read(dir.path().join("host.bpf.o")).unwrap();
    let disk = Loop::new(dir.path(), 64 << 20);
    for scheduler in ["none", "mq-deadline"] {
        std::fs::write(format!("/sys/block/{}/queue/scheduler", disk.name()), scheduler).unwrap();
        let is_counted = (0..20).any(|_| counts_are_exact(&disk, &fresh, scheduler));
        assert!(is_counted, "{scheduler}: wrong each time");
    }
}

/// False if a count was wrong, as it is after an event at an unlucky time (`host.bpf.c` says when): ticks of the agent must make up for that.
fn counts_are_exact(disk: &Loop, fresh: &[u8], scheduler: &str) -> bool {
    let mut agents = [Agent::start(only(disk)).unwrap(), Agent::start_object(fresh, only(disk)).unwrap()];
    // The count begins with the first request: alone, so that none is lost.
    disk.open().read_exact_at(&mut Box::new(Blocks([0; 4096])).0, 0).unwrap();
    std::thread::scope(|s| {
        for t in 0..4u64 {
            let file = disk.open();
            s.spawn(move || {
                let mut block = Box::new(Blocks([t as u8; 4096]));
                for i in 0..500 {
                    let at = (t * 500 + i) * 4096;
                    if i % 5 == 0 { file.write_all_at(&block.0, at) } else { file.read_exact_at(&mut block.0, at) }
                        .unwrap();
                }
            });
        }
    });
    let is_idle = |a: &Agent| a.load(a.watched().next().unwrap()).requests() == 0;
    let end = Instant::now() + Duration::from_secs(2);
    while !agents.iter().all(is_idle) && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(2));
    }
    for agent in &mut agents {
        if !is_idle(agent) {
            println!("{scheduler}: wrong: {:?}", agent.load(agent.watched().next().unwrap()));
            until("the agent has corrected its count", || {
                agent.tick();
                // What it says is obeyed at the next request.
                disk.open().read_exact_at(&mut Box::new(Blocks([0; 4096])).0, 0).unwrap();
                is_idle(agent)
            });
            return false;
        }
        let w = agent.watched().next().unwrap();
        assert_eq!(agent.load(w).bytes_in_flight(), 0, "{scheduler}");
        if agent.completed(w) != 2001 {
            println!("{scheduler}: wrong: {} of 2001 completed", agent.completed(w));
            return false;
        }
    }
    agents.iter_mut().for_each(|a| {
        for _ in 0..4 {
            a.tick();
        }
        assert!(a.watched().next().unwrap().seen() > 0, "{scheduler}: no read was timed");
    });
    true
}

/// A count of the scheduler's requests that began beside others: one that was counted when it was inserted, and not when it was issued, would
/// stay for ever.
#[test]
fn an_agent_that_starts_on_a_busy_disk_with_a_scheduler_counts_down_to_zero() {
    let dir = tempfile::tempdir().unwrap();
    let disk = Loop::new(dir.path(), 64 << 20);
    std::fs::write(format!("/sys/block/{}/queue/scheduler", disk.name()), "mq-deadline").unwrap();
    let noise = Noise::start(&disk, 8, 64 << 20);
    let agents: Vec<Agent> = (0..12).map(|_| Agent::start(only(&disk)).unwrap()).collect();
    let load = |a: &Agent| a.load(a.watched().next().unwrap());
    let completed = |a: &Agent| a.completed(a.watched().next().unwrap());
    until("each has seen requests", || agents.iter().all(|a| completed(a) > 0));
    noise.stop();
    let are_in_flight =
        || plimsoll_host::disk::in_flight(agents[0].watched().next().unwrap().disk().dev) != Some([0; 2]);
    until("the disk is idle", || !are_in_flight());
    // An interrupt at an unlucky time may cost one of them a request (`host.bpf.c` says when).
    let wrong: Vec<_> = agents.iter().map(load).filter(|l| l.queued_reads + l.queued_writes > 0).collect();
    assert!(wrong.len() <= 1, "{wrong:?}");
}

#[test]
fn evicted_pages_of_a_busy_disk_are_refused_and_come_in() {
    let dir = tempfile::tempdir().unwrap();
    let modelled = Modelled::start(dir.path(), 96, 4);
    let path = modelled.folder().join("file");
    std::fs::write(&path, vec![7; 8 << 20]).unwrap();
    run("sync", &["--file-system", path.to_str().unwrap()]);
    let agent = Ticking::start(dir.path(), only(modelled.disk.as_ref().unwrap()), Access::Owner);
    let reader = Reader::new(Options { say: |words| eprintln!("{words}"), ..quiet(&agent.socket) });
    let file = File::open(&path).unwrap();
    let dev = file.metadata().unwrap().dev();
    let mut buf = vec![0; 4096];
    let mut read = |at: u64, ms: u64| reader.read(file.as_fd(), &mut buf, at, Duration::from_millis(ms)).unwrap();
    let evict = || rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    for page in 0..256 {
        assert_eq!(read(page * 4096, 1000), Answer::Read(4096));
    }
    evict();

    let noise = Noise::start(modelled.disk.as_ref().unwrap(), 8, 64 << 20);
    until("a forecast of several reads", || reader.forecast(dev, 4096).is_some_and(|f| f.wait_ns > 12_000_000));
    let mut refused = None;
    until("an evicted page that was read before is refused", || {
        evict();
        refused = Some(read(10 * 4096, 6)).filter(|answer| matches!(answer, Answer::Busy(_)));
        refused.is_some()
    });
    let Some(Answer::Busy(busy)) = refused else { unreachable!() };
    assert!(busy.wait > Duration::from_millis(6) && busy.confidence >= 0.5, "{busy:?}");
    assert_eq!(read(1000 * 4096, 6), Answer::Read(4096), "it was never read before");
    assert_eq!(read(1000 * 4096, 0), Answer::Read(4096), "it's resident");
    assert_eq!(read(20 * 4096, 10_000), Answer::Read(4096), "it's in time");
    assert_eq!(read(9 << 20, 0), Answer::Read(0), "the end of the file");
    // The page that was refused comes in behind the noise.
    until("the refused page is resident", || read(10 * 4096, 0) == Answer::Read(4096));

    // SAFETY: the file isn't changed while it's mapped.
    let map = unsafe { memmap2::MmapOptions::new().map(&file).unwrap() };
    let check =
        |page: usize| reader.addrcheck(map.as_ptr() as usize + page * 4096, 4096, Duration::from_millis(6)).unwrap();
    assert_eq!(check(10), None);
    evict();
    until("the page is evicted", || {
        evict();
        check(10).is_some()
    });
    assert_eq!(check(1500), None, "it was never touched");
    until("what was refused is resident", || check(10).is_none());
    assert!(reader.addrcheck(0x1000, 4096, Duration::ZERO).is_err(), "nothing is mapped there");
    drop(noise);
    drop((map, file));
}

#[test]
fn an_agent_that_stops_or_ends_makes_plain_reads_until_one_is_back() {
    static SAID: Mutex<Vec<String>> = Mutex::new(Vec::new());
    let dir = tempfile::tempdir().unwrap();
    let disk = Loop::new(dir.path(), 64 << 20);
    std::fs::write(dir.path().join("name"), disk.name()).unwrap();
    let file = disk.open();
    let dev = file.metadata().unwrap().rdev();
    let start = || Ended(as_process("agent", dir.path()).stdout(Stdio::null()).spawn().unwrap());
    let signal = |child: &Ended, s| {
        rustix::process::kill_process(rustix::process::Pid::from_child(&child.0), s).unwrap();
    };
    use rustix::process::Signal;

    let agent = start();
    let socket = dir.path().join("host.sock");
    until("the agent listens", || socket.exists());
    let say = |words: &str| SAID.lock().unwrap().push(words.into());
    let reader = Reader::new(Options { say, ..quiet(&socket) });
    let mut block = Box::new(Blocks([0; 4096]));
    until("the disk is known", || {
        (0..64).for_each(|i| file.read_exact_at(&mut block.0, i * 4096).unwrap());
        reader.forecast(dev, 4096).is_some()
    });
    let mut is_refused =
        || matches!(reader.read(file.as_fd(), &mut block.0, 0, Duration::ZERO).unwrap(), Answer::Busy(_));
    until("a read is refused", &mut is_refused);

    signal(&agent, Signal::STOP);
    until("the stopped agent is noticed", || !is_refused());
    signal(&agent, Signal::CONT);
    until("the agent is back", &mut is_refused);
    drop(agent);
    until("the ended agent is noticed", || !is_refused());
    assert!(!is_refused(), "a plain read");
    let _again = start();
    until("another agent is found, and has learned", || {
        let mut block = Box::new(Blocks([0; 4096]));
        let other = disk.open();
        (0..64).for_each(|i| other.read_exact_at(&mut block.0, i * 4096).unwrap());
        is_refused()
    });
    let said = SAID.lock().unwrap();
    assert_eq!(said.len(), 1, "{said:?}");
    assert!(said[0].contains("has stopped"), "{said:?}");
}

/// A child that is killed in the end.
struct Ended(Child);
impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn strangers_can_read_the_sum_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let disk = Loop::new(dir.path(), 16 << 20);
    let said = |uid: u32, gid: u32| {
        let output = as_process("stranger", dir.path()).uid(uid).gid(gid).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    for (access, member, is_let_in) in [
        (Access::All, NOBODY, true),
        (Access::Group(4242), 4242, true),
        (Access::Group(4242), NOBODY, false),
        (Access::Owner, NOBODY, false),
    ] {
        let agent = Ticking::start(dir.path(), only(&disk), access);
        let said = said(NOBODY, member);
        let expected = if is_let_in { "2 descriptors, can []" } else { "Permission denied" };
        assert!(said.contains(expected), "{access:?}: {said}");
        agent.stop();
    }
}

#[test]
fn what_is_missing_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let output = as_process("start", dir.path()).uid(NOBODY).gid(NOBODY).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.contains("CAP_PERFMON and CAP_BPF are missing"), "{said}");
    let with = |caps: &str| {
        let mut program = Command::new("setpriv");
        let caps = format!("--inh-caps=-all,{caps} --ambient-caps=-all,{caps} --bounding-set=-all,{caps}");
        program.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).args(caps.split(' '));
        let role = as_process("start", dir.path());
        program.arg(role.get_program()).args(role.get_args()).current_dir("/");
        program.env(ROLE, "start").env(WHERE, dir.path());
        let output = program.output().unwrap();
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
    };
    assert!(with("+bpf,+perfmon").contains("STARTED"), "{}", with("+bpf,+perfmon"));
    let half = with("+bpf");
    assert!(half.contains("CAP_PERFMON is missing"), "{half}");
    let nowhere = Agent::start(Wanted { disks: vec!["nosuchdisk".into()], ..Wanted::default() });
    assert!(matches!(nowhere, Err(StartError::NoDisk(name)) if name == "nosuchdisk"));
}

#[test]
fn disks_come_and_go() {
    let dir = tempfile::tempdir().unwrap();
    let agent = Ticking::start(dir.path(), Wanted::default(), Access::Owner);
    let reader = Reader::new(quiet(&agent.socket));
    let name;
    {
        let disk = Loop::new(dir.path(), 16 << 20);
        name = disk.name().to_string();
        let (file, mut block) = (disk.open(), Box::new(Blocks([0; 4096])));
        let dev = file.metadata().unwrap().rdev();
        until("the new disk is known", || {
            (0..64).for_each(|i| file.read_exact_at(&mut block.0, i * 4096).unwrap());
            reader.forecast(dev, 4096).is_some()
        });
    }
    // It has gone once the agent looks again.
    let link = Link::connect(&agent.socket).unwrap();
    let number = std::fs::read_to_string(format!("/sys/block/{name}/dev")).unwrap();
    let (major, minor) = number.trim().split_once(':').unwrap();
    let dev = plimsoll_host::layout::dev_of(major.parse().unwrap(), minor.parse().unwrap());
    until("the disk has gone", || link.disk(dev).is_none());
    let (_, changes) = agent.stop();
    assert!(changes.contains(&Change::Came(name.clone())) && changes.contains(&Change::Went(name)), "{changes:?}");
}

#[test]
fn a_disk_whose_requests_the_kernel_does_not_count_keeps_its_own_count() {
    let dir = tempfile::tempdir().unwrap();
    let modelled = Modelled::start(dir.path(), 64, 200);
    let disk = modelled.disk.as_ref().unwrap();
    std::fs::write(format!("/sys/block/{}/queue/iostats", disk.name()), "0").unwrap();
    let mut agent = Agent::start(only(disk)).unwrap();
    let mut changes = agent.tick();
    // The count begins with the first request: alone, so that none is lost.
    disk.open().read_exact_at(&mut Box::new(Blocks([0; 4096])).0, 0).unwrap();
    let noise = Noise::start(disk, 4, 32 << 20);
    let in_flight = |a: &Agent| a.load(a.watched().next().unwrap()).requests();
    until("requests are in flight", || in_flight(&agent) >= 3);
    // They stay counted for as long as a comparison with the kernel's 0 would have taken to drop them.
    for _ in 0..30 {
        changes.extend(agent.tick());
        std::thread::sleep(TICK);
    }
    assert_eq!(agent.dropped(), 0);
    std::fs::write(format!("/sys/block/{}/queue/iostats", disk.name()), "1").unwrap();
    until("it's counted again", || {
        changes.extend(agent.tick());
        std::thread::sleep(TICK);
        changes.contains(&Change::Counted(disk.name().into()))
    });
    assert!(changes.contains(&Change::Uncounted(disk.name().into())), "{changes:?}");
    drop(noise);
}

#[test]
fn a_thousand_readers_and_those_who_mean_harm_are_borne() {
    let dir = tempfile::tempdir().unwrap();
    let disk = Loop::new(dir.path(), 16 << 20);
    let agent = Ticking::start(dir.path(), only(&disk), Access::Owner);
    let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let links: Vec<Link> =
        (0..1000).map(|i| Link::connect(&agent.socket).unwrap_or_else(|e| panic!("reader {i}: {e}"))).collect();
    let now = plimsoll_host::shared::now_ns();
    assert!(links.iter().all(|l| l.is_fresh(now)));
    drop(links);
    let before = open();
    // They say nothing, or much, and never read.
    let mut idle = Vec::new();
    for i in 0..200u32 {
        let mut stream = UnixStream::connect(&agent.socket).unwrap();
        stream.set_nonblocking(true).unwrap();
        let _ = stream.write(&vec![i as u8; 1 << 16]);
        idle.push(stream);
    }
    let link = Link::connect(&agent.socket).unwrap();
    assert!(link.is_fresh(plimsoll_host::shared::now_ns()));
    drop(idle);
    until("nothing is kept of them", || open() <= before + 4);
    // Nobody's socket: not an agent's answer.
    let liar = dir.path().join("liar.sock");
    let listener = std::os::unix::net::UnixListener::bind(&liar).unwrap();
    std::thread::spawn(move || {
        let (mut client, _) = listener.accept().unwrap();
        let _ = client.write_all(b"twelve bytes");
        let _ = client.read(&mut [0; 1]);
    });
    let Err(e) = Link::connect(&liar) else { panic!("it isn't an agent") };
    assert!(e.to_string().contains("isn't the agent"), "{e}");
}
