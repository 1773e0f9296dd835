//! `plimsoll tenant …`

use crate::client::{Client, Control, print_json, segment};
use crate::table::{micros, table};
use anyhow::Result;
use clap::{Args, Subcommand, ValueEnum};
use hyper::Method;
use plimsoll_base::Span;
use plimsoll_node::config::ByteSize;
use plimsoll_node::http::api::{ObjectiveSpec, TenantSpec, TenantStatus};

/// List, set, remove tenants.
#[derive(Args)]
#[command(
    after_help = "Example:\n  plimsoll tenant set web --class latency-critical --objective 99.9=20ms --control control.sock"
)]
pub struct Tenant {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// List all, with what they were promised and whether it's kept
    #[command(after_help = "Example:\n  plimsoll tenant list")]
    List(#[command(flatten)] Control),
    /// Declare one, or change its promise; kept over a restart
    #[command(
        after_help = "What isn't said is the default, not what was before.\n\nExamples:\n  plimsoll tenant set web --class latency-critical --objective 99=5ms --objective 99.9=20ms --control control.sock\n  plimsoll tenant set reports --class best-effort --weight 50 --jobs-max 64 --control control.sock"
    )]
    Set(Set),
    /// Take one away that owns no volume; one that the configuration declares is back at the next start
    #[command(after_help = "Example:\n  plimsoll tenant remove reports --control control.sock")]
    Remove {
        /// Its name.
        name: String,
        #[command(flatten)]
        control: Control,
    },
}

#[derive(Args)]
struct Set {
    /// Its name.
    name: String,
    /// What kind of promise it has.
    #[arg(long)]
    class: Class,
    /// For latency-critical: PERCENTILE=TIME; may be repeated.
    #[arg(long = "objective", value_name = "PERCENTILE=TIME", value_parser = parse_objective)]
    objectives: Vec<ObjectiveSpec>,
    /// Its share relative to others, 1 to 10000 (if not said, 100; 1000 of a latency-critical one, where cores are too few).
    #[arg(long)]
    weight: Option<u32>,
    /// For fenced: how many slots (1 if not said).
    #[arg(long)]
    slots: Option<u32>,
    /// Requests inside a pool at once.
    #[arg(long)]
    jobs_max: Option<u32>,
    /// Bytes inside a pool at once.
    #[arg(long)]
    bytes_max: Option<ByteSize>,
    #[command(flatten)]
    control: Control,
}

#[derive(Clone, Copy, ValueEnum)]
enum Class {
    LatencyCritical,
    BestEffort,
    Fenced,
}

impl Class {
    fn name(self) -> &'static str {
        match self {
            Class::LatencyCritical => "latency-critical",
            Class::BestEffort => "best-effort",
            Class::Fenced => "fenced",
        }
    }
}

fn parse_objective(text: &str) -> Result<ObjectiveSpec, String> {
    let wanted = || format!("`{text}` is not an objective: write PERCENTILE=TIME, such as 99.9=20ms");
    let (percentile, within) = text.split_once('=').ok_or_else(wanted)?;
    let within: Span = within.parse().map_err(|_| wanted())?;
    let percentile = percentile.trim_start_matches('p').parse().map_err(|_| wanted())?;
    Ok(ObjectiveSpec { percentile, within_us: within.as_micros() })
}

impl Tenant {
    /// Runs the command.
    pub fn run(self) -> Result<()> {
        match self.command {
            Command::List(control) => {
                let all: Vec<TenantStatus> = Client::new(&control)?.get("/v1/tenants")?;
                show(&all, &control)
            }
            Command::Set(set) => set.run(),
            Command::Remove { name, control } => Client::new(&control)?.order(Method::DELETE, &path(&name)),
        }
    }
}

impl Set {
    fn run(self) -> Result<()> {
        let spec = TenantSpec {
            class: self.class.name().to_string(),
            objectives: self.objectives,
            weight: self.weight,
            slots: self.slots,
            jobs_max: self.jobs_max,
            bytes_max: self.bytes_max.map(|b| b.0),
        };
        let now: TenantStatus = Client::new(&self.control)?.send(Method::PUT, &path(&self.name), &spec)?;
        if self.control.json { print_json(&now) } else { show(&[now], &self.control) }
    }
}

fn path(name: &str) -> String {
    format!("/v1/tenants/{}", segment(name))
}

fn show(all: &[TenantStatus], control: &Control) -> Result<()> {
    if control.json {
        return print_json(&all);
    }
    let row = |t: &TenantStatus| {
        let jobs = format!("{}/{}", t.permits.jobs, t.permits.jobs_max);
        let enforced = if t.enforced { "enforced" } else { "measured only" };
        vec![t.name.clone(), t.class.clone(), promise(t), kept(t), enforced.into(), jobs, t.volumes.join(",")]
    };
    let head = ["NAME", "CLASS", "PROMISE", "KEPT", "HOW", "INSIDE", "VOLUMES"];
    print!("{}", table(&head, &all.iter().map(row).collect::<Vec<_>>()));
    Ok(())
}

/// What a tenant was promised, in short.
pub fn promise(t: &TenantStatus) -> String {
    let objective = |o: &plimsoll_node::http::api::ObjectiveStatus| {
        let seen = o.measured_us.map_or("no requests yet".to_string(), |us| format!("is {}", micros(us)));
        format!("p{} ≤ {} ({seen})", o.percentile, micros(o.within_us))
    };
    match (t.weight, t.slots) {
        (_, Some(slots)) => format!("{slots} slots"),
        (Some(weight), _) if t.objectives.is_empty() => format!("weight {weight}"),
        _ => t.objectives.iter().map(objective).collect::<Vec<_>>().join(", "),
    }
}

/// Whether it's kept, in a word.
pub fn kept(t: &TenantStatus) -> String {
    match t.kept {
        Some(true) => "kept",
        Some(false) => "BROKEN",
        None => "-",
    }
    .to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objectives_on_the_command_line() {
        let o = parse_objective("99.9=20ms").unwrap();
        assert_eq!((o.percentile, o.within_us), (99.9, 20_000));
        assert_eq!(parse_objective("p99=1.5s").unwrap().within_us, 1_500_000);
        for bad in ["99.9", "=20ms", "99.9=20", "x=1ms"] {
            assert!(parse_objective(bad).is_err(), "{bad}");
        }
    }
}
