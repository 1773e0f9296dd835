//! Prints what host mode costs. As root: `host_cost FILE`, a file on the disk that is read.
//!
//! * The BPF programs' own run time by request (`kernel.bpf_stats_enabled`), with reads timed as long as the agent takes them, and without. An empty
//!   program beside them shows what the statistics themselves add.
//! * A look-up's time without and with the clock.
//! * The time of reads and checks: resident, and refused with direct I/O, of evicted pages and of evicted mapped pages.
//! * The processor time that the agent needs to learn from twelve busy disks.

use plimsoll_host::agent::{Agent, TICK, Wanted};
use plimsoll_host::calibrate::{Calibration, Sample};
use plimsoll_host::forecast::{Costs, Load};
use plimsoll_host::{Answer, Options, Reader};
use std::fs::{File, read_to_string, write};
use std::hint::black_box;
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

fn ns_each(count: u32, mut f: impl FnMut()) -> f64 {
    let mut best = f64::MAX;
    for _ in 0..20 {
        let begun = Instant::now();
        (0..count).for_each(|_| f());
        best = best.min(begun.elapsed().as_nanos() as f64 / f64::from(count));
    }
    best
}

/// Attaches a program that does nothing to the tracepoint of requests that are issued; its descriptors.
fn empty_program() -> [OwnedFd; 2] {
    const PROG_LOAD: i64 = 5;
    const RAW_TRACEPOINT_OPEN: i64 = 17;
    const TYPE_RAW_TRACEPOINT: u64 = 17;
    // r0 = 0; exit
    let code: [u64; 2] = [0xb7, 0x95];
    let (license, name) = (c"GPL", c"block_rq_issue");
    let bpf = |command: i64, attributes: &[u64]| {
        // SAFETY: the kernel reads the attributes, the program and the strings, all alive, and returns a descriptor that nobody else has.
        unsafe {
            let fd = libc::syscall(libc::SYS_bpf, command, attributes.as_ptr(), size_of_val(attributes));
            assert!(fd >= 0, "bpf {command}: {}", std::io::Error::last_os_error());
            OwnedFd::from_raw_fd(fd as i32)
        }
    };
    let pair = |low: u64, high: u64| low | high << 32;
    let load = [pair(TYPE_RAW_TRACEPOINT, 2), code.as_ptr() as u64, license.as_ptr() as u64, 0, 0, 0];
    let program = bpf(PROG_LOAD, &load);
    let attached = bpf(RAW_TRACEPOINT_OPEN, &[name.as_ptr() as u64, std::os::fd::AsRawFd::as_raw_fd(&program) as u64]);
    [program, attached]
}

/// Processor time of this thread.
fn processor() -> Duration {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(t.tv_sec as u64, t.tv_nsec as u32)
}

/// Learns from 1400 reads a second of each of twelve disks, and publishes 25 times a second, as the agent does at most.
fn learning() -> Duration {
    let word = |n: u64| (n << 40) + n * 4096;
    let begun = processor();
    for _ in 0..12 {
        let mut calibration = Calibration::new(false);
        for i in 0..1400u64 {
            let (reads, writes, queued) = (i % 7, i / 7 % 5, i / 3 % 11);
            let arrived_ns = i * 1_000_000_000 / 1400;
            let took = (reads + 1) * 80_000 + writes * 300_000 + queued * 50_000 + i * 7919 % 60_000;
            let before = Load {
                reads: word(reads),
                writes: word(writes),
                queued_reads: queued as u32,
                next_free_ns: arrived_ns,
                ..Load::default()
            };
            calibration.take(Sample { arrived_ns, done_ns: arrived_ns + took, before, bytes: 4096 });
            if i % 56 == 55 {
                black_box(calibration.ratios());
            }
        }
        black_box(calibration.costs());
    }
    processor() - begun
}

/// Median time of what is refused, of `pages` calls, each of another page.
fn refusals(pages: u64, mut f: impl FnMut(u64) -> bool) -> String {
    let mut ns = Vec::new();
    for page in 0..pages {
        let begun = Instant::now();
        let is_refused = f(page);
        let took = begun.elapsed().as_nanos();
        if is_refused {
            ns.push(took);
        }
    }
    ns.sort_unstable();
    let at = |percent: usize| ns.get((ns.len() * percent / 100).min(ns.len().saturating_sub(1))).copied().unwrap_or(0);
    format!("p50 {} ns, p99 {} ns, {} of {pages} refused", at(50), at(99), ns.len())
}

/// Run time and runs of our programs, by name.
fn stats() -> Vec<(String, f64, f64)> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc/self/fdinfo").unwrap().flatten() {
        let text = read_to_string(entry.path()).unwrap_or_default();
        let of = |key: &str| text.lines().find_map(|l| l.strip_prefix(key)?.trim().parse::<f64>().ok());
        if let (Some(time), Some(runs)) = (of("run_time_ns:"), of("run_cnt:")) {
            let id = of("prog_id:").unwrap_or(0.0);
            found.push((format!("{id}"), time, runs));
        }
    }
    found
}

/// One aligned block, for direct I/O.
#[repr(C, align(4096))]
struct Block([u8; 4096]);

fn read_direct(file: &File, count: u64, seed: u64, blocks: u64) {
    let mut block = Box::new(Block([0; 4096]));
    let mut x = seed;
    for _ in 0..count {
        x = x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        file.read_exact_at(&mut block.0, (x >> 33) % blocks * 4096).unwrap();
    }
}

fn main() {
    let path = std::env::args().nth(1).expect("usage: host_cost FILE");
    let direct = std::fs::OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(&path).unwrap();
    let blocks = direct.metadata().unwrap().len() / 4096;
    let switch = "/proc/sys/kernel/bpf_stats_enabled";
    let before = read_to_string(switch).unwrap();
    write(switch, "1").unwrap();
    let mut agent = Agent::start(Wanted::default()).unwrap();
    let empty = empty_program();
    let program_id = {
        let info = format!("/proc/self/fdinfo/{}", std::os::fd::AsRawFd::as_raw_fd(&empty[0]));
        let text = read_to_string(info).unwrap();
        text.lines().find_map(|l| l.strip_prefix("prog_id:")).unwrap().trim().to_string()
    };
    println!("program {program_id} is empty");
    // Until the agent takes no more, reads are timed; then the ring of those that wait for it is full.
    for (is_timed, threads) in [(true, 1), (true, 32), (false, 1), (false, 32)] {
        if !is_timed {
            read_direct(&direct, 1000, 7, blocks);
        }
        let (from, begun) = (stats(), Instant::now());
        let over = AtomicBool::new(false);
        std::thread::scope(|s| {
            let (over, direct, agent) = (&over, &direct, &mut agent);
            if is_timed {
                s.spawn(move || {
                    while !over.load(Relaxed) {
                        agent.tick();
                        std::thread::sleep(TICK);
                    }
                });
            }
            let readers: Vec<_> =
                (0..threads).map(|t| s.spawn(move || read_direct(direct, 20_000 / threads, t, blocks))).collect();
            readers.into_iter().for_each(|r| r.join().unwrap());
            over.store(true, Relaxed);
        });
        let mut sum = 0.0;
        let kind = if is_timed { "timed" } else { "untimed" };
        print!("{kind}, {threads:>2} at once, {:.1} us each:", begun.elapsed().as_micros() as f64 / 20_000.0);
        for ((id, time, runs), (_, time_before, runs_before)) in stats().into_iter().zip(from) {
            if runs > runs_before {
                let (ns, n) = ((time - time_before) / (runs - runs_before), runs - runs_before);
                print!("  program {id} {ns:.0} ns x {n}");
                if id != program_id {
                    sum += (time - time_before) / 20_000.0;
                }
            }
        }
        println!("  = {sum:.0} ns a request");
    }
    write(switch, before).unwrap();
    drop(empty);
    println!("learning from twelve busy disks: {:.1} ms of a second", learning().as_secs_f64() * 1000.0);
    for _ in 0..60 {
        agent.tick();
        std::thread::sleep(TICK);
    }
    for w in agent.watched().filter(|w| w.seen() > 0) {
        println!("{}: {:?} after {:?} timed reads", w.disk().name, w.costs(), w.seen());
    }
    let costs = Costs { alone_ns: 90_000, read_ns: 9_000, ..Costs::default() };
    let load = Load { reads: 7 << 40, next_free_ns: 1_000_000, ..Load::default() };
    println!(
        "forecast: {:.2} ns",
        ns_each(1_000_000, || _ = black_box(black_box(&costs).forecast(black_box(&load), 990_000, 4096)))
    );
    println!("clock: {:.1} ns", ns_each(100_000, || _ = black_box(plimsoll_host::shared::now_ns())));

    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("host.sock");
    let (states, notice) = agent.shared().unwrap();
    let _handout =
        plimsoll_host::agent::Handout::listen(&socket, plimsoll_host::agent::Access::Owner, states, notice).unwrap();
    let heart = std::thread::spawn(move || {
        for _ in 0..250 {
            agent.tick();
            std::thread::sleep(TICK);
        }
    });
    let reader = Reader::new(Options { socket, ..Options::default() });
    let file = File::open(&path).unwrap();
    let mut buf = [0; 4096];
    let long = Duration::from_secs(100);
    file.read_exact_at(&mut buf, 0).unwrap();
    println!("pread, resident: {:.0} ns", ns_each(10_000, || file.read_exact_at(&mut buf, 0).unwrap()));
    println!(
        "read with a deadline, resident, in time: {:.0} ns",
        ns_each(10_000, || _ = reader.read(file.as_fd(), &mut buf, 0, long).unwrap())
    );
    println!(
        "read with a deadline, resident, late: {:.0} ns",
        ns_each(10_000, || _ = reader.read(file.as_fd(), &mut buf, 0, Duration::ZERO).unwrap())
    );
    println!(
        "Busy (direct I/O): {:.0} ns",
        ns_each(10_000, || _ = black_box(reader.read(direct.as_fd(), &mut buf, 0, Duration::ZERO).unwrap()))
    );
    // SAFETY: the file isn't changed while it's mapped.
    let map = unsafe { memmap2::Mmap::map(&file).unwrap() };
    let at = map.as_ptr() as usize;
    black_box(map[0]);
    let mut pages = [0u8; 1];
    // SAFETY: one page's result, into `pages`.
    let plain = ns_each(10_000, || _ = unsafe { libc::mincore(at as *mut _, 4096, pages.as_mut_ptr()) });
    let ours = ns_each(10_000, || _ = reader.addrcheck(at, 4096, Duration::ZERO).unwrap());
    println!("mincore: {plain:.0} ns; addrcheck, resident: {ours:.0} ns, {:.0} more", ours - plain);
    let pages = 2000.min(blocks);
    let evict = || rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    for page in 0..pages {
        reader.read(file.as_fd(), &mut buf, page * 4096, long).unwrap();
    }
    evict();
    println!(
        "Busy (evicted): {}",
        refusals(pages, |page| {
            let answer = reader.read(file.as_fd(), &mut buf, page * 4096, Duration::ZERO).unwrap();
            matches!(answer, Answer::Busy(_))
        })
    );
    for page in 0..pages as usize {
        black_box(map[page * 4096]);
        reader.addrcheck(at + page * 4096, 4096, long).unwrap();
    }
    // SAFETY: our own mapping of a file, whose pages come in again.
    assert_eq!(unsafe { libc::madvise(at as *mut _, pages as usize * 4096, libc::MADV_DONTNEED) }, 0);
    evict();
    println!(
        "addrcheck, Busy (evicted): {}",
        refusals(pages, |page| reader.addrcheck(at + page as usize * 4096, 4096, Duration::ZERO).unwrap().is_some())
    );
    println!("{:?}", reader.counts());
    heart.join().unwrap();
}
