//! `[[nvme_host]]`: the secret by which an NVMe/TCP host proves its identity.

use super::BadConfig;
use plimsoll_nvme::opening::is_nqn;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use toml::Spanned;

/// `[[nvme_host]]`
#[derive(Clone, PartialEq, Eq, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct NvmeHostConfig {
    /// Its NQN. A host of this name is served only once it has proved that it has the secret, from any address; grants for
    /// `host:NQN` then hold from any address.
    pub nqn: Spanned<String>,
    /// A file with its secret, as `nvme gen-dhchap-key` prints it: `DHHC-1:…`. Mode 0600.
    pub secret_file: PathBuf,
    /// A file with the secret by which subsystems prove themselves to this host, if it asks. Without one, a host that asks is
    /// refused.
    pub subsystem_secret_file: Option<PathBuf>,
}

impl NvmeHostConfig {
    /// Checks that it is possible.
    pub(super) fn check(&self) -> Result<(), BadConfig> {
        let nqn = self.nqn.get_ref();
        if is_nqn(nqn) {
            return Ok(());
        }
        let what = "an NQN is a text such as nqn.2014-08.org.nvmexpress:uuid:…, of at most 223 bytes";
        Err(BadConfig::new(what).about(format!("nvme_host `{nqn}`")).at(self.nqn.span().start))
    }

    pub(super) fn make_absolute(&mut self, base: &Path) {
        self.secret_file = base.join(&self.secret_file);
        if let Some(file) = &mut self.subsystem_secret_file {
            *file = base.join(&*file);
        }
    }
}
