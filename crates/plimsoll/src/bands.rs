//! `plimsoll bands …`

use crate::client::{Client, Control};
use crate::part;
use anyhow::Result;
use clap::{Args, Subcommand};
use plimsoll_node::parts::bands::Bands as Layer;

/// Show the bands of a pool's shingled drive.
#[derive(Args)]
#[command(after_help = "Example:\n  plimsoll bands status main")]
pub struct Bands {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Show bands, their copies, and changes that wait for these
    #[command(visible_alias = "show", after_help = "Example:\n  plimsoll bands status main --json")]
    Status {
        /// Pool [default: the only one with bands].
        pool: Option<String>,
        #[command(flatten)]
        control: Control,
    },
}

impl Bands {
    /// Runs the command.
    pub fn run(self) -> Result<()> {
        let Command::Status { pool, control } = self.command;
        let client = Client::new(&control)?;
        let name = part::pool_with::<Layer>(&client, pool)?;
        let view = part::view::<Layer>(&client, &name)?;
        part::show::<Layer>(&name, &view, &control)
    }
}
