//! `plimsoll cache …`

use crate::client::{Client, Control};
use crate::part;
use anyhow::{Result, anyhow, bail};
use clap::{Args, Subcommand};
use hyper::Method;
use indicatif::{ProgressBar, ProgressStyle};
use plimsoll_node::config::{ByteSize, Config, PoolConfig};
use plimsoll_node::parts::cache::{Cache as Layer, CacheGiveUp, CacheView};
use plimsoll_node::parts::settings::SettingView;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Show a pool's flash cache, resize it, write back what only it has, or give that up.
#[derive(Args)]
#[command(after_help = "Example:\n  plimsoll cache status main")]
pub struct Cache {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Show hits, duplicates, compression, wear, memory and dirty data
    #[command(visible_alias = "show", after_help = "Example:\n  plimsoll cache status main --json")]
    Status {
        /// Pool [default: the only one with a cache].
        pool: Option<String>,
        #[command(flatten)]
        control: Control,
    },
    /// Change online how much of its device the cache uses
    #[command(after_help = "Example:\n  plimsoll cache resize main --size 1GiB --control control.sock")]
    Resize {
        /// Pool [default: the only one with a cache].
        pool: Option<String>,
        /// Bytes of its device.
        #[arg(long)]
        size: ByteSize,
        #[command(flatten)]
        control: Control,
    },
    /// Discard a volume's dirty cache data after the cache device was lost (DATA LOSS)
    #[command(
        after_help = "The volume continues with the older data on the pool's own device. If the cache broke while it served, `plimsoll cache \
        status --json` lists the ranges before (at_risk) and after (lost_ranges). If the pool isn't served without the cache device, use --config, then restart the node; it may \
        serve other pools meanwhile. The lost ranges aren't known then. If a flush had failed, `plimsoll pool recover` has flushes served again.\n\nExamples:\n  plimsoll cache give-up vol --lose-data\n  \
        plimsoll cache give-up vol --lose-data --config node.toml"
    )]
    GiveUp {
        /// The volume.
        volume: String,
        /// Pool [default: the only one with a cache].
        #[arg(long)]
        pool: Option<String>,
        /// Confirm the loss. REQUIRED: the volume's dirty data in the cache are LOST.
        #[arg(long)]
        lose_data: bool,
        /// Configuration file of the node, if no node serves the pool.
        #[arg(long, value_name = "FILE")]
        config: Option<PathBuf>,
        #[command(flatten)]
        control: Control,
    },
    /// Write back dirty data, and wait for it
    #[command(after_help = "Example:\n  plimsoll cache flush main --control control.sock")]
    Flush {
        /// Pool [default: the only one with a cache].
        pool: Option<String>,
        /// Start it and return at once.
        #[arg(long)]
        no_wait: bool,
        #[command(flatten)]
        control: Control,
    },
}

impl Cache {
    /// Runs the command.
    pub fn run(self) -> Result<()> {
        match self.command {
            Command::Status { pool, control } => {
                let (name, view) = find(&Client::new(&control)?, pool)?;
                part::show::<Layer>(&name, &view, &control)
            }
            Command::Resize { pool, size, control } => {
                let client = Client::new(&control)?;
                let (name, _) = find(&client, pool)?;
                let wanted = [("cache_size_bytes".to_string(), size.0)].into();
                let _: Vec<SettingView> = part::change(&client, &name, &wanted)?;
                let view = part::view::<Layer>(&client, &name)?;
                part::show::<Layer>(&name, &view, &control)
            }
            Command::GiveUp { lose_data: false, volume, .. } => {
                bail!(
                    "this would discard the dirty cache data of volume `{volume}` (DATA LOSS): nothing was changed; repeat with --lose-data to confirm"
                )
            }
            Command::GiveUp { volume, pool, config: Some(config), .. } => give_up_offline(&volume, pool, &config),
            Command::GiveUp { volume, pool, control, .. } => {
                let client = Client::new(&control)?;
                let (name, _) = find(&client, pool)?;
                let order = CacheGiveUp { volume: volume.clone(), lose: true };
                client.tell(Method::POST, &part::path(&name, "cache/give-up"), &order)?;
                let view = part::view::<Layer>(&client, &name)?;
                if !control.json && view.state == "failed" {
                    println!(
                        "volume {volume}: given up; which extents are lost isn't known. Restart the node to serve it"
                    );
                }
                part::show::<Layer>(&name, &view, &control)
            }
            Command::Flush { pool, no_wait, control } => {
                let client = Client::new(&control)?;
                let (name, _) = find(&client, pool)?;
                client.order(Method::POST, &part::path(&name, "cache/flush"))?;
                if no_wait {
                    return Ok(());
                }
                let view = wait(&client, &name, |view| view.flush_left)?;
                part::show::<Layer>(&name, &view, &control)
            }
        }
    }
}

/// Gives up what only the cache has of a volume while no node serves it.
fn give_up_offline(volume: &str, pool: Option<String>, config: &Path) -> Result<()> {
    let config = Config::load(config)?;
    let meant = |p: &&PoolConfig| pool.as_ref().is_none_or(|name| name == p.name.get_ref());
    let pools: Vec<&PoolConfig> = config.pool.iter().filter(meant).collect();
    let [pool] = pools[..] else { bail!("name the volume's pool with --pool: {} are configured", config.pool.len()) };
    plimsoll_node::open::give_up(pool, volume).map_err(|e| anyhow!("{e}"))?;
    println!("volume {volume}: given up; which extents are lost isn't known");
    Ok(())
}

/// The pool meant, and its cache.
fn find(client: &Client, named: Option<String>) -> Result<(String, CacheView)> {
    let name = part::pool_with::<Layer>(client, named)?;
    let view = part::view::<Layer>(client, &name)?;
    Ok((name, view))
}

/// Time without progress after which a message reports it.
const STILL_TIME: Duration = Duration::from_secs(60);
/// The same if dirty data lie beyond a volume's end: nothing but a larger volume helps.
const STILL_TIME_BEYOND_END: Duration = Duration::from_secs(10);

/// Waits until nothing is `left`, of what only the cache has. Says how far it has come if that stands still, or can't go on.
fn wait(client: &Client, name: &str, left: impl Fn(&CacheView) -> u64) -> Result<CacheView> {
    let bar = if std::io::stderr().is_terminal() { ProgressBar::new(0) } else { ProgressBar::hidden() };
    bar.set_style(ProgressStyle::with_template("{wide_bar} {pos}/{len} extents {eta}").expect("a constant template"));
    let (mut all, mut last, mut moved_at) = (0, (0, 0), Instant::now());
    loop {
        let view: CacheView = part::view::<Layer>(client, name)?;
        let now = left(&view);
        if now == 0 {
            bar.finish_and_clear();
            return Ok(view);
        }
        all = all.max(now);
        let far = format!("{} of {all} extents are written back, {now} are left", all - now);
        if view.state != "ready" {
            bail!("pool {name}: {far}; the cache is {}: {}", view.state, view.problem.unwrap_or_default());
        }
        if last != (now, view.written_back) {
            (last, moved_at) = ((now, view.written_back), Instant::now());
        }
        let beyond_end = view.write_back_fails.iter().find(|f| f.is_beyond_end());
        if let Some(fails) = beyond_end.filter(|_| moved_at.elapsed() > STILL_TIME_BEYOND_END) {
            bail!("pool {name}: {far}: {}", fails.text());
        }
        if moved_at.elapsed() > STILL_TIME {
            bail!("pool {name}: {far}, and nothing moves: is its device refusing them? The node goes on trying");
        }
        bar.set_length(all);
        bar.set_position(all - now);
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Waits until the pool's own device has all of a volume that isn't write-back any more, and the pool knows it.
pub fn wait_until_home(client: &Client, pool: &str, volume: &str) -> Result<()> {
    let left = |view: &CacheView| {
        let ours = view.volumes.iter().find(|v| v.name == volume && v.behind);
        ours.map_or(0, |v| v.dirty_extents.max(1))
    };
    wait(client, pool, left).map(drop)
}
