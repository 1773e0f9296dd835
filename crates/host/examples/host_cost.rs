//! Prints what host mode costs: the BPF programs' own run time by request (`kernel.bpf_stats_enabled`), a look-up's time without and with
//! the clock, a refusal's and an addrcheck's beside its mincore call. As root: `host_cost FILE`, a file on the disk that is read.

use plimsoll_host::agent::{Agent, TICK, Wanted};
use plimsoll_host::forecast::{Costs, Load};
use plimsoll_host::{Options, Reader};
use std::fs::{File, read_to_string, write};
use std::hint::black_box;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
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
    for threads in [1, 32] {
        let (from, begun) = (stats(), Instant::now());
        std::thread::scope(|s| {
            for t in 0..threads {
                let direct = &direct;
                s.spawn(move || read_direct(direct, 20_000 / threads, t, blocks));
            }
        });
        let mut sum = 0.0;
        print!("{threads:>2} at once, {:.1} us each:", begun.elapsed().as_micros() as f64 / 20_000.0);
        for ((id, time, runs), (_, time_before, runs_before)) in stats().into_iter().zip(from) {
            if runs > runs_before {
                let (ns, n) = ((time - time_before) / (runs - runs_before), runs - runs_before);
                print!("  program {id} {ns:.0} ns x {n}");
                sum += (time - time_before) / 20_000.0;
            }
        }
        println!("  = {sum:.0} ns a request");
    }
    write(switch, before).unwrap();
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
    println!("{:?}", reader.counts());
    heart.join().unwrap();
}
