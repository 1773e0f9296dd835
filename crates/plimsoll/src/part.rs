//! A layer of a pool, as every command shows it.

use crate::client::{Client, Control, print_json, segment};
use crate::table::table;
use anyhow::{Result, bail};
use hyper::Method;
use plimsoll_node::http::api::Status;
use plimsoll_node::parts::settings::SettingView;
use plimsoll_node::parts::{self, Part, Shown};
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::collections::BTreeMap;

/// The URL of `part` of a pool.
pub fn path(pool: &str, part: &str) -> String {
    format!("/v1/pools/{}/{part}", segment(pool))
}

/// The pool meant: the named one, or the only one that has `P`'s layer.
///
/// # Errors
/// If none or several have it, or the node doesn't answer.
pub fn pool_with<P: Part>(client: &Client, named: Option<String>) -> Result<String> {
    if let Some(name) = named {
        return Ok(name);
    }
    let status: Status = client.get("/v1/status")?;
    let with = status.pools.iter().filter(|p| p.parts.iter().any(|part| part.name == P::NAME));
    match with.map(|p| p.name.clone()).collect::<Vec<_>>().as_slice() {
        [] => bail!("no pool has {}: {}", P::NAME, P::HOW),
        [one] => Ok(one.clone()),
        several => bail!("several pools have {}: name one of {}", P::NAME, several.join(", ")),
    }
}

/// The state of `P`'s layer of a pool.
///
/// # Errors
/// If the pool has no such layer, or the node doesn't answer.
pub fn view<P: Part>(client: &Client, pool: &str) -> Result<P::View> {
    client.get(&path(pool, P::NAME))
}

/// Shows a layer: `view` is its JSON.
///
/// # Errors
/// If it is of another version.
pub fn show<P: Part>(pool: &str, view: &impl serde::Serialize, control: &Control) -> Result<()> {
    if control.json {
        return print_json(view);
    }
    let view: P::View = serde_json::from_value(serde_json::to_value(view)?)?;
    print!("{}", text(&format!("pool {pool}: {}", P::NAME), &P::shown(&view)));
    Ok(())
}

/// Shows every layer of a pool.
///
/// # Errors
/// If there is no such pool, or the node doesn't answer.
pub fn show_all(client: &Client, pool: &str, control: &Control) -> Result<()> {
    let status: Status = client.get("/v1/status")?;
    let Some(found) = status.pools.iter().find(|p| p.name == pool) else {
        bail!("there is no pool `{pool}`: `plimsoll pool list` lists them")
    };
    let mut all = BTreeMap::new();
    for part in &found.parts {
        let json: Value = client.get(&path(pool, &part.name))?;
        if !control.json {
            let shown = match parts::by_name(&part.name) {
                Some(known) => known.shown_of(json.clone())?,
                None => Shown { lines: part.lines.clone(), ..Shown::new(part.headline.clone()) },
            };
            println!("{}", text(&part.name, &shown).trim_end());
        }
        all.insert(part.name.clone(), json);
    }
    if control.json { print_json(&all) } else { Ok(()) }
}

/// A layer's state as text.
pub fn text(title: &str, shown: &Shown) -> String {
    let mut text = format!("{title}: {}\n", shown.headline);
    let problem = shown.problem.iter().map(|problem| ("problem", problem));
    let lines = shown.lines.iter().map(|(label, text)| (label.as_str(), text));
    for (label, line) in problem.chain(lines) {
        match label {
            "" => text.push_str(&format!("  {line}\n")),
            _ => text.push_str(&format!("  {label:<12} {line}\n")),
        }
    }
    for t in &shown.tables {
        let head: Vec<&str> = t.head.iter().map(String::as_str).collect();
        text.push_str(&table(&head, &t.rows));
    }
    text
}

/// The settings of a pool.
///
/// # Errors
/// If there is no such pool, or the node doesn't answer.
pub fn settings(client: &Client, pool: &str) -> Result<Vec<SettingView>> {
    client.get(&path(pool, "settings"))
}

/// Changes settings of a pool.
///
/// # Errors
/// Those of the node.
pub fn change<T: DeserializeOwned>(client: &Client, pool: &str, wanted: &BTreeMap<String, u64>) -> Result<T> {
    client.send(Method::PATCH, &path(pool, "settings"), wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_layer_is_shown_with_its_lines_and_tables() {
        let mut shown = Shown::new("4 slots");
        shown.problem = Some("late".into());
        shown.line("idle time", "none");
        shown.line("", "▁▂");
        shown.table(&["SLOT", "VOLUME"], vec![vec!["0".into(), "web".into()]]);
        let lines = "pool p: fence: 4 slots\n  problem      late\n  idle time    none\n  ▁▂\nSLOT  VOLUME\n   0  web\n";
        assert_eq!(text("pool p: fence", &shown), lines);
    }
}
