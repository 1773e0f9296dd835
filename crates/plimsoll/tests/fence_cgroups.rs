//! Tenants that are containers: processes, each in a cgroup of its own, on fenced volumes of a node whose disk and cache drive are
//! modelled in real time. Whatever each of them asks for, none has more of the disk than its slots.

mod common;
use common::Server;
use common::client::Client;
use common::fenced::{fenced, of, view};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

const BLOCK: u64 = 4096;
const BLOCKS: u64 = (16 << 20) / BLOCK;
/// Of these a process writes every one that `STEP` apart lies, and reads at random everywhere.
const STEP: u64 = 64;
const THREADS: u64 = 4;
const READS_A_THREAD: u64 = 40;
const VOLUMES: [&str; 3] = ["a", "b", "c"];
/// One of them is nobody's.
const SLOTS: u64 = 4;
/// Variables of the process that is a tenant: socket, volume, and its cgroup's folder if it has one.
const TOLD: [&str; 3] = ["PLIMSOLL_TEST_SOCKET", "PLIMSOLL_TEST_VOLUME", "PLIMSOLL_TEST_CGROUP"];

/// Returns a volume's content at block `n`.
fn content(volume: &str, n: u64) -> Vec<u8> {
    match n % STEP {
        0 => format!("{volume} {n:06}").bytes().cycle().take(BLOCK as usize).collect(),
        _ => vec![0; BLOCK as usize],
    }
}

/// Not a test of its own: what each tenant's process runs, started by the test below.
#[test]
fn a_tenants_process() {
    let Ok(volume) = std::env::var(TOLD[1]) else { return };
    if let Ok(folder) = std::env::var(TOLD[2]) {
        std::fs::write(Path::new(&folder).join("cgroup.procs"), std::process::id().to_string()).unwrap();
    }
    let socket = PathBuf::from(std::env::var(TOLD[0]).unwrap());
    let mut first = Client::connect(&socket, &volume).unwrap();
    for n in (0..BLOCKS).step_by(STEP as usize) {
        first.write(n * BLOCK, &content(&volume, n)).unwrap().unwrap();
    }
    first.flush().unwrap().unwrap();
    std::thread::scope(|s| {
        for thread in 0..THREADS {
            let (socket, volume) = (&socket, volume.as_str());
            s.spawn(move || {
                let mut client = Client::connect(socket, volume).unwrap();
                // Every third is one that was written; the others nobody has read before: the disk must be asked.
                for i in 0..READS_A_THREAD {
                    let at = (i * THREADS + thread) * 2654435761 % BLOCKS;
                    let n = if i % 3 == 0 { at / STEP * STEP } else { at };
                    assert_eq!(
                        client.read(n * BLOCK, BLOCK as usize as u32).unwrap().unwrap(),
                        content(volume, n),
                        "block {n}"
                    );
                }
            });
        }
    });
    println!("cgroups: {}", std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default().replace('\n', " "));
}

/// A cgroup that is removed in the end.
struct Cgroup(PathBuf);

impl Cgroup {
    /// Version 2's, or the processors' of version 1.
    fn make(name: &str) -> std::io::Result<Cgroup> {
        let unified = Path::new("/sys/fs/cgroup/cgroup.procs").exists();
        let root = Path::new(if unified { "/sys/fs/cgroup" } else { "/sys/fs/cgroup/cpu" });
        let folder = root.join(format!("plimsoll-test-{}-{name}", std::process::id()));
        std::fs::create_dir(&folder)?;
        let made = Cgroup(folder);
        // One that no process may enter is none.
        std::fs::OpenOptions::new().write(true).open(made.0.join("cgroup.procs"))?;
        Ok(made)
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.0); // it isn't the test's fault if it stays
    }
}

fn tenant(server: &Server, volume: &str, cgroup: Option<&Cgroup>) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "a_tenants_process", "--nocapture"]);
    command.env(TOLD[0], server.socket()).env(TOLD[1], volume);
    if let Some(c) = cgroup {
        command.env(TOLD[2], &c.0);
    }
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Waits for its end, which must be a good one; what it printed. (One that takes too long ends with the node that the test stops.)
fn ended(child: Child, until: Instant) -> String {
    let (send, ends) = mpsc::channel();
    std::thread::spawn(move || send.send(child.wait_with_output()));
    let output =
        ends.recv_timeout(until.saturating_duration_since(Instant::now())).expect("a tenant's process took too long");
    let output = output.unwrap();
    let text = [output.stdout, output.stderr].map(|o| String::from_utf8_lossy(&o).into_owned()).concat();
    assert!(output.status.success(), "a tenant's process failed:\n{text}");
    text
}

#[test]
fn processes_in_cgroups_are_held_to_their_slots() {
    let cache = "slots = 4\n[pool.cache]\nfile = \"fast.img\"\ndevice_size = \"64MiB\"\nsharing = \"pervolume\"\n\
                 mode = \"back\"\nextent = \"4KiB\"\nweu = \"128KiB\"\ndedup = \"off\"\ncodec = \"none\"\nmodel = \"vf-sata-60g\"";
    let volumes = VOLUMES.map(|v| (v, "slots = 1\ncache_size = \"8MiB\""));
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), &fenced(cache, &volumes));
    let cgroups: Vec<Option<Cgroup>> =
        match VOLUMES.iter().map(|v| Cgroup::make(v)).collect::<std::io::Result<Vec<_>>>() {
            Ok(made) => made.into_iter().map(Some).collect(),
            Err(why) => {
                println!("no cgroups can be made here ({why}): ran with plain processes");
                VOLUMES.map(|_| None).into()
            }
        };
    let before = view(&server);
    let began = Instant::now();
    let tenants: Vec<Child> = VOLUMES.iter().zip(&cgroups).map(|(v, c)| tenant(&server, v, c.as_ref())).collect();
    let said: Vec<String> = tenants.into_iter().map(|t| ended(t, began + Duration::from_secs(120))).collect();
    for (text, cgroup) in said.iter().zip(&cgroups) {
        if let Some(c) = cgroup {
            let name = c.0.file_name().unwrap().to_str().unwrap();
            assert!(text.contains(name), "it ran in {name}: {text}");
        }
    }
    let after = view(&server);
    let since = |volume, what| of(&after, volume, what) - of(&before, volume, what);
    let took = began.elapsed();
    for v in VOLUMES {
        assert!(since(v, "requests") >= THREADS * READS_A_THREAD / 2, "{v}: {after}");
        assert!(since(v, "waited_us") > 0, "who comes outside of its slot waits: {v}: {after}");
        let held = Duration::from_micros(since(v, "held_us"));
        // A credit and a batch that overran by what the machine was busy with are no more than a slot or two.
        let most = took / SLOTS as u32 + took / (4 * SLOTS as u32) + Duration::from_millis(100);
        assert!(held > Duration::ZERO && held <= most, "{v} held the disk for {held:?} of {took:?}: {after}");
    }
    assert!(server.stop());
}
