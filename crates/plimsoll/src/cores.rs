//! `plimsoll cores …`

use crate::client::{Client, Control};
use crate::part;
use anyhow::Result;
use clap::Args;
use plimsoll_node::parts::cores::Cores as Layer;

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
        let pool = part::pool_with::<Layer>(&client, self.pool)?;
        part::show::<Layer>(&pool, &part::view::<Layer>(&client, &pool)?, &self.control)
    }
}
