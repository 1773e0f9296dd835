//! `plimsoll.example.toml` is right, and complete.

use plimsoll_node::config::Config;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

const EXAMPLE: &str = include_str!("../../../plimsoll.example.toml");

/// The example with the settings that are off in it.
fn with_everything_on() -> String {
    let on = |line: &str| match line.strip_prefix('#') {
        Some(setting) if !setting.is_empty() && !setting.starts_with(' ') => setting.to_string(),
        _ => line.to_string(),
    };
    EXAMPLE.lines().map(on).collect::<Vec<_>>().join("\n")
}

fn parse(text: &str) -> Result<Config, plimsoll_node::config::ConfigErrors> {
    Config::parse(text, Path::new("plimsoll.example.toml"))
}

#[test]
fn it_is_a_configuration_with_and_without_what_is_off() {
    let config = parse(EXAMPLE).unwrap();
    assert_eq!((config.pool.len(), config.tenant.len(), config.volume.len(), config.grant.len()), (2, 3, 3, 2));
    let all = parse(&with_everything_on()).unwrap();
    assert_eq!(all.pool.len(), 9);
    assert!(all.listen.tls.is_some());
}

/// Every table's path with the keys that it has in the example; arrays of tables count together.
fn tables(value: &toml::Value, path: &str, found: &mut BTreeMap<String, BTreeSet<String>>) {
    match value {
        toml::Value::Table(table) => {
            found.entry(path.to_string()).or_default().extend(table.keys().cloned());
            table.iter().for_each(|(key, inner)| tables(inner, &format!("{path}/{key}"), found));
        }
        toml::Value::Array(all) => all.iter().for_each(|inner| tables(inner, path, found)),
        _ => {}
    }
}

/// Puts a key that nobody knows into the first table at `path`.
fn spoil(value: &mut toml::Value, path: &[&str]) -> bool {
    match (value, path) {
        (toml::Value::Array(all), _) => all.iter_mut().any(|inner| spoil(inner, path)),
        (toml::Value::Table(table), []) => table.insert("zzz".into(), toml::Value::Integer(1)).is_none(),
        (toml::Value::Table(table), [first, rest @ ..]) => table.get_mut(*first).is_some_and(|v| spoil(v, rest)),
        _ => false,
    }
}

/// A table with an unknown key is refused with the keys there are: each must be in the example. So a key that is added to
/// the configuration and not to the example fails here, wherever it is.
#[test]
fn every_key_is_in_it() {
    let whole: toml::Value = with_everything_on().parse::<toml::Table>().unwrap().into();
    let mut found = BTreeMap::new();
    tables(&whole, "", &mut found);
    assert!(found.len() >= 11, "{:?}", found.keys());
    for (path, keys) in &found {
        let mut spoilt = whole.clone();
        let steps: Vec<&str> = path.split('/').filter(|s| !s.is_empty()).collect();
        assert!(spoil(&mut spoilt, &steps), "{path}");
        let error = parse(&toml::to_string(&spoilt).unwrap()).expect_err(path).to_string();
        let (_, expected) =
            error.split_once("unknown field `zzz`, expected").unwrap_or_else(|| panic!("{path}: {error}"));
        let expected: BTreeSet<String> = expected.split('`').skip(1).step_by(2).map(str::to_string).collect();
        assert!(!expected.is_empty(), "{path}: {error}");
        let missing: Vec<_> = expected.difference(keys).collect();
        assert!(missing.is_empty(), "plimsoll.example.toml has no {missing:?} in {path}");
    }
}
