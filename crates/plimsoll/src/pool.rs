//! `plimsoll pool …`

use crate::client::{Client, Control, segment};
use anyhow::Result;
use clap::{Args, Subcommand};
use hyper::Method;

/// Bring a pool back after a failed flush.
#[derive(Args)]
#[command(after_help = "Example:\n  plimsoll pool recover main --control control.sock")]
pub struct Pool {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Believe flushes again, after you have looked at the device and at what was lost
    #[command(after_help = "Example:\n  plimsoll pool recover main --control control.sock")]
    Recover {
        /// Its name.
        name: String,
        #[command(flatten)]
        control: Control,
    },
}

impl Pool {
    /// Runs the command.
    pub fn run(self) -> Result<()> {
        let Command::Recover { name, control } = self.command;
        Client::new(&control)?.order(Method::POST, &format!("/v1/pools/{}/recover", segment(&name)))
    }
}
