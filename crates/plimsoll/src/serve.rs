//! `plimsoll serve`.

use crate::log;
use anyhow::{Context, Result};
use clap::Args;
use plimsoll_node::config::{Config, ConfigErrors};
use plimsoll_node::directory::VolumeState;
use plimsoll_node::node::Node;
use plimsoll_node::serve::{Bound, Host};
use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

/// Run a storage node: from a configuration file, or with an embedded default in a folder.
#[derive(Args)]
#[command(group = clap::ArgGroup::new("what").required(true).args(["config", "data"]))]
#[command(
    after_help = "SIGHUP or `plimsoll reload` reads the configuration anew; SIGTERM or `plimsoll drain` ends the node in order, a second signal at once.\n\nExamples:\n  plimsoll serve --data DIR\n  plimsoll serve --config /etc/plimsoll/plimsoll.toml"
)]
pub struct Serve {
    /// Configuration file.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Folder for a node without a configuration; created if needed.
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// With --data: the TCP port for NBD [default: 10809, or a free one].
    #[arg(long, value_name = "PORT", requires = "data")]
    nbd_port: Option<u16>,
    /// With --data: the port for the dashboard and the API [default: 7700, or a free one].
    #[arg(long, value_name = "PORT", requires = "data")]
    http_port: Option<u16>,
    /// Log JSON, one object a line.
    #[arg(long)]
    log_json: bool,
    /// End as on SIGTERM when the parent process ends.
    #[arg(long)]
    exit_with_parent: bool,
}

/// The embedded default: three tenants, a real file and a modelled disk, everything granted to local peers.
const DEFAULT: &str = include_str!("default.toml");

impl Serve {
    /// Runs the command.
    pub fn run(self) -> Result<()> {
        plimsoll_node::panics::end_the_process();
        if self.exit_with_parent {
            let parent = rustix::process::getppid();
            rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::TERM))?;
            // It may have ended before the kernel knew.
            anyhow::ensure!(rustix::process::getppid() == parent, "--exit-with-parent: the parent has ended already");
        }
        let set_level = log::start(self.log_json);
        if let Some(dir) = &self.data {
            if dir.exists() && !dir.is_dir() {
                anyhow::bail!("--data {}: it is a file, and a folder is needed", dir.display());
            }
            std::fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
        }
        let reread = || match (&self.config, &self.data) {
            (Some(file), _) => Config::load(file),
            (None, Some(dir)) => self.embedded(dir),
            (None, None) => unreachable!("clap asks for one of them"),
        };
        let config = reread()?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let ready = |node: &Node, bound: &Bound| print_ready(node, bound, self.data.is_some());
        let host = Host { reread: &reread, log: &set_level };
        let ended = runtime.block_on(plimsoll_node::serve::serve(config, host, ready));
        // A thread that hangs in a device must not keep a process that was ordered to end.
        runtime.shutdown_background();
        Ok(ended?)
    }

    fn embedded(&self, dir: &Path) -> Result<Config, ConfigErrors> {
        let mut config = Config::embedded(DEFAULT, dir)?;
        let local = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        config.listen.tcp = self.nbd_port.map(local).or(config.listen.tcp);
        config.control.http = self.http_port.map(local).or(config.control.http);
        config.takes_free_ports = self.nbd_port.is_none() && self.http_port.is_none();
        Ok(config)
    }
}

/// Says what is served. Nobody may be there to read it (`plimsoll serve | head -1`), which harms nothing.
fn print_ready(node: &Node, bound: &Bound, embedded: bool) {
    let _ = write_ready(&mut std::io::stdout().lock(), node, bound, embedded);
}

fn write_ready(out: &mut impl Write, node: &Node, bound: &Bound, embedded: bool) -> std::io::Result<()> {
    let directory = node.directory.read().expect("no panic while held");
    writeln!(out, "plimsoll serves {} volumes:", directory.volumes.len())?;
    for v in directory.volumes.values() {
        let pool = node.pools.get(v.pool);
        let class = directory.tenants[&v.tenant].class.name();
        writeln!(
            out,
            "  {:<10} {:>6} MiB  tenant {} ({class})  pool {}: {}{}",
            v.name,
            v.size_bytes >> 20,
            v.tenant,
            pool.name,
            pool.device,
            if v.state() == VolumeState::Ready { String::new() } else { format!("  ({})", v.state().name()) }
        )?;
    }
    if let Some(unix) = &bound.nbd_unix {
        writeln!(out, "  nbd+unix:///NAME?socket={}", unix.display())?;
    }
    if let Some(tcp) = bound.nbd_tcp {
        writeln!(out, "  nbd://{tcp}/NAME")?;
    }
    if let Some(nvme) = bound.nvme_tcp {
        writeln!(out, "  nvme+tcp://{nvme}/NQN")?;
    }
    if let Some(http) = bound.control_http {
        writeln!(out, "  http://{http}/           dashboard; /metrics, /healthz, /v1/status")?;
    }
    if let Some(unix) = &bound.control_unix {
        writeln!(out, "  plimsoll top --control {}", unix.display())?;
    }
    let Some(unix) = bound.nbd_unix.as_ref().filter(|_| embedded) else { return out.flush() };
    let socket = unix.display();
    writeln!(out, "This is the embedded default: every local user may use every volume. Try:")?;
    writeln!(out, "  nbdinfo 'nbd+unix:///web?socket={socket}'")?;
    writeln!(
        out,
        "  fio --name=t --ioengine=nbd --uri='nbd+unix:///web?socket={socket}' --rw=randrw --bs=4k --iodepth=32 --size=64M \
         --runtime=5 --time_based"
    )?;
    writeln!(
        out,
        "  fio --name=busy --ioengine=nbd --uri='nbd+unix:///archive%3Fdeadline=20ms%26busy=error?socket={socket}' --rw=randread --bs=4k --iodepth=8 --rate_iops=300 --rate_process=poisson --size=1G --runtime=10 --time_based --continue_on_error=io"
    )?;
    writeln!(out, "  plimsoll read 'nbd+unix:///archive?socket={socket}' --deadline 20ms --rate 250 --count 100")?;
    if let Some(nvme) = bound.nvme_tcp {
        writeln!(out, "  nvme+tcp://{nvme}/NQN")?;
    }
    if let Some(http) = bound.control_http {
        writeln!(
            out,
            "fio reports each Busy answer as an error; the shares that were kept, missed, waited and refused: http://{http}/"
        )?;
    }
    out.flush()
}
