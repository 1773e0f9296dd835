//! `plimsoll status`

use crate::client::{Client, Control, print_json};
use crate::promise::{deadline, forecast, kept, promise, shares, tenants, volumes};
use crate::table::{bytes, table};
use crate::volume::state as volume_state;
use anyhow::Result;
use clap::Args;
use plimsoll_node::http::api;

/// Show the node's state and its problems.
#[derive(Args)]
#[command(after_help = "Example:\n  plimsoll status --control /run/plimsoll/control.sock\n  plimsoll status --json")]
pub struct Status {
    #[command(flatten)]
    control: Control,
}

impl Status {
    /// Runs the command.
    pub fn run(self) -> Result<()> {
        let status: api::Status = Client::new(&self.control)?.get("/v1/status")?;
        if self.control.json {
            return print_json(&status);
        }
        print(&status);
        Ok(())
    }
}

fn print(s: &api::Status) {
    let health = match (s.node.ending, s.node.healthy) {
        (true, _) => "ENDING",
        (false, true) => "healthy",
        (false, false) => "NOT HEALTHY",
    };
    println!("plimsoll {}: {health}, up {} s", s.node.version, s.node.uptime_us / 1_000_000);
    s.node.problems.iter().for_each(|p| println!("  ! {p}"));
    s.node.notes.iter().for_each(|note| println!("  note: {note}"));
    let pool = |p: &api::PoolStatus| {
        let space = |n: Option<u64>| n.map_or("-".to_string(), bytes);
        let oldest =
            p.oldest.as_ref().map_or("-".to_string(), |o| format!("{} at {}", crate::table::micros(o.age_us), o.at));
        vec![
            p.name.clone(),
            p.state.clone(),
            space(p.size_bytes),
            space(p.free_bytes),
            p.connections.to_string(),
            p.inside.to_string(),
            oldest,
            p.device_uuid.as_ref().map_or(p.device.clone(), |uuid| format!("{} ({uuid})", p.device)),
        ]
    };
    let head = ["POOL", "STATE", "SIZE", "FREE", "CLIENTS", "INFLIGHT", "OLDEST", "DEVICE"];
    print!("\n{}", table(&head, &s.pools.iter().map(pool).collect::<Vec<_>>()));
    for p in &s.pools {
        println!("\n{}", p.name);
        if p.promises.reads.last_minute.all() > 0 {
            println!(
                "  {:<10} {} kept/missed/waited/refused of the reads with a deadline in the last minute",
                "promises",
                shares(&p.promises.reads.last_minute)
            );
        }
        forecast(&p.promises.forecast).iter().for_each(|text| println!("  {:<10} {text}", "forecast"));
        for part in &p.parts {
            println!("  {:<10} {}", part.name, part.headline);
            part.problem.iter().for_each(|problem| println!("  {:<10} ! {problem}", ""));
        }
    }
    if let Some(h) = &s.node.host_pauses {
        println!("host: {} pauses of 250 us and more, {} all together", h.count, crate::table::micros(h.total_us));
    }
    let volume = |v: &api::VolumeStatus| {
        let busy = v.traffic.busy_refused + v.traffic.busy_revoked;
        vec![
            v.name.clone(),
            bytes(v.size_bytes),
            volume_state(v),
            v.tenant.clone(),
            v.traffic.done.to_string(),
            busy.to_string(),
            v.traffic.failed.to_string(),
            deadline(v.promise.as_ref()),
            shares(&v.traffic.promised.last_minute),
        ]
    };
    let head =
        ["VOLUME", "SIZE", "STATE", "TENANT", "DONE", "BUSY", "FAILED", "DEADLINE", "READS KEPT/MISSED/WAITED/REFUSED"];
    print!("\n{}", table(&head, &volumes(&s.volumes).into_iter().map(volume).collect::<Vec<_>>()));
    let tenant = |t: &api::TenantStatus| {
        let how = if t.enforced { "enforced" } else { "measured only" };
        let reads = shares(&t.traffic.promised.last_minute);
        vec![t.name.clone(), t.class.clone(), promise(t), kept(t), how.into(), reads]
    };
    let head = ["TENANT", "CLASS", "PROMISE", "KEPT", "HOW", "READS KEPT/MISSED/WAITED/REFUSED"];
    print!("\n{}", table(&head, &tenants(&s.tenants).into_iter().map(tenant).collect::<Vec<_>>()));
    println!(
        "\nReads with a deadline are of the last minute. `plimsoll tenant show NAME` says what enforces a promise."
    );
}
