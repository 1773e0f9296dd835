//! `plimsoll connections`

use crate::client::{Client, Control, print_json, segment};
use crate::promise::deadline;
use crate::table::{micros, table};
use anyhow::Result;
use clap::Args;
use plimsoll_node::http::api;

/// List the clients that are connected, 1,000 of each pool at most.
#[derive(Args)]
#[command(after_help = "Example:\n  plimsoll connections --volume web")]
pub struct Connections {
    /// Only those of this volume.
    #[arg(long, value_name = "NAME")]
    volume: Option<String>,
    /// Only those of this tenant.
    #[arg(long, value_name = "NAME")]
    tenant: Option<String>,
    #[command(flatten)]
    control: Control,
}

impl Connections {
    /// Runs the command.
    pub fn run(self) -> Result<()> {
        let filter = |key: &str, name: &Option<String>| name.as_ref().map(|name| format!("{key}={}", segment(name)));
        let filters: Vec<String> =
            filter("volume", &self.volume).into_iter().chain(filter("tenant", &self.tenant)).collect();
        let path = format!("/v1/connections?{}", filters.join("&"));
        let found: api::Connections = Client::new(&self.control)?.get(&path)?;
        if self.control.json {
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
            println!("{shown} of {}: name a --volume or --tenant to see others", found.total);
        }
        Ok(())
    }
}
