//! `plimsoll logs …`

use crate::client::{Client, Control, print_json, segment};
use crate::table::{bytes, micros};
use anyhow::{Result, bail};
use clap::{Args, Subcommand};
use hyper::Method;
use indicatif::{ProgressBar, ProgressStyle};
use plimsoll_node::http::api::{LogsView, Status};
use std::io::IsTerminal;
use std::time::Duration;

/// Show a pool's scattered logs, bring home what is in them.
#[derive(Args)]
#[command(after_help = "Example:\n  plimsoll logs status main")]
pub struct Logs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// How full the logs are, as a picture of the disk; swaps, checkpoints, the MTL table
    #[command(after_help = "Example:\n  plimsoll logs status main --json")]
    Status {
        /// The pool; may be left out if only one has logs.
        pool: Option<String>,
        #[command(flatten)]
        control: Control,
    },
    /// Bring home what is logged, and wait until it's there
    #[command(after_help = "Example:\n  plimsoll logs checkpoint main --control control.sock")]
    Checkpoint {
        /// The pool; may be left out if only one has logs.
        pool: Option<String>,
        /// Only begin, don't wait.
        #[arg(long)]
        no_wait: bool,
        #[command(flatten)]
        control: Control,
    },
}

impl Logs {
    /// Runs the command.
    pub fn run(self) -> Result<()> {
        match self.command {
            Command::Status { pool, control } => {
                let client = Client::new(&control)?;
                let (name, view) = find(&client, pool)?;
                if control.json {
                    return print_json(&view);
                }
                show(&name, &view);
                Ok(())
            }
            Command::Checkpoint { pool, no_wait, control } => {
                let client = Client::new(&control)?;
                let (name, before) = find(&client, pool)?;
                client.order(Method::POST, &format!("{}/checkpoint", path(&name)))?;
                if no_wait {
                    return Ok(());
                }
                let view = wait(&client, &name, before.valid_bytes)?;
                if control.json {
                    return print_json(&view);
                }
                let took = view.last_cleaning_us.map_or("-".into(), micros);
                println!("pool {name}: {} brought home in {took}", bytes(view.cleaned_bytes - before.cleaned_bytes));
                Ok(())
            }
        }
    }
}

fn path(pool: &str) -> String {
    format!("/v1/pools/{}/logs", segment(pool))
}

/// The pool meant, and its logs.
fn find(client: &Client, named: Option<String>) -> Result<(String, LogsView)> {
    if let Some(name) = named {
        let view = client.get(&path(&name))?;
        return Ok((name, view));
    }
    let status: Status = client.get("/v1/status")?;
    let with_logs = status.pools.iter().filter(|p| p.layers.iter().any(|l| l.name == "logs"));
    match with_logs.map(|p| p.name.clone()).collect::<Vec<_>>().as_slice() {
        [] => bail!("no pool has logs: they are made with a pool's device, see [pool.logs] in the configuration"),
        [one] => Ok((one.clone(), client.get(&path(one))?)),
        several => bail!("several pools have logs: name one of {}", several.join(", ")),
    }
}

/// Until the checkpoint that was asked for has ended.
fn wait(client: &Client, name: &str, bytes_before: u64) -> Result<LogsView> {
    let bar = if std::io::stderr().is_terminal() { ProgressBar::new(bytes_before) } else { ProgressBar::hidden() };
    bar.set_style(ProgressStyle::with_template("{wide_bar} {bytes}/{total_bytes} {eta}").expect("a constant template"));
    loop {
        let view: LogsView = client.get(&path(name))?;
        if view.cleaning.is_none() {
            bar.finish_and_clear();
            return Ok(view);
        }
        bar.set_position(bytes_before.saturating_sub(view.cleaning_left_bytes));
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Cells of a line of the picture.
const COLUMNS: usize = 64;
const LINES_MAX: usize = 16;

/// The disk from its beginning on: each cell the fullest of its logs.
fn picture(occupancy: &[u8]) -> String {
    let per_cell = occupancy.len().div_ceil(COLUMNS * LINES_MAX).max(1);
    let cell = |logs: &[u8]| match logs.iter().copied().filter(|p| *p <= 100).max() {
        _ if logs.contains(&255) => 'x',
        None | Some(0) => '·',
        Some(p) => ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'][usize::from(p.min(99)) * 8 / 100],
    };
    let cells: Vec<char> = occupancy.chunks(per_cell).map(cell).collect();
    cells.chunks(COLUMNS).map(|line| format!("  {}\n", line.iter().collect::<String>())).collect()
}

fn show(name: &str, v: &LogsView) {
    println!("pool {name}: {} logs of {}, one in every {}", v.logs, bytes(v.log_bytes), bytes(v.group_bytes));
    if let Some(problem) = &v.problem {
        println!("  problem     {problem}");
    }
    let why = match (v.switched_off, v.logged_write_bytes < v.logged_write_bytes_configured) {
        (true, _) => " (off: the load writes more than logs help with)",
        (false, true) => " (lowered: the logs fill too fast)",
        _ => "",
    };
    println!("  logged      writes up to {}{why}", bytes(v.logged_write_bytes));
    print!("{}", picture(&v.occupancy_percent));
    println!("  · empty   ▁ to █ fuller   x retired ({})", v.logs_retired);
    println!("  in logs     {} in {} extents of at most {}", bytes(v.valid_bytes), v.extents, v.extents_max);
    println!("  MTL table   {}, written {} times", bytes(v.mtl_bytes), v.images);
    println!(
        "  writes      {} logged ({}) in {} records, {} found no room",
        v.logged,
        bytes(v.logged_bytes),
        v.records,
        v.spilled
    );
    println!("  reads       {} found something in a log", v.reads_from_logs);
    if v.reads_corrupt + v.reads_lost + v.lost_bytes + v.table_errors > 0 {
        println!(
            "  damage      {} reads found corrupt data, {} found data that are lost; {} lost; {} writes of tables failed",
            v.reads_corrupt,
            v.reads_lost,
            bytes(v.lost_bytes),
            v.table_errors
        );
    }
    println!("  swaps       {}", v.swaps);
    match &v.cleaning {
        None => println!("  checkpoints {}, {} moved", v.checkpoints, bytes(v.cleaned_bytes)),
        Some(why) => {
            let left = v.cleaning_left_us.map_or(String::new(), |us| format!(", about {} more", micros(us)));
            println!("  checkpoints {}; one ({why}) has {} to go{left}", v.checkpoints, bytes(v.cleaning_left_bytes));
        }
    }
    println!(
        "  recovery    {}, {} logs looked at, {} records",
        micros(v.recovery_us),
        v.recovery_logs,
        v.recovery_records
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_picture_shows_the_fullest_log_of_each_cell() {
        assert_eq!(picture(&[0, 1, 50, 100, 255]), "  ·▁▅█x\n");
        let many: Vec<u8> = (0..2048).map(|i| if i == 1 { 100 } else { 0 }).collect();
        let drawn = picture(&many);
        assert_eq!((drawn.lines().count(), drawn.chars().nth(2)), (16, Some('█')));
    }
}
