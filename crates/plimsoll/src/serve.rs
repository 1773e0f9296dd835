//! `plimsoll serve`.

use anyhow::{Context, Result};
use clap::Args;
use plimsoll_node::config::Config;
use plimsoll_node::directory::VolumeState;
use plimsoll_node::node::Node;
use plimsoll_node::serve::Bound;
use std::io::Write;
use std::path::PathBuf;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// Run a storage node: from a configuration file, or with an embedded default in a folder.
#[derive(Args)]
#[command(group = clap::ArgGroup::new("what").required(true).args(["config", "data"]))]
#[command(after_help = "Examples:\n  plimsoll serve --data DIR\n  plimsoll serve --config /etc/plimsoll/node.toml")]
pub struct Serve {
    /// The configuration file.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Without a configuration: a folder for the embedded default, made if it doesn't exist.
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Log as JSON, one object a line.
    #[arg(long)]
    log_json: bool,
}

/// The embedded default: three tenants, a real file and a modelled disk, everything granted to local peers.
const DEFAULT: &str = include_str!("default.toml");

impl Serve {
    /// Runs the command.
    pub fn run(self) -> Result<()> {
        plimsoll_node::panics::end_the_process();
        start_logging(self.log_json);
        let (config, embedded) = match (&self.config, &self.data) {
            (Some(file), _) => (Config::load(file)?, None),
            (None, Some(dir)) => {
                std::fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
                let dir = dir.canonicalize().with_context(|| format!("cannot use {}", dir.display()))?;
                (Config::parse(DEFAULT, &dir.join("(embedded default)"))?, Some(dir))
            }
            (None, None) => unreachable!("clap asks for one of them"),
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let ready = |node: &Node, bound: &Bound| print_ready(node, bound, embedded.is_some());
        runtime.block_on(plimsoll_node::serve::serve(&config, ready))?;
        Ok(())
    }
}

fn start_logging(json: bool) {
    let wanted = std::env::var("PLIMSOLL_LOG").ok().and_then(|w| w.parse().ok());
    let filter = wanted.unwrap_or_else(|| Targets::new().with_default(LevelFilter::INFO));
    let colours = std::io::IsTerminal::is_terminal(&std::io::stderr());
    let to_stderr = tracing_subscriber::fmt::layer().with_ansi(colours).with_writer(std::io::stderr);
    // Nobody may take the log any more (a closed pipe, a full disk): complaining of that on stderr would be a panic.
    let to_stderr = to_stderr.log_internal_errors(false);
    let log = tracing_subscriber::registry().with(filter);
    if json { log.with(to_stderr.json()).init() } else { log.with(to_stderr.compact().with_target(false)).init() }
}

/// Says what is served. Nobody may be there to read it (`plimsoll serve | head -1`), which harms nothing.
fn print_ready(node: &Node, bound: &Bound, embedded: bool) {
    let _ = write_ready(&mut std::io::stdout().lock(), node, bound, embedded);
}

fn write_ready(out: &mut impl Write, node: &Node, bound: &Bound, embedded: bool) -> std::io::Result<()> {
    let directory = node.directory.read().expect("no panic while held");
    writeln!(out, "plimsoll serves {} volumes:", directory.volumes.len())?;
    for v in directory.volumes.values() {
        let pool = &node.pools[v.pool];
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
