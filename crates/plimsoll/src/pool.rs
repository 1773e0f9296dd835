//! `plimsoll pool …`

use crate::client::{Client, Control, print_json, segment};
use crate::part;
use crate::table::{bytes, table};
use anyhow::{Result, anyhow, bail};
use clap::{Args, Subcommand};
use hyper::Method;
use plimsoll_node::http::api::{PoolStatus, Status};
use plimsoll_node::parts::settings::SettingView;
use std::collections::BTreeMap;

/// List pools, show a pool's layers, show and change its settings; bring it back after a failed flush.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  plimsoll pool show main\n  plimsoll pool set main idle=16ms --control control.sock\n  plimsoll pool recover main --control control.sock"
)]
pub struct Pool {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// List all, with their state and free space
    #[command(after_help = "Example:\n  plimsoll pool list")]
    List(#[command(flatten)] Control),
    /// Believe flushes again, after you have looked at the device and at what was lost
    #[command(after_help = "Example:\n  plimsoll pool recover main --control control.sock")]
    Recover {
        /// Its name.
        name: String,
        #[command(flatten)]
        control: Control,
    },
    /// Show every layer of a pool
    #[command(after_help = "Example:\n  plimsoll pool show main")]
    Show {
        /// Its name.
        name: String,
        #[command(flatten)]
        control: Control,
    },
    /// Show the settings that can be changed while it serves
    #[command(after_help = "Example:\n  plimsoll pool settings main")]
    Settings {
        /// Its name.
        name: String,
        #[command(flatten)]
        control: Control,
    },
    /// Change settings, all or none, each until something else is configured for it
    #[command(
        after_help = "`plimsoll pool settings` lists them. A key may be written without its unit.\n\nExamples:\n  \
        plimsoll pool set main idle=16ms\n  plimsoll pool set main logged_write=64KiB fingerprints=50%"
    )]
    Set {
        /// Its name.
        name: String,
        /// A setting and its value, with its unit.
        #[arg(value_name = "KEY=VALUE", required = true)]
        settings: Vec<String>,
        #[command(flatten)]
        control: Control,
    },
}

impl Pool {
    /// Runs the command.
    pub fn run(self) -> Result<()> {
        match self.command {
            Command::List(control) => list(&control),
            Command::Recover { name, control } => {
                Client::new(&control)?.order(Method::POST, &format!("/v1/pools/{}/recover", segment(&name)))
            }
            Command::Show { name, control } => part::show_all(&Client::new(&control)?, &name, &control),
            Command::Settings { name, control } => print(&part::settings(&Client::new(&control)?, &name)?, &control),
            Command::Set { name, settings, control } => {
                let client = Client::new(&control)?;
                let known = part::settings(&client, &name)?;
                let wanted = settings.iter().map(|s| parse(s, &known)).collect::<Result<BTreeMap<_, _>>>()?;
                print(&part::change::<Vec<SettingView>>(&client, &name, &wanted)?, &control)
            }
        }
    }
}

fn list(control: &Control) -> Result<()> {
    let status: Status = Client::new(control)?.get("/v1/status")?;
    if control.json {
        return print_json(&status.pools);
    }
    let row = |p: &PoolStatus| {
        let free = p.free_bytes.map_or("-".into(), bytes);
        vec![p.name.clone(), p.state.clone(), free, p.connections.to_string(), p.inside.to_string(), p.device.clone()]
    };
    let head = ["POOL", "STATE", "FREE", "CLIENTS", "INSIDE", "DEVICE"];
    print!("{}", table(&head, &status.pools.iter().map(row).collect::<Vec<_>>()));
    Ok(())
}

/// `idle=16ms`: the key and the value in its unit.
fn parse(text: &str, known: &[SettingView]) -> Result<(String, u64)> {
    let Some((key, value)) = text.split_once('=') else { bail!("`{text}`: write KEY=VALUE, such as idle=16ms") };
    let is = |s: &&SettingView| s.key == key || s.key.rsplit_once('_').is_some_and(|(name, _)| name == key);
    let Some(setting) = known.iter().find(is) else {
        let keys: Vec<&str> = known.iter().map(|s| s.key.as_str()).collect();
        bail!("`{key}` is no setting of this pool: it has {}", keys.join(", "));
    };
    let value = setting.unit.parse(value).map_err(|what| anyhow!("{key}: {what}"))?;
    Ok((setting.key.clone(), value))
}

fn print(settings: &[SettingView], control: &Control) -> Result<()> {
    if control.json {
        return print_json(&settings);
    }
    let row = |s: &SettingView| {
        let text = |value| s.unit.text(value);
        let range = format!("{} to {}", text(s.min), text(s.max));
        let configured = s.configured.map_or("-".into(), text);
        vec![s.part.clone(), s.key.clone(), text(s.value), configured, range, s.help.clone()]
    };
    let head = ["LAYER", "SETTING", "NOW", "CONFIGURED", "RANGE", "MEANING"];
    print!("{}", table(&head, &settings.iter().map(row).collect::<Vec<_>>()));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_node::parts::settings::Unit;

    #[test]
    fn a_setting_is_named_with_or_without_its_unit() {
        let known = [SettingView {
            part: "scheduler".into(),
            key: "idle_us".into(),
            unit: Unit::Us,
            value: 8000,
            min: 0,
            max: 1_000_000,
            configured: None,
            help: String::new(),
        }];
        for text in ["idle=16ms", "idle_us=16ms"] {
            assert_eq!(parse(text, &known).unwrap(), ("idle_us".into(), 16_000));
        }
        for (text, what) in [("idle", "write KEY=VALUE"), ("tea=1", "it has idle_us"), ("idle=16", "no time such as")] {
            assert!(parse(text, &known).unwrap_err().to_string().contains(what), "{text}");
        }
    }
}
