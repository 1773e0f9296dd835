//! `plimsoll connections`

use crate::client::{Client, Control, print_json, segment};
use crate::promise::deadline;
use crate::table::{micros, table};
use anyhow::Result;
use clap::{Args, Subcommand};
use hyper::Method;
use plimsoll_node::http::api;

/// List the clients that are connected, 1,000 of each pool at most; or close their connections
#[derive(Args)]
#[command(args_conflicts_with_subcommands = true)]
#[command(after_help = "Examples:\n  plimsoll connections --volume web\n  plimsoll connections close --tenant web")]
pub struct Connections {
    #[command(subcommand)]
    verb: Option<Verb>,
    #[command(flatten)]
    filter: Filter,
    #[command(flatten)]
    control: Control,
}

/// Commands about connections besides their list.
#[derive(Subcommand)]
enum Verb {
    Close(Close),
}

/// Close connections: nothing more is taken from their clients, requests that the node has are answered
///
/// A client that is still granted its volume may connect again, and most do so by themselves: take back the grant first (in the
/// configuration, then reload). Writes that are answered and not flushed stay with the node: nothing is lost. A writer of a replica is
/// lost to it: the replica may lack changes until it is resynced. A client that doesn't take its answers is cut off after
/// `limits.payload_idle`.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  plimsoll connections close --peer uid:1000\n  plimsoll connections close --volume web --tenant reports"
)]
struct Close {
    #[command(flatten)]
    filter: Filter,
    #[command(flatten)]
    control: Control,
}

#[derive(Args)]
struct Filter {
    /// Only those of this volume.
    #[arg(long, value_name = "NAME")]
    volume: Option<String>,
    /// Only those of this tenant.
    #[arg(long, value_name = "NAME")]
    tenant: Option<String>,
    /// Only those of this peer, as the list shows it, `uid:1000` for example.
    #[arg(long, value_name = "PEER")]
    peer: Option<String>,
}

impl Filter {
    /// The path of the connections that are meant.
    fn path(&self) -> String {
        let all = [("volume", &self.volume), ("tenant", &self.tenant), ("peer", &self.peer)];
        let named = all.into_iter().filter_map(|(key, name)| name.as_ref().map(|n| format!("{key}={}", segment(n))));
        format!("/v1/connections?{}", named.collect::<Vec<_>>().join("&"))
    }
}

impl Connections {
    /// Runs the command.
    pub fn run(self) -> Result<()> {
        match self.verb {
            Some(Verb::Close(close)) => close.run(),
            None => list(&self.filter, &self.control),
        }
    }
}

impl Close {
    fn run(self) -> Result<()> {
        let done: api::Disconnected = Client::new(&self.control)?.order_for(Method::DELETE, &self.filter.path())?;
        if self.control.json {
            return print_json(&done);
        }
        match done.closed {
            0 => println!("no such client is connected"),
            1 => println!("1 connection closes"),
            n => println!("{n} connections close"),
        }
        Ok(())
    }
}

fn list(filter: &Filter, control: &Control) -> Result<()> {
    let found: api::Connections = Client::new(control)?.get(&filter.path())?;
    if control.json {
        return print_json(&found);
    }
    let name = |name: &Option<String>| name.clone().unwrap_or("-".into());
    let row = |c: &api::ConnectionStatus| {
        vec![
            c.peer.clone(),
            name(&c.volume),
            name(&c.tenant),
            deadline(c.promise.as_ref()),
            if c.negotiated { "negotiated" } else { "plain NBD" }.into(),
            c.in_flight.to_string(),
            c.permit_wait_us.map_or("-".into(), micros),
            micros(c.connected_us),
        ]
    };
    let head = ["PEER", "VOLUME", "TENANT", "DEADLINE", "CLIENT", "IN FLIGHT", "WAITS FOR PERMIT", "CONNECTED"];
    print!("{}", table(&head, &found.connections.iter().map(row).collect::<Vec<_>>()));
    let shown = found.connections.len() as u64;
    if shown < found.total {
        println!("{shown} of {}: name a --volume, --tenant or --peer to see others", found.total);
    }
    Ok(())
}
