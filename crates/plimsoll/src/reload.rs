//! `plimsoll reload`, `plimsoll drain`.

use crate::client::{Client, Control, print_json};
use anyhow::{Result, bail};
use clap::Args;
use hyper::Method;
use plimsoll_node::http::api::{Draining, Reloaded, Status};
use std::time::{Duration, Instant};

/// Reload the configuration: grants, certificates, tenants, volumes, new pools, log level
#[derive(Args)]
#[command(
    after_help = "Prints what was changed and what needs a restart. A pool that left the file is served until `plimsoll pool remove`. A configuration with an error changes nothing.\n\nExample:\n  plimsoll reload --control /run/plimsoll/control.sock"
)]
pub struct Reload {
    #[command(flatten)]
    control: Control,
}

impl Reload {
    /// Runs the command.
    pub fn run(self) -> Result<()> {
        let done: Reloaded = Client::new(&self.control)?.send(Method::POST, "/v1/reload", &())?;
        if self.control.json {
            print_json(&done)?;
        } else {
            let lines = [
                ("changed", &done.changed),
                ("needs a restart", &done.restart),
                ("still served", &done.still_served),
                ("FAILED", &done.failed),
            ];
            for (what, all) in lines {
                all.iter().for_each(|name| println!("{what}: {name}"));
            }
            if lines.iter().all(|(_, all)| all.is_empty()) {
                println!("nothing differs");
            }
        }
        match done.failed.len() {
            0 => Ok(()),
            n => bail!("{n} changes could not be carried out; the others were"),
        }
    }
}

/// Stop a node in order: refuse new clients, finish requests, flush data
#[derive(Args)]
#[command(
    after_help = "Prints progress until the node has ended. After `control.drain` (default 1 minute) it ends in any case.\n\nExample:\n  plimsoll drain --control /run/plimsoll/control.sock"
)]
pub struct Drain {
    #[command(flatten)]
    control: Control,
}

/// A node that is ending is asked this often how it goes.
const LOOK: Duration = Duration::from_millis(200);

impl Drain {
    /// Runs the command.
    pub fn run(self) -> Result<()> {
        let client = Client::new(&self.control)?;
        let began = Instant::now();
        let draining: Draining = client.send(Method::POST, "/v1/drain", &())?;
        let at_most = Duration::from_micros(draining.at_most_us);
        let mut shown = None;
        // The node's sockets go last.
        while let Ok(status) = client.get_within::<Status>("/v1/status", Duration::from_secs(5)) {
            if !status.node.ending {
                bail!("a node answers that isn't ending: it was restarted");
            }
            let inside: u64 = status.pools.iter().map(|p| p.inside).sum();
            if shown != Some(inside) && !self.control.json {
                println!("{:.1} s: {inside} requests in flight", began.elapsed().as_secs_f64());
                shown = Some(inside);
            }
            if began.elapsed() > at_most + Duration::from_secs(10) {
                bail!("the node still answers after {} s: see its log", began.elapsed().as_secs());
            }
            std::thread::sleep(LOOK); // so that a node that ends has little to answer
        }
        let took = began.elapsed();
        if self.control.json {
            return print_json(&serde_json::json!({ "ended_after_us": took.as_micros() as u64 }));
        }
        println!("ended after {:.1} s", took.as_secs_f64());
        Ok(())
    }
}
