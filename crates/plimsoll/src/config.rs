//! `plimsoll config …`

use crate::client::{Client, Control, print_json};
use crate::output;
use crate::table::table;
use anyhow::Result;
use clap::{Args, Subcommand};
use plimsoll_node::http::api::{ConfigStatus, DriftStatus};
use std::path::PathBuf;

/// Export the configuration as it is served, show its drift from the file.
#[derive(Args)]
#[command(
    after_help = "Over TCP both take the token.\n\nExamples:\n  plimsoll config diff\n  plimsoll config export --out served.toml"
)]
pub struct Config {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Write the configuration as it is served: the file, with what was changed live
    #[command(
        after_help = "A file that exists isn't overwritten.\n\nExamples:\n  plimsoll config export\n  plimsoll config export --out served.toml"
    )]
    Export {
        /// File to write; `-` is stdout.
        #[arg(long, value_name = "FILE", default_value = "-")]
        out: PathBuf,
        #[command(flatten)]
        control: Control,
    },
    /// Show what is served otherwise than the file has it
    #[command(after_help = "WHY is `live` for a live change; `unread` for a change of the file that needs a reload \
        or a restart.\n\nExample:\n  plimsoll config diff --json")]
    Diff(#[command(flatten)] Control),
}

impl Config {
    /// Runs the command.
    pub fn run(self) -> Result<()> {
        let (Command::Export { control, .. } | Command::Diff(control)) = &self.command;
        let shown: ConfigStatus = Client::new(control)?.get("/v1/config")?;
        if control.json {
            return print_json(&shown);
        }
        if let Some(fault) = &shown.fault {
            eprintln!("plimsoll: {fault}: compared with what was last read");
        }
        match &self.command {
            Command::Export { out, .. } => output::write_new(out, &shown.toml),
            Command::Diff(_) => {
                diff(&shown);
                Ok(())
            }
        }
    }
}

fn diff(shown: &ConfigStatus) {
    if shown.drift.is_empty() {
        println!("{}: served as written", shown.file);
        return;
    }
    let cell = |value: &Option<String>| value.clone().unwrap_or("-".into());
    let row = |d: &DriftStatus| vec![d.section.clone(), d.key.clone(), cell(&d.file), cell(&d.served), d.why.clone()];
    print!("{}", table(&["SECTION", "KEY", "FILE", "SERVED", "WHY"], &shown.drift.iter().map(row).collect::<Vec<_>>()));
}
