//! `plimsoll cores …`

use crate::client::{Client, Control};
use crate::part;
use anyhow::Result;
use clap::Args;
use plimsoll_node::parts::cores::Cores as Layer;

/// Show how a pool's cores are shared, and whether they suffice.
#[derive(Args)]
#[command(after_help = "Example:\n  plimsoll cores main\n  plimsoll cores main --json")]
pub struct Cores {
    /// Pool [default: the only one with cores].
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
