//! Fenced nodes: a pool of slots over a modelled disk, and what the node says of its slots.

use super::{Server, config};
use serde_json::Value;

/// A pool of slots over a modelled disk, and these volumes of 16 MiB: name and further lines of each.
pub fn fenced(fence: &str, volumes: &[(&str, &str)]) -> String {
    let device = r#"{ file = "slow.img", size = "256MiB", model = "hdd-160g-7200" }"#;
    let whole = config(device, "16MiB");
    let (before, rest) = whole.split_once("[[volume]]").expect("it has a volume");
    let (_, after) = rest.split_once("[[grant]]").expect("it has a grant");
    let before = before.replace("[[tenant]]", &format!("[pool.fence]\n{fence}\n[[tenant]]"));
    let tenant = whole.lines().find(|l| l.starts_with("tenant = ")).expect("the volume has a tenant");
    let volume = |(name, more): &(&str, &str)| {
        format!("[[volume]]\nname = \"{name}\"\npool = \"p\"\nsize = \"16MiB\"\n{tenant}\n{more}\n")
    };
    let volumes: String = volumes.iter().map(volume).collect();
    format!("{before}{volumes}[[grant]]{after}")
}

/// Returns the output of `plimsoll fence status`.
pub fn view(s: &Server) -> Value {
    serde_json::from_str(&s.cli(&["fence", "status", "p", "--json"])).unwrap()
}

/// A number of a volume's.
pub fn of(v: &Value, volume: &str, what: &str) -> u64 {
    let all = v["volumes"].as_array().unwrap();
    all.iter().find(|x| x["volume"] == volume).unwrap_or_else(|| panic!("{volume} in {v}"))[what].as_u64().unwrap()
}
