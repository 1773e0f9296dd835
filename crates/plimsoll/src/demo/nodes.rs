//! The nodes of both sides: processes of this program, in a temporary folder.

use super::record::{Side, Tenant};
use super::{DEADLINE, LIMIT, OBJECTIVE, PERCENTILE, Without};
use crate::client::segment;
use anyhow::{Context, Result, bail};
use plimsoll_client::live::Address;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The modelled drive of each node: its name, its profile, and the profile's file in a node's folder.
pub const DRIVE: &str = "vf-sata-60g, five times slower, 1 GiB";
const PROFILE: &str = include_str!("drive.toml");
const PROFILE_FILE: &str = "model.toml";
/// Nodes of a side.
pub const NODES: usize = 2;
/// Bytes of the volumes.
pub const DATABASE_BYTES: u64 = 128 << 20;
pub const WEB_BYTES: u64 = 128 << 20;
pub const NEIGHBOUR_BYTES: u64 = 256 << 20;
/// A node that hasn't ended so long after SIGTERM is killed.
const END_TIME: Duration = Duration::from_secs(5);
/// A proxy must listen within this time.
const START_TIME: Duration = Duration::from_secs(10);

/// A process that is ended with its owner.
struct Process(Child);

impl Process {
    fn end(&mut self) {
        if let Ok(None) = self.0.try_wait() {
            let _ =
                rustix::process::kill_process(rustix::process::Pid::from_child(&self.0), rustix::process::Signal::TERM);
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.end();
        let until = Instant::now() + END_TIME;
        while let Ok(None) = self.0.try_wait() {
            if Instant::now() >= until {
                let _ = self.0.kill();
                let _ = self.0.wait();
                return;
            }
            std::thread::sleep(Duration::from_millis(5)); // the kernel has no wait for a child with an end of its own
        }
    }
}

/// One node, and the proxies in front of it where there are some.
struct Node {
    proxies: Vec<Process>,
    process: Process,
    dashboard: String,
    /// Sockets for all, and for the neighbour.
    socket: PathBuf,
    neighbour: PathBuf,
}

/// All of them.
pub struct Nodes {
    sides: Side<Vec<Node>>,
    without: Without,
}

impl Nodes {
    /// Starts all nodes, each in a folder of its own below `folder`.
    pub fn start(folder: &Path, without: Without) -> Result<Nodes> {
        // All at once: making the drives takes most of the time.
        let spawn = |with: bool| {
            let name = if with { "with" } else { "without" };
            let one = |i: usize| Starting::spawn(&folder.join(format!("{name}-{}", i + 1)), with);
            (0..NODES).map(one).collect::<Result<Vec<_>>>()
        };
        let (plain, promising) = (spawn(false)?, spawn(true)?);
        let ready = |all: Vec<Starting>, by: Without| all.into_iter().map(|n| n.ready(by)).collect::<Result<Vec<_>>>();
        let sides = Side { without: ready(plain, without)?, with: ready(promising, Without::Node)? };
        Ok(Nodes { sides, without })
    }

    /// Addresses of a volume on the nodes of a side.
    pub fn addresses(&self, with: bool, volume: &str) -> Vec<Address> {
        let address = |n: &Node| {
            let socket = if volume == Tenant::Neighbour.name() { &n.neighbour } else { &n.socket };
            let socket = segment(&socket.to_string_lossy());
            format!("nbd+unix:///{volume}?socket={socket}").parse().expect("an address")
        };
        self.sides.of(with).iter().map(address).collect()
    }

    /// True if this side's servers aren't Plimsoll's.
    pub fn is_foreign(&self, with: bool) -> bool {
        !with && self.without != Without::Node
    }

    /// Addresses of the dashboards.
    pub fn dashboards(&self) -> Side<Vec<String>> {
        self.sides.map(|nodes| nodes.iter().map(|n| n.dashboard.clone()).collect())
    }

    /// Ends all of them.
    pub fn stop(mut self) {
        for node in self.sides.without.iter_mut().chain(&mut self.sides.with) {
            node.proxies.clear();
            node.process.end();
        }
    }
}

/// The configuration of a node whose drive is modelled by the profile in a file.
fn config(with: bool, profile: &Path) -> String {
    let (cores, promise) = match with {
        false => ("", "class = \"best-effort\"".to_string()),
        true => (
            "cores = 16\ncore_depth = 2",
            format!(
                "class = \"latency-critical\"\nobjectives = [{{ percentile = {PERCENTILE}, within = \"{}us\" }}]\njobs_max = 16",
                OBJECTIVE.as_micros()
            ),
        ),
    };
    let model = format!("sized:1G:{}", profile.display());
    let deadline = if with { format!("deadline = \"{}us\"", DEADLINE.as_micros()) } else { String::new() };
    let volume = |name: &str, bytes: u64, more: &str| {
        format!("[[volume]]\nname = \"{name}\"\npool = \"drive\"\nsize = \"{bytes}B\"\ntenant = \"{name}\"\n{more}\n")
    };
    format!(
        r#"[listen]
unix = "nbd.sock"
[control]
http = "127.0.0.1:0"
[[pool]]
name = "drive"
device = {{ file = "drive.img", size = "1GiB", model = {model:?} }}
{cores}
[[tenant]]
name = "database"
{promise}
[[tenant]]
name = "web"
class = "best-effort"
[[tenant]]
name = "neighbour"
class = "best-effort"
{}{}{}[[grant]]
peer = "local"
volumes = ["*"]
"#,
        volume("database", DATABASE_BYTES, ""),
        volume("web", WEB_BYTES, &deadline),
        volume("neighbour", NEIGHBOUR_BYTES, "")
    )
}

/// A node whose process has begun.
struct Starting {
    process: Process,
    folder: PathBuf,
}

impl Starting {
    fn spawn(folder: &Path, with: bool) -> Result<Starting> {
        std::fs::create_dir(folder).with_context(|| format!("cannot make {}", folder.display()))?;
        let (file, profile) = (folder.join("node.toml"), folder.join(PROFILE_FILE));
        let config = config(with, &profile);
        for (path, text) in [(&profile, PROFILE), (&file, config.as_str())] {
            std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))?;
        }
        let mut command = Command::new(std::env::current_exe().context("cannot find this program's file")?);
        command.args(["serve", "--exit-with-parent", "--config"]).arg(&file);
        let process = spawn(&mut command, folder).context("cannot start a node")?;
        Ok(Starting { process, folder: folder.to_path_buf() })
    }

    /// Waits until it serves.
    fn ready(mut self, by: Without) -> Result<Node> {
        let out = self.process.0.stdout.take().expect("piped");
        let lines = BufReader::new(out).lines().map_while(Result::ok);
        let of = |line: String| {
            Some(line.trim().split_once("http://")?.1.split_whitespace().next()?.trim_end_matches('/').to_string())
        };
        let Some(dashboard) = lines.filter_map(of).next() else {
            bail!("a node did not start: {}", last_words(&self.folder));
        };
        let socket = self.folder.join("nbd.sock");
        let dashboard = format!("http://{dashboard}/");
        let mut node = Node {
            proxies: Vec::new(),
            process: self.process,
            dashboard,
            neighbour: socket.clone(),
            socket: socket.clone(),
        };
        if by != Without::Node {
            node.socket = self.folder.join("front.sock");
            node.neighbour = node.socket.clone();
            node.proxies.push(nbdkit(&socket, &node.socket, &self.folder, None)?);
        }
        if by == Without::NbdkitLimit {
            node.neighbour = self.folder.join("limited.sock");
            node.proxies.push(nbdkit(&socket, &node.neighbour, &self.folder, Some(LIMIT))?);
        }
        Ok(node)
    }
}

/// nbdkit in front of a node: exports of the same names, all together limited to some bytes a second.
fn nbdkit(node: &Path, front: &Path, folder: &Path, bytes_per_s: Option<u64>) -> Result<Process> {
    let mut command = Command::new("nbdkit");
    command.args(["--foreground", "--exit-with-parent", "--unix"]).arg(front);
    if bytes_per_s.is_some() {
        command.arg("--filter=rate");
    }
    command.arg("nbd").arg(format!("socket={}", node.display())).arg("dynamic-export=true");
    if let Some(limit) = bytes_per_s {
        // In bits, and for each direction: half of the neighbour's requests are reads.
        command.arg(format!("rate={}", 8 * limit / 2));
    }
    let mut process = spawn(&mut command, folder).context("cannot start nbdkit; install it (Debian: nbdkit)")?;
    let until = Instant::now() + START_TIME;
    while !front.exists() {
        if Instant::now() >= until || !matches!(process.0.try_wait(), Ok(None)) {
            bail!("nbdkit does not listen: {}", last_words(folder));
        }
        std::thread::sleep(Duration::from_millis(5)); // nbdkit tells nobody that it listens
    }
    Ok(process)
}

/// Starts a process that keys in the terminal don't reach: this program ends it. Its error output is kept in its folder.
fn spawn(command: &mut Command, folder: &Path) -> Result<Process> {
    let log = File::options().create(true).append(true).open(folder.join("log"))?;
    let command = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log).process_group(0);
    Ok(Process(command.spawn().with_context(|| command.get_program().to_string_lossy().into_owned())?))
}

fn last_words(folder: &Path) -> String {
    let log = std::fs::read_to_string(folder.join("log")).unwrap_or_default();
    log.lines().last().unwrap_or("it left no log").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_device::DeviceSpec;
    use plimsoll_device::flash::FlashTiming;
    use plimsoll_node::config::Config;

    #[test]
    fn both_configurations_are_correct() {
        let dir = tempfile::tempdir().unwrap();
        let profile = dir.path().join(PROFILE_FILE);
        std::fs::write(&profile, PROFILE).unwrap();
        for with in [false, true] {
            let config = Config::parse(&config(with, &profile), &dir.path().join("node.toml")).unwrap();
            assert_eq!(config.volume.len(), 3);
        }
    }

    #[test]
    fn the_drive_is_the_embedded_one_slowed() {
        let timing = |spec: DeviceSpec| match spec {
            DeviceSpec::Flash { spec, .. } => (spec.timing, spec.interface),
            other => panic!("no flash drive: {other:?}"),
        };
        let (ours, link) = timing(DeviceSpec::from_toml(PROFILE).unwrap());
        let (theirs, their_link) = timing(DeviceSpec::named("vf-sata-60g").unwrap());
        let times = |t: &FlashTiming| {
            [t.read_us, t.erase_us, t.read_transfer_us, t.write_transfer_us]
                .into_iter()
                .chain(t.program_us.clone())
                .collect::<Vec<_>>()
        };
        for (ours, theirs) in times(&ours).into_iter().zip(times(&theirs)) {
            assert!((ours / theirs - 5.0).abs() < 1e-9, "{ours} {theirs}");
        }
        assert!((their_link.link_mb_per_s / link.link_mb_per_s - 5.0).abs() < 1e-9);
        assert_eq!(link.command_us, 5.0 * their_link.command_us);
    }
}
