//! `plimsoll init`: a first configuration, with comments.

use crate::check::Report;
use crate::output::print;
use anyhow::{Context, Result, anyhow, bail};
use clap::Args;
use plimsoll_node::config::{ByteSize, Config};
use plimsoll_store::{DeviceErrorKind, DeviceFile, Expect, Look, ROLE_MAIN, Uuid};
use std::collections::BTreeSet;
use std::io::Write;
use std::path::{Path, PathBuf};

/// Write a commented configuration for devices. They are looked at only; the first start makes them Plimsoll's.
#[derive(Args)]
#[command(
    after_help = "The configuration grants no access: its last section shows how to.\n\nExamples:\n  plimsoll init pool.img --size 8GiB --run . --out node.toml\n  plimsoll init /dev/sdb /dev/sdc --format --out /etc/plimsoll/plimsoll.toml"
)]
pub struct Init {
    /// Devices or files, one for each pool.
    #[arg(required = true, value_name = "DEVICE")]
    devices: Vec<PathBuf>,
    /// Size of files to create.
    #[arg(long)]
    size: Option<ByteSize>,
    /// Let the first start format blank block devices. ZEROES ALL of each.
    #[arg(long)]
    format: bool,
    /// Folder for the sockets and the token.
    #[arg(long, value_name = "DIR", default_value = "/run/plimsoll")]
    run: PathBuf,
    /// File to write, which must not exist; `-`: standard output.
    #[arg(long, value_name = "FILE", default_value = "-")]
    out: PathBuf,
}

impl Init {
    /// Runs the command.
    pub fn run(self) -> Result<()> {
        let (mut pools, mut names) = (String::new(), BTreeSet::new());
        for device in &self.devices {
            let path = std::path::absolute(device).with_context(|| device.display().to_string())?;
            let mut name = pool_name(&path);
            while !names.insert(name.clone()) {
                name += "-2";
            }
            pools += &self.pool(&name, &path)?;
        }
        let run = std::path::absolute(&self.run)?;
        let first = names.first().expect("at least one device is named");
        let text = TEMPLATE.replace("{run}", &escaped(&run)).replace("{pools}", &pools).replace("{first}", first);
        let to_output = self.out.as_os_str() == "-";
        let file = if to_output { Path::new("(output)") } else { &self.out };
        let config = Config::parse(&text, file)?;
        let findings = Report::of(&config, file);
        if to_output {
            print(&text)?;
            if findings.has_errors() {
                eprint!("{}", findings.text());
            }
            return findings.verdict();
        }
        let made = std::fs::File::options().write(true).create_new(true).open(file);
        let mut made = made.map_err(|e| match e.kind() {
            std::io::ErrorKind::AlreadyExists => anyhow!("{}: exists already: choose another --out", file.display()),
            _ => anyhow!("{}: {e}", file.display()),
        })?;
        made.write_all(text.as_bytes())?;
        print(&findings.text())?;
        let file = file.display();
        if findings.has_errors() {
            println!("next: correct the errors in {file}, then `plimsoll check {file}`");
        } else {
            println!("next: grant somebody something at its end, then `plimsoll serve --config {file}`");
        }
        findings.verdict()
    }

    fn pool(&self, name: &str, path: &Path) -> Result<String> {
        let expect = Expect { pool_uuid: None, device_uuid: None, role: ROLE_MAIN.into() };
        let look = DeviceFile::look(path, &expect)?;
        let file = escaped(path);
        let (comment, keys) = match look {
            None => {
                if path.starts_with("/dev") && !path.starts_with("/dev/shm") {
                    bail!("{file}: there is no such device: attach it, or correct the path");
                }
                let none = || anyhow!("{file}: doesn't exist: say how large to make it with --size, or correct it");
                let size = self.size.ok_or_else(none)?;
                ("# A file that the first start makes, sparse.".to_string(), format!(", size = \"{size}\""))
            }
            Some(Look { found: Ok(superblock), .. }) => {
                if superblock.pool_uuid != Uuid::new_v5(&Uuid::NAMESPACE_OID, name.as_bytes()) {
                    bail!(
                        "{file}: belongs to a pool of another name than `{name}`: use the configuration that it was made with"
                    );
                }
                ("# A Plimsoll device; pinned, so that no other is taken for it.".into(), {
                    format!(", uuid = \"{}\"", superblock.device_uuid)
                })
            }
            Some(Look { found: Err(e), is_block_device: true, .. }) if matches!(e.kind, DeviceErrorKind::Blank) => {
                match self.format {
                    true => ("# The first start zeroes ALL of it.".into(), ", format = true".into()),
                    false => ("# Add `format = true` to let the first start zero ALL of it.".into(), String::new()),
                }
            }
            Some(Look { found: Err(e), .. }) => return Err(e.into()),
        };
        Ok(format!("\n[[pool]]\nname = \"{name}\"\n{comment}\ndevice = {{ file = \"{file}\"{keys} }}\n"))
    }
}

/// A path inside TOML's double quotes.
fn escaped(path: &Path) -> String {
    path.display().to_string().replace('\\', "\\\\").replace('"', "\\\"")
}

/// A pool's name from its device's.
fn pool_name(path: &Path) -> String {
    let stem = path.file_stem().map_or("main".into(), |s| s.to_string_lossy().to_lowercase());
    let plain: String = stem.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
    let plain = plain.trim_matches('-').to_string();
    if plain.is_empty() { "main".into() } else { plain }
}

/// `{run}`, `{pools}` and `{first}` are filled in.
const TEMPLATE: &str = r#"# Written by `plimsoll init`. Every key there is: plimsoll.example.toml, installed with the documentation.
# `plimsoll check FILE` says what is wrong with it; `plimsoll reload` applies what can be changed while the node runs.

# ---- Where NBD clients connect.
[listen]
# Clients on this host.
unix = "{run}/nbd.sock"
# Clients over TCP. Those on other hosts are granted something only with [listen.tls].
#tcp = "127.0.0.1:10809"

# ---- Where the node is watched and controlled.
[control]
# Dashboard, metrics, API. Peers on this host may read; changes take the token.
http = "127.0.0.1:7700"
# The same without a token, for root and the node's own user.
unix = "{run}/control.sock"
token_file = "{run}/control.token"

# ---- Storage: a pool is a device with one scheduler for all its volumes.
{pools}
# ---- Owners of promises.
[[tenant]]
name = "default"
class = "best-effort"
# Reads are done within it, or refused or delayed by a forecast (docs/guides/promises.md).
#deadline = "20ms"

# ---- Volumes that must exist: made at the first start.
#[[volume]]
#name = "data"
#pool = "{first}"
#size = "1GiB"
#tenant = "default"

# ---- Who may use what. Without a grant nobody may use anything.
#[[grant]]
# `uid:1000`: a user of this host; `local`: any; `cert:NAME`: a TLS client.
#peer = "uid:1000"
#volumes = ["data"]
"#;

#[cfg(test)]
mod tests {
    use super::*;

    fn init(devices: &[PathBuf], out: PathBuf, size: Option<u64>) -> Result<()> {
        let run = out.parent().unwrap_or(Path::new("/")).to_path_buf();
        Init { devices: devices.to_vec(), size: size.map(ByteSize), format: false, run, out }.run()
    }

    #[test]
    fn a_configuration_for_named_devices_grants_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let (devices, out) = ([dir.path().join("a.img"), dir.path().join("A.dat")], dir.path().join("node.toml"));
        assert!(init(&devices, out.clone(), None).unwrap_err().to_string().contains("--size"));
        init(&devices, out.clone(), Some(64 << 20)).unwrap();
        let config = Config::load(&out).unwrap();
        assert_eq!(config.pool.iter().map(|p| p.name.get_ref().as_str()).collect::<Vec<_>>(), ["a", "a-2"]);
        assert_eq!((config.grant.len(), config.volume.len()), (0, 0));
        assert!(!devices[0].exists(), "nothing is made");
        assert!(std::fs::read_to_string(&out).unwrap().contains("size = \"64MiB\""));
        let no_device = init(&["/dev/none".into()], dir.path().join("c.toml"), Some(64 << 20)).unwrap_err().to_string();
        assert!(no_device.contains("there is no such device"), "{no_device}");
        let elsewhere = dir.path().join("d.toml");
        let here = [dir.path().join("c.img")];
        let run = dir.path().join("none");
        let refused =
            Init { devices: here.to_vec(), size: Some(ByteSize(64 << 20)), format: false, run, out: elsewhere }.run();
        assert!(
            refused.unwrap_err().to_string().contains("would refuse it"),
            "the folder of its sockets doesn't exist"
        );
        let again = init(&devices, out.clone(), Some(64 << 20)).unwrap_err().to_string();
        assert!(again.contains("exists already"), "{again}");
        std::fs::write(&devices[0], [1; 4096]).unwrap();
        let foreign = init(&devices, dir.path().join("b.toml"), Some(64 << 20)).unwrap_err().to_string();
        assert!(foreign.contains("holds data that Plimsoll didn't write"), "{foreign}");
        // With the settings that are off, it is a configuration, too.
        let text = std::fs::read_to_string(&out).unwrap();
        let all: Vec<_> =
            text.lines().map(|l| l.strip_prefix('#').filter(|k| !k.starts_with([' ', '-'])).unwrap_or(l)).collect();
        let config = Config::parse(&all.join("\n"), &out).unwrap();
        assert_eq!((config.grant.len(), config.volume.len()), (1, 1));
    }
}
