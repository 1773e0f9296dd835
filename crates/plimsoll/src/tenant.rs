//! `plimsoll tenant …`

use crate::client::{Client, Control, print_json, segment};
use crate::deadline::{Deadline, deadline};
use crate::promise::{self, kept, promise, shares};
use crate::table::table;
use anyhow::{Result, bail};
use clap::{Args, Subcommand, ValueEnum};
use hyper::Method;
use plimsoll_base::{OnBusy, Span};
use plimsoll_node::config::ByteSize;
use plimsoll_node::http::api::{ObjectiveSpec, TenantChange, TenantSpec, TenantStatus};

/// List, show, set, remove tenants.
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
    /// List tenants, their promises, and whether they are kept
    #[command(after_help = "Example:\n  plimsoll tenant list")]
    List(#[command(flatten)] Control),
    /// Show a tenant: promises, and shares kept in the last minute, hour and day
    #[command(after_help = "Example:\n  plimsoll tenant show web")]
    Show {
        /// Name.
        name: String,
        #[command(flatten)]
        control: Control,
    },
    /// Create a tenant, or change its promise; persists over restarts
    #[command(
        after_help = "Settings of an existing tenant that aren't named stay as they are.\n\nExamples:\n  plimsoll tenant set web --deadline 20ms\n  plimsoll tenant set web --busy error\n  plimsoll tenant set web --deadline none\n  plimsoll tenant set web --class latency-critical --objective 99=5ms --objective 99.9=20ms --control control.sock\n  plimsoll tenant set reports --class best-effort --weight 50 --jobs-max 64 --control control.sock"
    )]
    Set(Set),
    /// Remove a tenant that owns no volume
    #[command(
        after_help = "A tenant of the configuration file returns at the next start.\n\nExample:\n  plimsoll tenant remove reports --control control.sock"
    )]
    Remove {
        /// Name.
        name: String,
        #[command(flatten)]
        control: Control,
    },
}

#[derive(Args)]
struct Set {
    /// Name.
    name: String,
    /// Kind of its promise; needed for a new tenant.
    #[arg(long)]
    class: Option<Class>,
    /// For latency-critical: PERCENTILE=TIME; may be repeated.
    #[arg(long = "objective", value_name = "PERCENTILE=TIME", value_parser = parse_objective)]
    objectives: Vec<ObjectiveSpec>,
    /// Its share relative to others, 1 to 10000 [default: 100; 1000 of a latency-critical one].
    #[arg(long)]
    weight: Option<u32>,
    /// For fenced: number of slots [default: 1].
    #[arg(long)]
    slots: Option<u32>,
    /// Limit of requests in flight in a pool.
    #[arg(long)]
    jobs_max: Option<u32>,
    /// Limit of bytes in flight in a pool.
    #[arg(long)]
    bytes_max: Option<ByteSize>,
    /// Deadline of reads on volumes without their own; `none` removes it.
    #[arg(long, value_name = "TIME|none", value_parser = deadline)]
    deadline: Option<Deadline>,
    /// Answer to a read that would miss it: wait (it is served late) or error (it fails at once) [default for a new tenant: wait].
    #[arg(long, value_name = "ANSWER")]
    busy: Option<OnBusy>,
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
            Command::Show { name, control } => {
                let t: TenantStatus = Client::new(&control)?.get(&path(&name))?;
                if control.json { print_json(&t) } else { show_one(&t) }
            }
            Command::Set(set) => set.run(),
            Command::Remove { name, control } => Client::new(&control)?.order(Method::DELETE, &path(&name)),
        }
    }
}

impl Set {
    fn run(self) -> Result<()> {
        let client = Client::new(&self.control)?;
        let all: Vec<TenantStatus> = client.get("/v1/tenants")?;
        let (path, class) = (path(&self.name), self.class.map(|c| c.name().to_string()));
        let bytes_max = self.bytes_max.map(|b| b.0);
        let deadline_us = self.deadline.map(|d| d.micros());
        let (objectives, weight, slots, jobs_max) = (self.objectives, self.weight, self.slots, self.jobs_max);
        let busy = self.busy;
        let now: TenantStatus = if all.iter().any(|t| t.name == self.name) {
            let objectives = (!objectives.is_empty()).then_some(objectives);
            let wanted = TenantChange { class, objectives, weight, slots, jobs_max, bytes_max, deadline_us, busy };
            client.send(Method::PATCH, &path, &wanted)?
        } else {
            let Some(class) = class else {
                bail!("there is no tenant `{}`: say its --class to declare it", self.name);
            };
            let spec = TenantSpec { class, objectives, weight, slots, jobs_max, bytes_max, deadline_us, busy };
            client.send(Method::PUT, &path, &spec)?
        };
        if self.control.json {
            return print_json(&now);
        }
        let enforced = enforced(&now);
        let has_objectives = !now.objectives.is_empty();
        show(&[now], &self.control)?;
        if has_objectives {
            println!("{enforced}");
        }
        Ok(())
    }
}

fn show_one(t: &TenantStatus) -> Result<()> {
    println!("tenant {}: {}, {}", t.name, t.class, promise(t));
    promise::print(&promise::of_tenant(t));
    println!("{}", enforced(t));
    println!("  volumes   {}", t.volumes.join(", "));
    println!("  in flight {} of {} requests", t.permits.jobs, t.permits.jobs_max);
    Ok(())
}

fn enforced(t: &TenantStatus) -> String {
    format!("  enforced  {}: {}", if t.enforced { "yes" } else { "no" }, t.enforcement)
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
        let reads = shares(&t.traffic.promised.last_minute);
        vec![t.name.clone(), t.class.clone(), promise(t), kept(t), enforced.into(), reads, jobs, t.volumes.join(",")]
    };
    let head = ["NAME", "CLASS", "PROMISE", "KEPT", "HOW", "READS KEPT/MISSED/WAITED/REFUSED", "INFLIGHT", "VOLUMES"];
    print!("{}", table(&head, &promise::tenants(all).into_iter().map(row).collect::<Vec<_>>()));
    Ok(())
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
