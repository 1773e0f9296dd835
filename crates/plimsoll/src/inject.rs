//! `plimsoll inject`: faults in a live volume's requests.

use crate::client::{Client, Control, print_json, segment};
use crate::table::{micros, table};
use anyhow::Result;

use clap::{Args, ValueEnum};
use hyper::Method;
use plimsoll_base::Span;
use plimsoll_node::http::api::{InjectFault, InjectOnly, InjectSpec, InjectStatus, Status};

/// Inject latency, errors, refusals or a stall into a volume's requests, to test clients
///
/// An injected error or refusal comes before anything of the request is done. With latency or a stall the request is carried out, and only its
/// answer is held back; it keeps its tenant's permit meanwhile. Another injection into the same volume replaces the first. A restart of
/// the node ends all of them. While one lasts, the node's health names it as a problem.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  plimsoll inject web --latency 50ms --share 10% --for 30s\n  plimsoll inject web --errors --only reads --share 1%\n  plimsoll inject web --busy 40ms --share 5%\n  plimsoll inject web --stall --for 5s\n  plimsoll inject web --stop\n  plimsoll inject --list"
)]
#[command(group = clap::ArgGroup::new("what").required(true).args(["latency", "errors", "busy", "stall", "stop", "list"]))]
pub struct Inject {
    /// The volume.
    #[arg(required_unless_present = "list", conflicts_with = "list")]
    volume: Option<String>,
    /// Delay answers by TIME, a minute at most
    #[arg(long, value_name = "TIME")]
    latency: Option<Span>,
    /// Fail with an I/O error
    #[arg(long)]
    errors: bool,
    /// Refuse reads that have a deadline and may be refused, with TIME as the predicted wait, a minute at most
    #[arg(long, value_name = "TIME")]
    busy: Option<Span>,
    /// Hold answers until the injection ends
    #[arg(long)]
    stall: bool,
    /// Stop the injection; held answers are sent
    #[arg(long, conflicts_with_all = ["share", "lasts", "only", "seed"])]
    stop: bool,
    /// List active injections
    #[arg(long, conflicts_with_all = ["share", "lasts", "only", "seed"])]
    list: bool,
    /// Share of requests to hit: 0.1% to 100% [default: 100%]
    #[arg(long, value_name = "PERCENT", value_parser = permille)]
    share: Option<u16>,
    /// Duration, an hour at most [default: 30s]
    #[arg(long = "for", value_name = "TIME")]
    lasts: Option<Span>,
    /// Hit only these operations; writes are all changes and flushes [default: all]
    #[arg(long, value_name = "OPERATIONS")]
    only: Option<Operations>,
    /// Seed of the choice of requests [default: 0]
    #[arg(long, value_name = "NUMBER")]
    seed: Option<u64>,
    #[command(flatten)]
    control: Control,
}

#[derive(Clone, Copy, ValueEnum)]
enum Operations {
    Reads,
    Writes,
}

/// A percentage as thousandths.
fn permille(text: &str) -> Result<u16, String> {
    let percent: f64 =
        text.strip_suffix('%').unwrap_or(text).parse().map_err(|_| "a percentage like 10%".to_string())?;
    let permille = (percent * 10.0).round();
    if (1.0..=1000.0).contains(&permille) { Ok(permille as u16) } else { Err("0.1% to 100%".into()) }
}

impl Inject {
    /// Runs the command.
    pub fn run(self) -> Result<()> {
        let client = Client::new(&self.control)?;
        let Some(volume) = &self.volume else {
            let status: Status = client.get("/v1/status")?;
            return show(&status.injections, &self.control);
        };
        let path = format!("/v1/volumes/{}/inject", segment(volume));
        if self.stop {
            return client.order(Method::DELETE, &path);
        }
        let fault = match (self.errors, self.stall, self.busy) {
            (true, ..) => InjectFault::Errors,
            (_, true, _) => InjectFault::Stall,
            (.., Some(_)) => InjectFault::Busy,
            _ => InjectFault::Latency,
        };
        let spec = InjectSpec {
            fault,
            latency_us: self.latency.map(Span::as_micros),
            wait_us: self.busy.map(Span::as_micros),
            share_permille: self.share.unwrap_or(1000),
            only: self.only.map(|only| match only {
                Operations::Reads => InjectOnly::Reads,
                Operations::Writes => InjectOnly::Writes,
            }),
            for_us: self.lasts.unwrap_or(Span::from_secs(30)).as_micros(),
            seed: self.seed.unwrap_or(0),
        };
        let begun: InjectStatus = client.send(Method::PUT, &path, &spec)?;
        show(&[begun], &self.control)
    }
}

fn show(all: &[InjectStatus], control: &Control) -> Result<()> {
    if control.json {
        return print_json(&all);
    }
    let row = |i: &InjectStatus| {
        let fault = match i.fault {
            InjectFault::Errors => "errors".to_string(),
            InjectFault::Busy => format!("busy {}", micros(i.wait_us.unwrap_or(0))),
            InjectFault::Latency => format!("latency {}", micros(i.latency_us.unwrap_or(0))),
            InjectFault::Stall => "stall".to_string(),
        };
        let only = match (i.fault, i.only) {
            (InjectFault::Busy, _) | (_, Some(InjectOnly::Reads)) => "reads",
            (_, None) => "all",
            (_, Some(InjectOnly::Writes)) => "writes",
        };
        let share = format!("{} %", f64::from(i.share_permille) / 10.0);
        let counts = [i.seen, i.hit, i.held].map(|n| n.to_string());
        let [seen, hit, held] = counts;
        vec![i.volume.clone(), fault, share, only.into(), micros(i.left_us), seen, hit, held]
    };
    let head = ["VOLUME", "FAULT", "SHARE", "OF", "LEFT", "SEEN", "HIT", "HELD"];
    print!("{}", table(&head, &all.iter().map(row).collect::<Vec<_>>()));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_percentages() {
        for (text, wanted) in [("10%", 100), ("0.1%", 1), ("100", 1000), ("33.3%", 333)] {
            assert_eq!(permille(text), Ok(wanted), "{text}");
        }
        for bad in ["", "%", "0%", "0.01%", "101%", "-5%", "NaN", "ten"] {
            assert!(permille(bad).is_err(), "{bad}");
        }
    }
}
