//! `plimsoll cores …`

use crate::client::{Client, Control, print_json, segment};
use crate::table::{micros, table};
use anyhow::{Result, bail};
use clap::Args;
use plimsoll_node::http::api::Status;
use plimsoll_node::http::cores::{CoreQueueView, CoresView};

/// Show who has a pool's cores, and whether they suffice.
#[derive(Args)]
#[command(after_help = "Example:\n  plimsoll cores main\n  plimsoll cores main --json")]
pub struct Cores {
    /// The pool; may be left out if only one has cores.
    pool: Option<String>,
    #[command(flatten)]
    control: Control,
}

impl Cores {
    /// Runs the command.
    pub fn run(self) -> Result<()> {
        let client = Client::new(&self.control)?;
        let pool = match self.pool {
            Some(name) => name,
            None => only_one(&client)?,
        };
        let view: CoresView = client.get(&format!("/v1/pools/{}/cores", segment(&pool)))?;
        if self.control.json {
            return print_json(&view);
        }
        show(&pool, &view);
        Ok(())
    }
}

fn only_one(client: &Client) -> Result<String> {
    let status: Status = client.get("/v1/status")?;
    let with_cores = status.pools.iter().filter(|p| p.layers.iter().any(|l| l.name == "cores"));
    match with_cores.map(|p| p.name.clone()).collect::<Vec<_>>().as_slice() {
        [] => bail!("no pool has cores: say `cores = N` in its section of the configuration"),
        [one] => Ok(one.clone()),
        several => bail!("several pools have cores: name one of {}", several.join(", ")),
    }
}

fn show(pool: &str, v: &CoresView) {
    let depth = if v.depth == 1 { String::new() } else { format!(" of depth {}", v.depth) };
    let bounded = v.best_effort_write_bytes_per_s.map_or(String::new(), |rate| {
        format!(" and may write {:.1} MB/s (cut {} times)", rate as f64 / 1e6, v.best_effort_write_cuts)
    });
    println!(
        "pool {pool}: {} cores{depth} by {}, {} busy, best effort has {}{bounded}",
        v.cores, v.policy, v.busy, v.best_effort_cores
    );
    let row = |q: &CoreQueueView| {
        let own = |text: String| if q.core_policy.is_some() { text } else { "-".into() };
        vec![
            q.tenants.join(","),
            own(format!("{} (at most {})", q.cores, q.cores_max)),
            q.waiting.to_string(),
            q.in_service.to_string(),
            q.core_policy.clone().unwrap_or("-".into()),
            own(format!("{} ({} late)", q.windows, q.late_windows)),
            format!("{} / {}", micros(q.service_mean_us), micros(q.service_tail_us)),
            own(micros(q.predicted_tail_us)),
            own(format!(
                "{}{}",
                micros(q.measured_tail_us),
                if q.hopeless { ", the device alone misses it" } else { "" }
            )),
        ]
    };
    let head = ["TENANTS", "CORES", "WAIT", "SERVED", "POLICY", "WINDOWS", "SERVICE/TAIL", "PREDICTED", "MEASURED"];
    print!("{}", table(&head, &v.queues.iter().map(row).collect::<Vec<_>>()));
}
