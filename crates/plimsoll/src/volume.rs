//! `plimsoll volume …`

use crate::client::{Client, Control, print_json, segment};
use crate::deadline::{Deadline, deadline};
use crate::promise;
use crate::resync::{AnotherVolume, Resync};
use crate::table::{bytes, micros, table};
use anyhow::Result;
use clap::{Args, Subcommand};
use hyper::Method;
use plimsoll_base::OnBusy;
use plimsoll_client::live::Address;
use plimsoll_node::config::{ByteSize, CacheMode};
use plimsoll_node::http::api::{NewVolume, ReplicaChange, VolumeChange, VolumeStatus};

/// List, create, grow, delete volumes.
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
    /// List all
    #[command(after_help = "Example:\n  plimsoll volume list --json")]
    List(#[command(flatten)] Control),
    /// Show one
    #[command(after_help = "Example:\n  plimsoll volume show web")]
    Show {
        /// Its name.
        name: String,
        #[command(flatten)]
        control: Control,
    },
    /// Make one; it reads as zeroes
    #[command(
        after_help = "Example:\n  plimsoll volume create db --pool main --size 8GiB --tenant web --control control.sock"
    )]
    Create {
        /// Its name: what NBD clients ask for.
        name: String,
        /// The pool it lives in.
        #[arg(long)]
        pool: String,
        /// Its size: 8GiB, 512MiB, a number of bytes.
        #[arg(long)]
        size: ByteSize,
        /// Who pays for its requests.
        #[arg(long)]
        tenant: String,
        /// Refuse changes.
        #[arg(long)]
        read_only: bool,
        /// How its pool's cache treats it: off, through or back; as the pool says if not given.
        #[arg(long, value_parser = cache_mode)]
        cache: Option<CacheMode>,
        #[command(flatten)]
        control: Control,
    },
    /// Make one larger; connected clients see it when they connect again
    #[command(after_help = "Example:\n  plimsoll volume grow web --size 4GiB --control control.sock")]
    Grow {
        /// Its name.
        name: String,
        /// Its new size.
        #[arg(long)]
        size: ByteSize,
        #[command(flatten)]
        control: Control,
    },
    /// Have its pool's cache treat it otherwise, while it's in use; what only the cache has is written back where that must be
    #[command(after_help = "Example:\n  plimsoll volume cache web back --control control.sock")]
    Cache {
        /// Its name.
        name: String,
        /// off, through or back.
        #[arg(value_parser = cache_mode)]
        mode: CacheMode,
        /// Don't wait until what only the cache has is written back.
        #[arg(long)]
        no_wait: bool,
        #[command(flatten)]
        control: Control,
    },
    /// Give its reads another deadline, for connections from now on that don't ask for their own, until something else is configured
    #[command(
        after_help = "Example:\n  plimsoll volume deadline web 20ms\n  plimsoll volume deadline web 20ms --busy error\n  plimsoll volume deadline web none"
    )]
    Deadline {
        /// Its name.
        name: String,
        /// Deadline of its reads, from their arrival; `none`: as its tenant's.
        #[arg(value_parser = deadline)]
        deadline: Deadline,
        /// Answer to a read that would miss the deadline: wait (served late) or error (fails at once) [default: as it is, wait at first]
        #[arg(long, value_name = "ANSWER")]
        busy: Option<OnBusy>,
        #[command(flatten)]
        control: Control,
    },
    /// Bring it up to what another replica has, so that it's read again as one of several
    ///
    /// What differs is copied from the peer over NBD, first where the peer has changed lately, then all the rest, until nothing
    /// differs any more; writers may go on meanwhile, and must be connected to both. With --trust nothing is copied: what the
    /// volume has is declared to be what the others shall have.
    #[command(
        after_help = "Example:\n  plimsoll volume resync web --replica nbd://node-1/web --from nbd://node-2/web --control control.sock\n  plimsoll volume resync web --trust"
    )]
    Resync {
        /// Its name.
        name: String,
        /// Where it is, as an NBD address.
        #[arg(long, value_name = "URI", required_unless_present = "trust")]
        replica: Option<Address>,
        /// A replica that has everything, as an NBD address.
        #[arg(long, value_name = "URI", required_unless_present = "trust")]
        from: Option<Address>,
        /// Take it as it is.
        #[arg(long, conflicts_with_all = ["replica", "from", "discard"])]
        trust: bool,
        /// Even from a peer that has seen fewer changes: what it lacks is given up
        #[arg(long)]
        discard: bool,
        #[command(flatten)]
        control: Control,
    },
    /// Delete one with all its data: its clients are let go and its space is zeroed
    #[command(after_help = "Example:\n  plimsoll volume delete db --control control.sock")]
    Delete {
        /// Its name.
        name: String,
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
            Command::Resync { name, replica, from, trust: _, discard, control } => {
                let resync = replica.zip(from).map(|(replica, from)| Resync { replica, from, discard });
                show(&caught_up(&Client::new(&control)?, &name, resync)?, &control)
            }
            Command::Delete { name, control } => {
                let client = Client::new(&control)?;
                // All of it is overwritten with zeroes: on a slow device that takes its time.
                let shown =
                    indicatif::ProgressBar::new_spinner().with_message(format!("zeroing the space of `{name}`"));
                shown.enable_steady_tick(std::time::Duration::from_millis(200));
                let deleted = client.order(Method::DELETE, &path(&name));
                shown.finish_and_clear();
                deleted
            }
        }
    }
}

/// Has a volume caught up, or taken as it is where nothing is to be copied.
fn caught_up(client: &Client, name: &str, resync: Option<Resync>) -> Result<VolumeStatus> {
    let say = |change| -> Result<VolumeStatus> {
        let wanted = VolumeChange { replica: Some(change), ..VolumeChange::default() };
        client.send(Method::PATCH, &path(name), &wanted)
    };
    let before: VolumeStatus = client.get(&path(name))?;
    // Two of these at once mustn't take the other's end for their own.
    let attempt = uuid::Uuid::new_v4().as_u128() as u32;
    let begin = || say(ReplicaChange::CatchUp { attempt }).map(drop);
    let add = match resync {
        Some(resync) => resync.run(begin),
        None => begin().map(|()| 0),
    };
    if before.behind == "no" && add.as_ref().is_err_and(|e| e.is::<AnotherVolume>()) {
        say(ReplicaChange::CaughtUp { attempt, add: 0 })?; // this one lacked nothing, and nothing was done to it
    }
    say(ReplicaChange::CaughtUp { attempt, add: add? })
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
            v.state.clone(),
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
        "  requests  {} done, {} failed, {} busy, {} inside",
        t.done,
        t.failed,
        t.busy_refused + t.busy_revoked,
        t.inside
    );
    promise::print(&promise::of_volume(v));
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
