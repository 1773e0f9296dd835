//! `plimsoll volume …`

use crate::client::{Client, Control, print_json, segment};
use crate::confirm;
use crate::deadline::{Deadline, deadline};
use crate::moving::{self, To};
use crate::promise;
use crate::resync::{AnotherVolume, Resync};
use crate::table::{bytes, micros, table};
use anyhow::{Result, bail};
use clap::error::ErrorKind;
use clap::{Args, Subcommand};
use hyper::Method;
use plimsoll_base::OnBusy;
use plimsoll_client::live::Address;
use plimsoll_node::config::{ByteSize, CacheMode};
use plimsoll_node::http::api::{NewVolume, ReplicaChange, VolumeChange, VolumeStatus};

/// List, create, grow, rename, delete volumes.
#[derive(Args)]
#[command(
    after_help = "Example:\n  plimsoll volume create db --pool main --size 8GiB --tenant web --control control.sock"
)]
pub struct Volume {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// List volumes
    #[command(after_help = "Example:\n  plimsoll volume list --json")]
    List(#[command(flatten)] Control),
    /// Show a volume
    #[command(after_help = "Example:\n  plimsoll volume show web")]
    Show {
        /// Name.
        name: String,
        #[command(flatten)]
        control: Control,
    },
    /// Create a volume; it reads as zeroes
    #[command(
        after_help = "Example:\n  plimsoll volume create db --pool main --size 8GiB --tenant web --control control.sock"
    )]
    Create {
        /// Name: the export that NBD clients open.
        name: String,
        /// The pool that stores it.
        #[arg(long)]
        pool: String,
        /// Size: 8GiB, 512MiB, a number of bytes.
        #[arg(long)]
        size: ByteSize,
        /// Tenant that its requests are charged to.
        #[arg(long)]
        tenant: String,
        /// Refuse changes.
        #[arg(long)]
        read_only: bool,
        /// Cache mode: off, through or back [default: the pool's].
        #[arg(long, value_parser = cache_mode)]
        cache: Option<CacheMode>,
        #[command(flatten)]
        control: Control,
    },
    /// Grow a volume; clients see its size when they connect again
    #[command(after_help = "Example:\n  plimsoll volume grow web --size 4GiB --control control.sock")]
    Grow {
        /// Name.
        name: String,
        /// New size.
        #[arg(long)]
        size: ByteSize,
        #[command(flatten)]
        control: Control,
    },
    /// Change a volume's cache mode (off, through, back) online
    #[command(
        after_help = "Leaving `back` writes dirty data back first.\n\nExample:\n  plimsoll volume cache web back --control control.sock"
    )]
    Cache {
        /// Name.
        name: String,
        /// off, through or back.
        #[arg(value_parser = cache_mode)]
        mode: CacheMode,
        /// Return at once, before dirty data are written back.
        #[arg(long)]
        no_wait: bool,
        #[command(flatten)]
        control: Control,
    },
    /// Set the deadline of a volume's reads, for new connections
    #[command(
        after_help = "Connections whose export name has a deadline keep that one. The setting persists until the configuration file sets a different \
        value.\n\nExamples:\n  plimsoll volume deadline web 20ms\n  plimsoll volume deadline web 20ms --busy error\n  plimsoll volume deadline web none"
    )]
    Deadline {
        /// Name.
        name: String,
        /// Deadline of its reads, from their arrival; `none`: the tenant's.
        #[arg(value_parser = deadline)]
        deadline: Deadline,
        /// Answer to a read that would miss the deadline: wait (served late) or error (fails at once) [default: as it is, wait at first]
        #[arg(long, value_name = "ANSWER")]
        busy: Option<OnBusy>,
        #[command(flatten)]
        control: Control,
    },
    /// Copy what another replica has newer, so that clients read this one again
    ///
    /// Copies differing ranges from the peer over NBD until none is left: ranges that the peer changed lately first. A writer may go on
    /// meanwhile if it is connected to both replicas. It must pause for 0.2 s at the beginning and at the end, and for 5 s if a write has
    /// reached only one replica; each pause is waited for up to a minute. With --trust nothing is copied: the volume's present content is
    /// declared complete, and the other replicas are resynced from it.
    #[command(
        after_help = "Example:\n  plimsoll volume resync web \\\n    --replica 'nbd+unix:///web?socket=/run/plimsoll/nbd.sock' \\\n    --from 'nbds://node-2/web?tls-certificates=/etc/plimsoll-client'\n  plimsoll volume resync web --trust"
    )]
    Resync {
        /// Name.
        name: String,
        /// NBD address of this volume.
        #[arg(long, value_name = "URI", requires = "from")]
        replica: Option<Address>,
        /// NBD address of a complete replica.
        #[arg(long, value_name = "URI", requires = "replica")]
        from: Option<Address>,
        /// Declare the volume's present content to be complete; copies nothing.
        #[arg(long, conflicts_with_all = ["replica", "from", "discard"])]
        trust: bool,
        /// Copy even from a peer with fewer changes. DISCARDS the changes that it lacks
        #[arg(long)]
        discard: bool,
        /// Don't ask. Without it, a volume that lacks nothing is OVERWRITTEN only after its name was typed
        #[arg(long)]
        yes: bool,
        #[command(flatten)]
        control: Control,
    },
    /// Move a volume on an RBD image to another gateway, with its pool; takes seconds and loses nothing
    ///
    /// An image is a pool, and a pool moves as a whole: see `plimsoll pool move --help`.
    #[command(
        after_help = "Example:\n  plimsoll volume move web --to http://127.0.0.1:7701 --to-token-file new.token --disconnect"
    )]
    Move {
        /// Name.
        name: String,
        /// Move the other volumes of its pool, too. Without it, a volume that isn't alone in its pool isn't moved.
        #[arg(long)]
        whole_pool: bool,
        #[command(flatten)]
        to: To,
        #[command(flatten)]
        control: Control,
    },
    /// Give a volume another name; its data and live settings stay
    #[command(
        after_help = "Refused while a client is connected, and for a volume of the configuration file: rename it there and copy its data.\n\nExample:\n  plimsoll volume rename scratch spare --control control.sock"
    )]
    Rename {
        /// Name.
        name: String,
        /// New name.
        new: String,
        #[command(flatten)]
        control: Control,
    },
    /// Delete a volume and ALL ITS DATA; asks first
    #[command(
        after_help = "The space is zeroed. Refused while a client is connected, and for a volume of the configuration file: take it out there and reload.\n\nExamples:\n  plimsoll volume delete db --control control.sock\n  plimsoll volume delete db --yes --json"
    )]
    Delete {
        /// Name.
        name: String,
        /// Don't ask. Without a terminal nothing is deleted otherwise.
        #[arg(long)]
        yes: bool,
        /// Disconnect its clients. Without it, a volume in use isn't deleted.
        #[arg(long)]
        disconnect: bool,
        /// Delete a volume of the configuration file: the next start makes it again, empty.
        #[arg(long)]
        declared: bool,
        #[command(flatten)]
        control: Control,
    },
}

impl Volume {
    /// Runs the command.
    pub fn run(self) -> Result<()> {
        match self.command {
            Command::List(control) => list(&control),
            Command::Show { name, control } => show(&Client::new(&control)?.get(&path(&name))?, &control),
            Command::Create { name, pool, size, tenant, read_only, cache, control } => {
                let new = NewVolume { name, pool, size_bytes: size.0, tenant, read_only, cache };
                show(&Client::new(&control)?.send(Method::POST, "/v1/volumes", &new)?, &control)
            }
            Command::Grow { name, size, control } => {
                let wanted = VolumeChange { size_bytes: Some(size.0), ..VolumeChange::default() };
                show(&Client::new(&control)?.send(Method::PATCH, &path(&name), &wanted)?, &control)
            }
            Command::Cache { name, mode, no_wait, control } => {
                let wanted = VolumeChange { cache: Some(mode), ..VolumeChange::default() };
                let client = Client::new(&control)?;
                let volume: VolumeStatus = client.send(Method::PATCH, &path(&name), &wanted)?;
                if mode != CacheMode::Back && !no_wait {
                    crate::cache::wait_until_home(&client, &volume.pool, &name)?;
                }
                show(&volume, &control)
            }
            Command::Deadline { name, deadline, busy, control } => {
                let wanted = VolumeChange { deadline_us: Some(deadline.micros()), busy, ..VolumeChange::default() };
                show(&Client::new(&control)?.send(Method::PATCH, &path(&name), &wanted)?, &control)
            }
            Command::Resync { name, replica, from, trust, discard, yes, control } => {
                if replica.is_none() && !trust {
                    let what = "--replica and --from are missing; for a volume without replicas, check its data, then say --trust\n";
                    clap::Error::raw(ErrorKind::MissingRequiredArgument, what).exit();
                }
                let resync = replica.zip(from).map(|(replica, from)| Resync { replica, from, discard });
                show(&caught_up(&Client::new(&control)?, &name, resync, yes)?, &control)
            }
            Command::Rename { name, new, control } => {
                let wanted = VolumeChange { rename: Some(new), ..VolumeChange::default() };
                show(&Client::new(&control)?.send(Method::PATCH, &path(&name), &wanted)?, &control)
            }
            Command::Move { name, whole_pool, to, control } => moving::volume(&name, whole_pool, &to, &control),
            Command::Delete { name, yes, disconnect, declared, control } => {
                let how = [("disconnect", disconnect), ("declared", declared)];
                delete(&name, yes, &how, &control)
            }
        }
    }
}

/// Deletes a volume that the user has confirmed. `how` has the API's words for what is refused without them.
fn delete(name: &str, yes: bool, how: &[(&str, bool)], control: &Control) -> Result<()> {
    let client = Client::new(control)?;
    let volume: VolumeStatus = client.get(&path(name))?;
    let VolumeStatus { uuid, pool, tenant, size_bytes, connections, .. } = &volume;
    let size = bytes(*size_bytes);
    if !yes {
        let what = format!(
            "volume {name}: {size} of pool {pool}, tenant {tenant}, clients: {connections}. ALL ITS DATA is lost."
        );
        confirm::by_name(&what, name)?;
    }
    // All of it is overwritten with zeroes: on a slow device that takes its time.
    let shown = indicatif::ProgressBar::new_spinner().with_message(format!("zeroing the space of `{name}`"));
    shown.enable_steady_tick(std::time::Duration::from_millis(200));
    // Another may have got its name while the user was asked.
    let words: String = how.iter().filter(|(_, said)| *said).map(|(word, _)| format!("&{word}=true")).collect();
    let deleted = client.order(Method::DELETE, &format!("{}?uuid={uuid}{words}", path(name)));
    shown.finish_and_clear();
    deleted?;
    if control.json {
        return print_json(&serde_json::json!({ "deleted": name, "pool": pool, "size_bytes": size_bytes }));
    }
    println!("volume {name} is deleted: {size} of pool {pool} are free again");
    Ok(())
}

/// Catches a volume up. Without `resync` nothing is copied, and the volume is taken as it is.
fn caught_up(client: &Client, name: &str, resync: Option<Resync>, yes: bool) -> Result<VolumeStatus> {
    let say = |change| -> Result<VolumeStatus> {
        let wanted = VolumeChange { replica: Some(change), ..VolumeChange::default() };
        client.send(Method::PATCH, &path(name), &wanted)
    };
    let before: VolumeStatus = client.get(&path(name))?;
    if before.read_only && resync.is_some() {
        bail!(
            "volume `{name}` is read-only, so nothing can be copied to it: give it a section in the configuration without `read_only`, \
             `plimsoll reload`, and try again"
        );
    }
    // Whoever names a wrong peer or volume loses the data: a mark says that the volume needs this, and there is none.
    if let Some(resync) = resync.as_ref().filter(|_| before.behind == "no" && !yes) {
        let what = format!(
            "volume {name} lacks nothing, as far as its node knows: is it the one to overwrite? ALL ITS DATA that differ become those of {}.",
            resync.from
        );
        confirm::by_name(&what, name)?;
    }
    // Two of these at once mustn't take the other's end for their own.
    let attempt = uuid::Uuid::new_v4().as_u128() as u32;
    let trust = resync.is_none();
    let begin = || say(ReplicaChange::CatchUp { attempt, trust }).map(drop);
    let end = |add: Result<i64>| {
        if before.behind == "no" && add.as_ref().is_err_and(|e| e.is::<AnotherVolume>()) {
            say(ReplicaChange::CaughtUp { attempt, add: 0 })?; // this one lacked nothing, and nothing was done to it
        }
        say(ReplicaChange::CaughtUp { attempt, add: add? })
    };
    match resync {
        Some(resync) => resync.run(begin, end),
        None => end(begin().map(|()| 0)),
    }
}

fn cache_mode(text: &str) -> Result<CacheMode, String> {
    match text {
        "off" => Ok(CacheMode::Off),
        "through" => Ok(CacheMode::Through),
        "back" => Ok(CacheMode::Back),
        _ => Err("off, through or back".into()),
    }
}

fn path(name: &str) -> String {
    format!("/v1/volumes/{}", segment(name))
}

/// A volume's state, with the mark of one that may lack changes.
pub fn state(v: &VolumeStatus) -> String {
    if v.behind == "no" { v.state.clone() } else { format!("{} ({})", v.state, v.behind) }
}

fn list(control: &Control) -> Result<()> {
    let all: Vec<VolumeStatus> = Client::new(control)?.get("/v1/volumes")?;
    if control.json {
        return print_json(&all);
    }
    let row = |v: &VolumeStatus| {
        let mode = if v.read_only { "read-only" } else { "read-write" };
        let size = bytes(v.size_bytes);
        vec![
            v.name.clone(),
            size,
            state(v),
            v.tenant.clone(),
            v.pool.clone(),
            mode.into(),
            v.connections.to_string(),
            promise::deadline(v.promise.as_ref()),
            promise::shares(&v.traffic.promised.last_minute),
        ]
    };
    let head =
        ["NAME", "SIZE", "STATE", "TENANT", "POOL", "MODE", "CLIENTS", "DEADLINE", "READS KEPT/MISSED/WAITED/REFUSED"];
    print!("{}", table(&head, &promise::volumes(&all).into_iter().map(row).collect::<Vec<_>>()));
    Ok(())
}

fn show(v: &VolumeStatus, control: &Control) -> Result<()> {
    if control.json {
        return print_json(v);
    }
    let t = &v.traffic;
    println!("volume {}: {}", v.name, v.state);
    println!(
        "  size      {} ({} bytes){}",
        bytes(v.size_bytes),
        v.size_bytes,
        if v.read_only { ", read-only" } else { "" }
    );
    println!("  tenant    {}", v.tenant);
    println!("  pool      {}", v.pool);
    println!("  clients   {}", v.connections);
    let lacks =
        if v.behind == "no" { String::new() } else { format!(": may lack changes of other replicas ({})", v.behind) };
    println!("  changes   {}{lacks}", v.generation);
    println!(
        "  requests  {} done, {} failed, {} busy, {} in flight",
        t.done,
        t.failed,
        t.busy_refused + t.busy_revoked,
        t.inside
    );
    promise::print(&promise::of_volume(v));
    if let Some(s) = &t.spared {
        println!(
            "  spared    {} came back after a refusal ({} after it, the median), {} overlapped one, {} by full memory",
            s.again,
            micros(s.returned_after.p50_us),
            s.overlap,
            s.too_many + s.stranger
        );
        println!(
            "            served late or not: p50 {}, p99 {}, most {}",
            micros(s.response.p50_us),
            micros(s.response.p99_us),
            micros(s.response.max_us)
        );
    }
    if t.last_minute.samples > 0 {
        let l = &t.last_minute;
        println!(
            "  latency   p50 {}, p99 {}, p99.9 {} (last minute, {} requests)",
            micros(l.p50_us),
            micros(l.p99_us),
            micros(l.p999_us),
            l.samples
        );
    }
    Ok(())
}
