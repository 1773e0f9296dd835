//! `plimsoll pool …`

use crate::client::{Client, Control, print_json, segment};
use crate::moving::{self, To};
use crate::part;
use crate::table::{bytes, table};
use crate::{confirm, output};
use anyhow::{Result, anyhow, bail};
use clap::{Args, Subcommand};
use hyper::Method;
use plimsoll_node::http::api::{PoolReleased, PoolRemoved, PoolStatus, PoolTaken, Status};
use plimsoll_node::parts::logs;
use plimsoll_node::parts::settings::SettingView;
use plimsoll_store::superblock::RegionKind;
use plimsoll_store::{Backup, RestoreOptions, Restored};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// List pools, show a pool's layers, show and change its settings; back up its metadata and restore them; remove one.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  plimsoll pool show main\n  plimsoll pool set main idle=16ms --control control.sock\n  plimsoll pool recover main --control control.sock"
)]
pub struct Pool {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// List pools, their state and free space
    #[command(after_help = "Example:\n  plimsoll pool list")]
    List(#[command(flatten)] Control),
    /// Serve flushes again after a failed one, once you have checked the device
    #[command(
        after_help = "Refused if the pool's own device failed and the pool has [pool.logs]: restart the node. If the cache's device failed, flushes of volumes with dirty data in it go on \
        failing until the device is attached again and the node restarted, or until `plimsoll cache give-up`.\n\nExamples:\n  plimsoll pool recover main \
        --control control.sock\n  plimsoll pool recover main --json"
    )]
    Recover {
        /// Name.
        name: String,
        #[command(flatten)]
        control: Control,
    },
    /// Write a pool's metadata to a file: volumes, where their data lie, tenants
    #[command(
        after_help = "The backup has no data. Take one after each change of volumes. A file that exists isn't overwritten. Over TCP it takes the token.\n\n\
        Example:\n  plimsoll pool backup main --out main.backup"
    )]
    Backup {
        /// Name.
        name: String,
        /// File to write; `-` is stdout.
        #[arg(long, value_name = "FILE", default_value = "-")]
        out: PathBuf,
        #[command(flatten)]
        control: Control,
    },
    /// Put a pool's metadata back onto its device, which no node may have open
    #[command(
        after_help = "Verifies the backup before, and the device after. Needs write access to the device, and no node. Refused on another device.\n\nA backup from \
        before a volume was made or grown doesn't have that volume: with --older its data are LOST, and free space is zeroed.\n\nIf the pool's metadata \
        can't be read and the backup knows no cache, say whether the pool ever had one: it may have got it since.\n\nExamples:\n  plimsoll pool restore main.img --from \
        main.backup\n  plimsoll pool restore /dev/disk/by-id/NAME --from main.backup --yes --json"
    )]
    Restore {
        /// The pool's device: a file or a block device.
        device: PathBuf,
        /// The backup; `-` is stdin.
        #[arg(long, value_name = "FILE")]
        from: PathBuf,
        /// Restore even if the metadata were changed since, or nobody can tell. LOSES volumes that were made since
        #[arg(long)]
        older: bool,
        /// Restore onto a device that doesn't say that it is the pool's, as all its metadata are lost. On another device ALL DATA are others'
        #[arg(long)]
        blank: bool,
        /// The pool had a cache, though the backup knows none. It isn't served without the cache's device then
        #[arg(long, conflicts_with = "never_cached")]
        had_cache: bool,
        /// The pool never had a cache. If it had one, dirty data in it are LOST
        #[arg(long)]
        never_cached: bool,
        /// Don't ask. Without a terminal nothing is restored otherwise.
        #[arg(long)]
        yes: bool,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// End a pool that the configuration file no longer has; its data stay on its devices
    #[command(
        after_help = "Take the pool and its volumes out of the file and `plimsoll reload` before. Flushes the pool, closes its devices, and waits for that, at \
        most control.drain. A later reload may add the pool again.\n\nExamples:\n  plimsoll pool remove old --control control.sock\n  plimsoll pool remove old --disconnect --json"
    )]
    Remove {
        /// Name.
        name: String,
        /// Disconnect the clients of its volumes. Without it a pool in use isn't removed.
        #[arg(long)]
        disconnect: bool,
        #[command(flatten)]
        control: Control,
    },
    /// End a pool on an RBD image and give its lock up, so that another gateway can take it
    #[command(
        after_help = "Finishes requests, flushes, closes the image, and waits for that, at most control.drain. The pool isn't served here until a reload, a start, or \
        `plimsoll pool take`. See docs/guides/ceph.md.\n\nExample:\n  plimsoll pool release far --disconnect"
    )]
    Release {
        /// Name.
        name: String,
        /// Disconnect the clients of its volumes. Without it a pool in use isn't released.
        #[arg(long)]
        disconnect: bool,
        /// Write its cache back before, while clients go on. Without it a pool whose cache may have newer data isn't released.
        #[arg(long)]
        write_back: bool,
        #[command(flatten)]
        control: Control,
    },
    /// Serve a configured pool on an RBD image that another gateway had
    #[command(
        after_help = "Reloads the configuration. Without --force it needs `plimsoll pool release` at the other gateway, or its end. See docs/guides/ceph.md.\n\n\
        With --force it waits 20 s before the pool is served: the lock's owner may answer from its caches for that time. The lock of an image that isn't \
        the pool's is not taken.\n\n\
        Examples:\n  plimsoll pool take far\n  plimsoll pool take far --force"
    )]
    Take {
        /// Name.
        name: String,
        /// Take the lock away from an owner that hangs or can't be reached. Ceph refuses its requests for a year.
        #[arg(long)]
        force: bool,
        /// Take it although only a cache that isn't here may have the newest data. The pool is served once they are given up (plimsoll cache give-up).
        #[arg(long, requires = "force")]
        without_cache: bool,
        #[command(flatten)]
        control: Control,
    },
    /// Move a pool on an RBD image from one gateway to another; takes seconds and loses nothing
    ///
    /// Asks both gateways before anything is ended. The old one writes its cache back while clients go on, finishes requests, flushes, and gives
    /// the image up. The new one takes it. If it can't, the old one takes it back.
    #[command(
        after_help = "Run it at either gateway or on a third machine: a socket may come from another host by SSH (docs/guides/ceph.md). If it broke off, run it again.\n\n\
        Examples:\n  plimsoll pool move far --to http://127.0.0.1:7701 --to-token-file new.token --disconnect\n  \
        plimsoll pool move far --control old.sock --to /run/plimsoll/control.sock --force"
    )]
    Move {
        /// Name.
        name: String,
        #[command(flatten)]
        to: To,
        #[command(flatten)]
        control: Control,
    },
    /// Show every layer of a pool
    #[command(after_help = "Example:\n  plimsoll pool show main")]
    Show {
        /// Name.
        name: String,
        #[command(flatten)]
        control: Control,
    },
    /// List the settings that can be changed online
    #[command(after_help = "Example:\n  plimsoll pool settings main")]
    Settings {
        /// Name.
        name: String,
        #[command(flatten)]
        control: Control,
    },
    /// Change settings online, all or none
    #[command(
        after_help = "`plimsoll pool settings` lists the settings. They persist until the configuration file sets a different value.\n\nExamples:\n  \
        plimsoll pool set main idle=16ms\n  plimsoll pool set main logged_write=64KiB fingerprints=50%"
    )]
    Set {
        /// Name.
        name: String,
        /// A setting and its value, with its unit.
        #[arg(value_name = "KEY=VALUE", required = true)]
        settings: Vec<String>,
        #[command(flatten)]
        control: Control,
    },
}

impl Pool {
    /// Runs the command.
    pub fn run(self) -> Result<()> {
        match self.command {
            Command::List(control) => list(&control),
            Command::Recover { name, control } => recover(&name, &control),
            Command::Backup { name, out, control } => {
                let path = format!("/v1/pools/{}/backup", segment(&name));
                output::write_new(&out, &Client::new(&control)?.get_text(&path)?)
            }
            Command::Restore { device, from, older, blank, had_cache, never_cached, yes, json } => {
                let had_cache = (had_cache || never_cached).then_some(had_cache);
                let options = RestoreOptions { older, blank, had_cache, home_bytes: None };
                restore(&device, &from, options, yes, json)
            }
            Command::Remove { name, disconnect, control } => remove(&name, disconnect, &control),
            Command::Release { name, disconnect, write_back, control } => {
                release(&name, disconnect, write_back, &control)
            }
            Command::Move { name, to, control } => moving::pool(&name, &to, &control),
            Command::Take { name, force, without_cache, control } => take(&name, force, without_cache, &control),
            Command::Show { name, control } => part::show_all(&Client::new(&control)?, &name, &control),
            Command::Settings { name, control } => print(&part::settings(&Client::new(&control)?, &name)?, &control),
            Command::Set { name, settings, control } => {
                let client = Client::new(&control)?;
                let known = part::settings(&client, &name)?;
                let wanted = settings.iter().map(|s| parse(s, &known)).collect::<Result<BTreeMap<_, _>>>()?;
                print(&part::change::<Vec<SettingView>>(&client, &name, &wanted)?, &control)
            }
        }
    }
}

/// Restores a pool's metadata, once the user has confirmed.
fn restore(device: &Path, from: &Path, options: RestoreOptions, yes: bool, json: bool) -> Result<()> {
    let backup = Backup::parse(&output::read(from)?)?;
    let what =
        format!("{}: all its metadata are replaced by a backup of {} volumes.", device.display(), backup.volumes());
    if !yes {
        confirm::by_name(&what, &device.display().to_string())?;
    }
    let tables = backup.superblock().region(RegionKind::Logs);
    if let Some(tables) = tables {
        logs::check_before(device, tables, None).map_err(anyhow::Error::msg)?;
    }
    let home_bytes = tables.and_then(|tables| logs::home_bytes_on(device, tables));
    let options = RestoreOptions { home_bytes, ..options };
    let Restored { age, volumes, zeroed_bytes, zeroed_later_bytes } = backup.restore(device, options)?;
    if json {
        let device = device.display().to_string();
        return print_json(&serde_json::json!({
            "restored": device, "volumes": volumes, "age": age.to_string(), "zeroed_bytes": zeroed_bytes,
            "zeroed_later_bytes": zeroed_later_bytes,
        }));
    }
    println!("{}: {volumes} volumes are restored and verified; {age}", device.display());
    if zeroed_bytes > 0 {
        println!("  {} were zeroed: free space, and space that other volumes had since", bytes(zeroed_bytes));
    }
    if zeroed_later_bytes > 0 {
        println!(
            "  {} of free space are zeroed after the pool's start, and aren't free before",
            bytes(zeroed_later_bytes)
        );
    }
    Ok(())
}

/// Orders that flushes are served again, and shows the pool's state after that.
fn recover(name: &str, control: &Control) -> Result<()> {
    let client = Client::new(control)?;
    client.order(Method::POST, &format!("/v1/pools/{}/recover", segment(name)))?;
    let status: Status = client.get("/v1/status")?;
    let Some(pool) = status.pools.iter().find(|p| p.name == name) else { bail!("pool {name} is gone") };
    if control.json {
        return print_json(pool);
    }
    match pool.flush_failed {
        false => println!("pool {name}: flushes are served again"),
        // Requests that were in flight at the device have failed since.
        true => println!("pool {name}: a flush has failed again"),
    }
    for problem in pool.parts.iter().filter_map(|p| p.problem.as_ref()) {
        println!("{problem}");
    }
    Ok(())
}

fn remove(name: &str, disconnect: bool, control: &Control) -> Result<()> {
    let query = if disconnect { "?disconnect=true" } else { "" };
    let path = format!("/v1/pools/{}{query}", segment(name));
    let removed: PoolRemoved = Client::new(control)?.order_for(Method::DELETE, &path)?;
    if control.json {
        return print_json(&removed);
    }
    println!("pool {name} isn't served any more: its data stay on {}", removed.device);
    if !removed.volumes.is_empty() {
        println!("  with it went {}", removed.volumes.join(", "));
    }
    Ok(())
}

fn release(name: &str, disconnect: bool, write_back: bool, control: &Control) -> Result<()> {
    let path = format!("/v1/pools/{}/release?disconnect={disconnect}&write_back={write_back}", segment(name));
    let released: PoolReleased = Client::new(control)?.order_for(Method::POST, &path)?;
    if control.json {
        return print_json(&released);
    }
    println!("pool {name} is released: another gateway can take {}", released.device);
    if !released.volumes.is_empty() {
        println!("  with it went {}", released.volumes.join(", "));
    }
    Ok(())
}

/// The text for a take by force that has begun.
pub fn outlasts() -> String {
    let seconds = plimsoll_node::LOCK_LEASE.as_secs();
    format!("  an owner of the lock is blocked, and may answer from its caches for {seconds} s: that is waited for")
}

fn take(name: &str, force: bool, without_cache: bool, control: &Control) -> Result<()> {
    let query = match (force, without_cache) {
        (false, _) => "",
        (true, false) => "?force=true",
        (true, true) => "?force=true&without_cache=true",
    };
    if force && !control.json {
        println!("{}", outlasts());
    }
    let path = format!("/v1/pools/{}/take{query}", segment(name));
    let taken: PoolTaken = Client::new(control)?.order_for(Method::POST, &path)?;
    if control.json {
        return print_json(&taken);
    }
    println!("pool {name} is served: {}", taken.device);
    if !taken.volumes.is_empty() {
        println!("  with it came {}", taken.volumes.join(", "));
    }
    Ok(())
}

fn list(control: &Control) -> Result<()> {
    let status: Status = Client::new(control)?.get("/v1/status")?;
    if control.json {
        return print_json(&status.pools);
    }
    let row = |p: &PoolStatus| {
        let space = |n: Option<u64>| n.map_or("-".into(), bytes);
        let (size, free) = (space(p.size_bytes), space(p.free_bytes));
        vec![
            p.name.clone(),
            p.state.clone(),
            size,
            free,
            p.connections.to_string(),
            p.inside.to_string(),
            p.device.clone(),
        ]
    };
    let head = ["POOL", "STATE", "SIZE", "FREE", "CLIENTS", "INFLIGHT", "DEVICE"];
    print!("{}", table(&head, &status.pools.iter().map(row).collect::<Vec<_>>()));
    Ok(())
}

/// `idle=16ms`: the key and the value in its unit.
fn parse(text: &str, known: &[SettingView]) -> Result<(String, u64)> {
    let Some((key, value)) = text.split_once('=') else { bail!("`{text}`: write KEY=VALUE, such as idle=16ms") };
    let is = |s: &&SettingView| s.key == key || s.key.rsplit_once('_').is_some_and(|(name, _)| name == key);
    let Some(setting) = known.iter().find(is) else {
        let keys: Vec<&str> = known.iter().map(|s| s.key.as_str()).collect();
        if keys.is_empty() {
            bail!(
                "`{key}`: this pool's layers have no settings that can be changed while it serves; `idle` needs `sched = \"cfq\"`"
            );
        }
        bail!("`{key}` is no setting of this pool: it has {}", keys.join(", "));
    };
    let value = setting.unit.parse(value).map_err(|what| anyhow!("{key}: {what}"))?;
    Ok((setting.key.clone(), value))
}

fn print(settings: &[SettingView], control: &Control) -> Result<()> {
    if control.json {
        return print_json(&settings);
    }
    let row = |s: &SettingView| {
        let text = |value| s.unit.text(value);
        let range = format!("{} to {}", text(s.min), text(s.max));
        let configured = s.configured.map_or("-".into(), text);
        vec![s.part.clone(), s.key.clone(), text(s.value), configured, range, s.help.clone()]
    };
    let head = ["LAYER", "SETTING", "NOW", "CONFIGURED", "RANGE", "MEANING"];
    print!("{}", table(&head, &settings.iter().map(row).collect::<Vec<_>>()));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_node::parts::settings::Unit;

    #[test]
    fn a_setting_is_named_with_or_without_its_unit() {
        let known = [SettingView {
            part: "scheduler".into(),
            key: "idle_us".into(),
            unit: Unit::Us,
            value: 8000,
            min: 0,
            max: 1_000_000,
            configured: None,
            help: String::new(),
        }];
        for text in ["idle=16ms", "idle_us=16ms"] {
            assert_eq!(parse(text, &known).unwrap(), ("idle_us".into(), 16_000));
        }
        for (text, what) in [("idle", "write KEY=VALUE"), ("tea=1", "it has idle_us"), ("idle=16", "no time such as")] {
            assert!(parse(text, &known).unwrap_err().to_string().contains(what), "{text}");
        }
    }
}
