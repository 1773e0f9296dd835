//! `plimsoll shape drive`

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use plimsoll_shape::drive::workload::{Kind, Outcome, Target};
use plimsoll_shape::walk::Protocol;
use std::time::Duration;

/// Put a load on a server: figures are no tpmC and no YCSB result, as scale and rules differ.
#[derive(Args)]
#[command(
    after_help = "Example:\n  plimsoll shape drive tpcc-like --port 3306 --account bench --database t --clients 64 --prepare"
)]
pub struct Drive {
    /// Load to generate.
    load: Load,
    /// Protocol of the server.
    #[arg(long, value_enum, default_value_t = Speaks::Mysql)]
    speaks: Speaks,
    /// The server's port on this host.
    #[arg(long)]
    port: u16,
    /// An account that needs no password.
    #[arg(long, default_value = "root")]
    account: String,
    /// Database.
    #[arg(long, default_value = "test")]
    database: String,
    /// Clients in a closed loop.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    clients: u32,
    /// Not counted at the beginning.
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    warm: u64,
    /// For so long.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..))]
    seconds: u64,
    /// Warehouses (TPC-C-like) or thousands of rows (YCSB-like).
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=1000))]
    scale: u32,
    /// Make the tables first.
    #[arg(long)]
    prepare: bool,
    /// Seed of the clients' choices.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print as JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum Load {
    TpccLike,
    YcsbLike,
    HotRows,
}

#[derive(Clone, Copy, ValueEnum)]
enum Speaks {
    Mysql,
    Postgres,
}

impl Drive {
    /// Runs the command.
    pub fn run(self) -> Result<()> {
        let kind = match self.load {
            Load::TpccLike => Kind::TpccLike { warehouses: self.scale },
            Load::YcsbLike => Kind::YcsbLike { rows: self.scale * 1000 },
            Load::HotRows => Kind::HotRows,
        };
        let protocol = match self.speaks {
            Speaks::Mysql => Protocol::Mysql,
            Speaks::Postgres => Protocol::Postgres,
        };
        let target =
            Target { protocol, port: self.port, account: self.account.clone(), database: self.database.clone() };
        if self.prepare {
            target.prepare(kind).context("cannot make the tables")?;
        }
        let o = target.run(
            kind,
            self.clients,
            Duration::from_secs(self.warm),
            Duration::from_secs(self.seconds),
            self.seed,
        )?;
        if self.json {
            println!("{}", serde_json::to_string_pretty(&json(&o))?);
            return done_some(&o);
        }
        let ms = |q| o.times.quantile(q).as_millis_f64();
        println!(
            "{:.0} transactions/s, {} errors; p50 {:.2} ms, p99 {:.2} ms, p99.9 {:.2} ms; unfairness between clients {:.1} %",
            o.rate(),
            o.errors,
            ms(500),
            ms(990),
            ms(999),
            o.unfairness_percent()
        );
        for (kind, n) in &o.errors_by_kind {
            println!("{n} x {kind}");
        }
        done_some(&o)
    }
}

/// Fails if no transaction succeeded: a script must not take that for a measurement.
fn done_some(o: &Outcome) -> Result<()> {
    if o.done == 0 {
        bail!(
            "no transaction succeeded, {} failed: are the account and its grants right, and its tables there (--prepare makes them)?",
            o.errors
        );
    }
    Ok(())
}

fn json(o: &Outcome) -> serde_json::Value {
    serde_json::json!({
        "rate": o.rate(), "done": o.done, "errors": o.errors, "errors_by_kind": o.errors_by_kind, "p50_us": o.times.quantile(500).as_micros(),
        "p99_us": o.times.quantile(990).as_micros(), "p999_us": o.times.quantile(999).as_micros(),
        "unfairness_percent": o.unfairness_percent(),
    })
}
