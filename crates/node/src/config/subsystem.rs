//! `[[subsystem]]`: a volume and its promise under a name for NVMe/TCP hosts.

use super::{BadConfig, Config, VolumeConfig};
use crate::directory::{check_export, is_read_of_replica};
use plimsoll_nvme::opening::is_nqn;
use plimsoll_nvme::wire::DISCOVERY_NQN;
use serde::{Deserialize, Serialize};
use toml::Spanned;

/// Nodes that may serve one subsystem.
pub const PATHS_MAX: u16 = 16;
/// I/O queues of a controller that may be configured.
const QUEUES_MAX: u16 = 64;

/// `[[subsystem]]`
#[derive(Clone, PartialEq, Eq, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct SubsystemConfig {
    /// Its NQN. The identifier of its namespace is derived from it, with `path` also from the number of changes of the copy: hosts join paths
    /// to copies with the same number only. On an RBD image it is derived from the volume's name instead.
    pub nqn: Spanned<String>,
    /// Its volume and promise, as in an NBD export's name: `archive?deadline=20ms&busy=error`.
    pub export: Spanned<String>,
    /// This node's number among several with the same data under the same NQN, from 1. For read-only volumes, with `replica=read` in `export`;
    /// and for volumes on an RBD image, without it, where the gateways of the image are the nodes.
    pub path: Option<Spanned<u16>>,
    /// Most I/O queues of a host.
    #[serde(default = "default_queues")]
    pub queues: u16,
}

fn default_queues() -> u16 {
    8
}

impl SubsystemConfig {
    /// Checks that it is possible, in this configuration.
    pub(super) fn check(&self, config: &Config) -> Result<(), BadConfig> {
        let nqn = self.nqn.get_ref();
        let wrong = |at: std::ops::Range<usize>, e: BadConfig| e.about(format!("subsystem `{nqn}`")).at(at.start);
        let named = |at: std::ops::Range<usize>, what: String| wrong(at, BadConfig::new(what));
        if !is_nqn(nqn) || nqn == DISCOVERY_NQN {
            let what = "an NQN is a text such as nqn.2026-11.org.example:archive, of at most 223 bytes".into();
            return Err(named(self.nqn.span(), what));
        }
        if config.listen.nvme_tcp.is_none() {
            return Err(named(self.nqn.span(), "nobody can connect: set listen.nvme_tcp, too".into()));
        }
        if !(1..=QUEUES_MAX).contains(&self.queues) {
            let what = format!("queues {} is not between 1 and {QUEUES_MAX}", self.queues);
            return Err(named(self.nqn.span(), what));
        }
        let export = self.export.get_ref();
        let volume = check_export(export).map_err(|e| wrong(self.export.span(), e))?;
        let Some(volume) = config.volume.iter().find(|v| v.name.get_ref() == volume) else {
            return Err(named(self.export.span(), format!("there is no [[volume]] `{volume}`")));
        };
        let Some(path) = &self.path else { return Ok(()) };
        if !(1..=PATHS_MAX).contains(path.get_ref()) {
            let what = format!("path {} is not between 1 and {PATHS_MAX}", path.get_ref());
            return Err(named(path.span(), what));
        }
        if self.volume_on_image(config).is_some() {
            return Ok(());
        }
        if !volume.read_only {
            let is_on_image = is_on_image(volume, config);
            let what = match is_on_image {
                true => {
                    "`replica=read` is for a copy that each node has of its own, and `path` then needs a `read_only` volume: take `replica=read` out if the nodes are gateways of the volume's RBD image"
                }
                false => {
                    "several nodes can serve a volume only if none of them writes it, or if its pool is on an RBD image: set its `read_only`, or take `path` out"
                }
            };
            return Err(named(path.span(), what.into()));
        }
        if !is_read_of_replica(export) {
            let what = "several nodes can serve a volume only if one whose copy may lack writes says so: add `replica=read` to its `export`, or take `path` out";
            return Err(named(path.span(), what.into()));
        }
        Ok(())
    }

    /// Its volume, if the volume is on an RBD image and isn't a copy among several. Then gateways of the image may be its paths.
    pub fn volume_on_image<'a>(&self, config: &'a Config) -> Option<&'a VolumeConfig> {
        let export = self.export.get_ref();
        let name = check_export(export).ok().filter(|_| !is_read_of_replica(export))?;
        config.volume.iter().find(|v| v.name.get_ref() == name).filter(|v| is_on_image(v, config))
    }
}

fn is_on_image(volume: &VolumeConfig, config: &Config) -> bool {
    config.pool.iter().any(|p| p.name.get_ref() == volume.pool.get_ref() && p.device.rbd.is_some())
}
