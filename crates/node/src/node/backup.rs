//! Backups of pools' metadata. They are restored without a node: `plimsoll pool restore`.

use super::error::failed;
use super::{Node, NodeError, Result};
use plimsoll_store::Backup;

impl Node {
    /// A backup of a pool's metadata as of its newest durable change.
    ///
    /// # Errors
    /// If there is no such pool, or it keeps no metadata.
    pub async fn backup(&self, name: &str) -> Result<String> {
        let pool = self.pool_named(name)?;
        let none = || NodeError::Refused(format!("pool `{name}` is on a null device: it keeps no metadata"));
        let backup: Backup = self.pools.get(pool).backup().ok_or_else(none)?;
        // A map of 65,536 volumes is some dozens of MiB of text.
        tokio::task::spawn_blocking(move || backup.text()).await.map_err(failed)
    }
}
