//! Secrets of NVMe/TCP hosts, from their files.

use crate::config::{BadConfig, NvmeHostConfig};
use plimsoll_nvme::auth::Random;
use plimsoll_nvme::auth::secret::Secret;
use ring::rand::{SecureRandom, SystemRandom};
use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

/// Longer than any secret's text.
const FILE_BYTES_MAX: u64 = 1024;

/// The secrets of one host.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HostSecrets {
    /// The host proves itself with it.
    pub host: Secret,
    /// Subsystems prove themselves with it to this host.
    pub subsystem: Option<Secret>,
}

/// Secrets by hosts' NQNs.
pub type AllSecrets = BTreeMap<String, Arc<HostSecrets>>;

/// Reads the secrets of all configured hosts.
///
/// # Errors
/// The first file that can't be used, with the reason. It doesn't show a secret.
pub fn load(hosts: &[NvmeHostConfig]) -> Result<AllSecrets, BadConfig> {
    let of = |h: &NvmeHostConfig| {
        let host = read(&h.secret_file)?;
        let subsystem = h.subsystem_secret_file.as_deref().map(read).transpose()?;
        if subsystem.as_ref() == Some(&host) {
            // Whoever takes the secret from a host could play the node.
            let what = "secret_file and subsystem_secret_file hold one secret: generate two";
            return Err(BadConfig::new(what).about(format!("nvme_host `{}`", h.nqn.get_ref())));
        }
        Ok((h.nqn.get_ref().clone(), Arc::new(HostSecrets { host, subsystem })))
    };
    hosts.iter().map(of).collect()
}

fn read(file: &Path) -> Result<Secret, BadConfig> {
    let text = || {
        let metadata = std::fs::metadata(file)?;
        if metadata.permissions().mode() & 0o007 != 0 {
            return Err(io::Error::other("every user can read it or change it: chmod o-rwx"));
        }
        if metadata.len() > FILE_BYTES_MAX {
            return Err(io::Error::other("it is longer than a secret"));
        }
        std::fs::read_to_string(file)
    };
    Secret::parse(&text().map_err(|e| BadConfig::of_file(file, e))?).map_err(|e| BadConfig::of_file(file, e))
}

/// Fresh random bytes for one authentication.
///
/// # Errors
/// If the kernel has none.
pub fn random() -> io::Result<Random> {
    let mut random = Random { challenge: [0; 64], exponent: [0; 64], sequence: 0 };
    let mut sequence = [0; 4];
    let source = SystemRandom::new();
    for bytes in [&mut random.challenge[..], &mut random.exponent[..], &mut sequence[..]] {
        source.fill(bytes).map_err(|_| io::Error::other("the kernel gives no random bytes"))?;
    }
    random.sequence = u32::from_le_bytes(sequence);
    Ok(random)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_hold_no_secret_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("host.key");
        let load = |text: &str, mode: u32, subsystem: bool| {
            std::fs::write(&file, text).unwrap();
            std::fs::set_permissions(&file, PermissionsExt::from_mode(mode)).unwrap();
            let host = NvmeHostConfig {
                nqn: toml::Spanned::new(0..0, "nqn.a".into()),
                secret_file: file.clone(),
                subsystem_secret_file: subsystem.then(|| file.clone()),
            };
            super::load(&[host])
        };
        let secret = Secret::of(&[3; 32]).unwrap().to_text();
        assert!(load(&secret, 0o640, false).unwrap().contains_key("nqn.a"));
        let name = file.display().to_string();
        for (text, mode, subsystem, why) in [
            (&secret[..], 0o644, false, "chmod o-rwx"),
            ("DHHC-1:00:", 0o600, false, "nvme gen-dhchap-key"),
            (&"x".repeat(2000), 0o600, false, "longer than a secret"),
            (&secret[..], 0o600, true, "generate two"),
        ] {
            let error = load(text, mode, subsystem).unwrap_err().to_string();
            assert!(error.contains(why) && (error.contains(&name) || subsystem), "{error}");
            assert!(!error.contains(&secret[10..]), "a secret is shown");
        }
    }
}
