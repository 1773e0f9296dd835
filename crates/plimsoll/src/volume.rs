//! `plimsoll volume …`

use crate::client::{Client, Control, print_json, segment};
use crate::table::{bytes, micros, table};
use anyhow::Result;
use clap::{Args, Subcommand};
use hyper::Method;
use plimsoll_node::config::ByteSize;
use plimsoll_node::http::api::{NewVolume, VolumeChange, VolumeStatus};

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
            Command::Create { name, pool, size, tenant, read_only, control } => {
                let new = NewVolume { name, pool, size_bytes: size.0, tenant, read_only };
                show(&Client::new(&control)?.send(Method::POST, "/v1/volumes", &new)?, &control)
            }
            Command::Grow { name, size, control } => {
                let wanted = VolumeChange { size_bytes: size.0 };
                show(&Client::new(&control)?.send(Method::PATCH, &path(&name), &wanted)?, &control)
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
        ]
    };
    let head = ["NAME", "SIZE", "STATE", "TENANT", "POOL", "MODE", "CLIENTS"];
    print!("{}", table(&head, &all.iter().map(row).collect::<Vec<_>>()));
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
    println!(
        "  requests  {} done, {} failed, {} busy, {} inside",
        t.done,
        t.failed,
        t.busy_refused + t.busy_revoked,
        t.inside
    );
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
