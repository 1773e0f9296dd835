//! `plimsoll host status`: what readers see.

use crate::client::print_json;
use crate::table::{micros, table};
use anyhow::{Context, Result};
use clap::Args;
use plimsoll_host::disk;
use plimsoll_host::link::{self, Link};
use plimsoll_host::shared::now_ns;
use serde::Serialize;
use std::path::PathBuf;

/// Show the disks that the agent watches, their load and what a read would take.
#[derive(Args)]
#[command(after_help = "Example:\n  plimsoll host status --json")]
pub struct Status {
    /// The agent's socket.
    #[arg(long, value_name = "PATH", default_value_os_t = link::socket())]
    socket: PathBuf,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Shown {
    heartbeat_age_us: u64,
    disks: Vec<Row>,
}

#[derive(Serialize)]
struct Row {
    disk: String,
    in_flight: u64,
    bytes_in_flight: u64,
    queued_reads: u32,
    queued_writes: u32,
    /// Absent: nothing is known yet.
    read_4kib_us: Option<u64>,
    wait_us: Option<u64>,
}

impl Status {
    /// Runs the command.
    pub fn run(self) -> Result<()> {
        let link = Link::connect(&self.socket).context("asking the host agent; `plimsoll host` starts one")?;
        let now = now_ns();
        let names: Vec<disk::Disk> = disk::all();
        let name = |dev: u32| {
            let known = names.iter().find(|d| d.dev == dev).map(|d| d.name.clone());
            known.unwrap_or_else(|| format!("{}:{}", dev >> 20, dev & 0xf_ffff))
        };
        let rows = link.disks().filter_map(|dev| {
            let view = link.disk(dev)?;
            let (load, _) = view.now();
            let forecast = view.forecast(now, 4096);
            Some(Row {
                disk: name(dev),
                in_flight: load.in_flight(),
                bytes_in_flight: load.bytes_in_flight(),
                queued_reads: load.queued_reads,
                queued_writes: load.queued_writes,
                read_4kib_us: forecast.map(|f| f.total_ns / 1000),
                wait_us: forecast.map(|f| f.wait_ns / 1000),
            })
        });
        let mut disks: Vec<Row> = rows.collect();
        disks.sort_by(|a, b| a.disk.cmp(&b.disk));
        let shown = Shown { heartbeat_age_us: now.saturating_sub(link.heartbeat_ns()) / 1000, disks };
        if self.json {
            return print_json(&shown);
        }
        if !link.is_fresh(now) {
            println!("the agent has stopped {} ago: reads go on without deadlines", micros(shown.heartbeat_age_us));
        }
        let time = |us: Option<u64>| us.map_or_else(|| "not known yet".into(), micros);
        let rows: Vec<Vec<String>> = shown
            .disks
            .iter()
            .map(|r| {
                let queued = format!("{} + {}", r.queued_reads, r.queued_writes);
                vec![r.disk.clone(), r.in_flight.to_string(), queued, time(r.wait_us), time(r.read_4kib_us)]
            })
            .collect();
        print!("{}", table(&["DISK", "IN FLIGHT", "QUEUED R + W", "WAIT", "4 KIB READ"], &rows));
        Ok(())
    }
}
