//! Reading a configuration's text: every error in it, not only the first, each with a suggestion where one is near.

use super::{BadConfig, Config, Place};
use serde::Deserialize;
use std::ops::Range;
use toml::de::{DeArray, DeTable, DeValue, Deserializer, Error};

/// More errors than this help nobody.
pub(super) const ERRORS_MAX: usize = 64;

/// Reads a text. There is a configuration only if every value could be read; keys that are unknown are left out.
pub(super) fn read(text: &str) -> (Option<Config>, Vec<BadConfig>) {
    let (mut root, faults) = DeTable::parse_recoverable(text);
    let place = |e: &Error| -> Place { e.span().map(|s| s.start) };
    if !faults.is_empty() {
        // What follows a fault on its line is only noise.
        let line = |at: usize| text[..at.min(text.len())].matches('\n').count();
        let mut all: Vec<_> = faults.iter().map(|e| BadConfig::found(e.message()).at(place(e))).collect();
        all.dedup_by_key(|e| e.place().map(line));
        return (None, all);
    }
    let (mut errors, mut is_whole) = (Vec::new(), true);
    while errors.len() < ERRORS_MAX {
        let e = match Config::deserialize(Deserializer::from(root.clone())) {
            Ok(config) => return (is_whole.then_some(config), errors),
            Err(e) => e,
        };
        let removed = e.span().and_then(|span| remove(root.get_mut(), &span));
        is_whole &= e.message().starts_with(UNKNOWN);
        errors.push(BadConfig::new(plain(e.message(), removed.as_deref())).at(place(&e)));
        if removed.is_none() {
            break;
        }
    }
    (None, errors)
}

const UNKNOWN: &str = "unknown field";

/// An error of the parser in words, with a suggestion; `key`: the key whose value it is about.
fn plain(message: &str, key: Option<&str>) -> String {
    match key {
        Some(key @ ("pool" | "tenant" | "volume" | "grant" | "subsystem" | "nvme_host"))
            if message.starts_with("invalid type: map") =>
        {
            return format!("there may be several of it: write [[{key}]], with two brackets on each side");
        }
        Some(key) if message == "invalid socket address syntax" => {
            return format!("`{key}` isn't IP:PORT, such as 127.0.0.1:7700: write the address of a host, not its name");
        }
        _ => {}
    }
    let mut quoted = message.split('`').skip(1).step_by(2);
    let wrong = quoted.next().unwrap_or("");
    let near = if message.starts_with("unknown") { nearest(wrong, quoted) } else { None };
    near.map_or_else(|| message.to_string(), |near| format!("{message}: did you mean `{near}`?"))
}

/// The candidate that a mistyped word is nearest to, if one is near.
pub(super) fn nearest<'a>(word: &str, candidates: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let far = word.chars().count() / 2;
    let distance = |candidate: &str| strsim::osa_distance(&word.to_lowercase(), &candidate.to_lowercase());
    candidates.map(|c| (distance(c), c)).filter(|(d, _)| (1..=far).contains(d)).min_by_key(|(d, _)| *d).map(|(_, c)| c)
}

/// Names that a message lists: of more, it gives their number.
const LISTED_MOST: usize = 8;

/// "there is no pool `q`", with the name that is meant, or those that there are.
pub(crate) fn there_is_no<'a>(kind: &str, name: &str, there: impl Iterator<Item = &'a str> + Clone) -> String {
    match nearest(name, there.clone()) {
        Some(near) => format!("there is no {kind} `{name}`: did you mean `{near}`?"),
        None => {
            let names: Vec<_> = there.collect();
            let names = match names.len() {
                0 => "none at all".to_string(),
                1..=LISTED_MOST => names.join(", "),
                n => format!("{n} others"),
            };
            format!("there is no {kind} `{name}`; there are: {names}")
        }
    }
}

/// Takes away what an error at `span` is about, so that the rest can be read: a key with its value, or an element of an array. Returns
/// the key.
fn remove(table: &mut DeTable<'_>, span: &Range<usize>) -> Option<String> {
    remove_where(table, &|found| found == *span).or_else(|| {
        // A part of a value: the smallest one that has it.
        let mut around: Vec<Range<usize>> = Vec::new();
        spans(table, &mut around);
        let around =
            around.into_iter().filter(|s| s.start <= span.start && span.end <= s.end).min_by_key(|s| s.len())?;
        remove_where(table, &|found| found == around)
    })
}

fn remove_where(table: &mut DeTable<'_>, is_it: &dyn Fn(Range<usize>) -> bool) -> Option<String> {
    let hit = table.iter().find(|(k, v)| is_it(k.span()) || is_it(v.span())).map(|(k, _)| k.clone());
    if let Some(key) = hit {
        table.remove(&key);
        return Some(key.get_ref().to_string());
    }
    table.iter_mut().find_map(|(key, v)| remove_in(v.get_mut(), key.get_ref(), is_it))
}

fn remove_in(value: &mut DeValue<'_>, key: &str, is_it: &dyn Fn(Range<usize>) -> bool) -> Option<String> {
    match value {
        DeValue::Table(table) => remove_where(table, is_it),
        DeValue::Array(array) => {
            if let Some(hit) = array.iter().position(|v| is_it(v.span())) {
                let mut rest = DeArray::new();
                array.iter().enumerate().filter(|(i, _)| *i != hit).for_each(|(_, v)| rest.push(v.clone()));
                *array = rest;
                return Some(key.to_string());
            }
            array.iter_mut().find_map(|v| remove_in(v.get_mut(), key, is_it))
        }
        _ => None,
    }
}

fn spans(table: &DeTable<'_>, all: &mut Vec<Range<usize>>) {
    for v in table.values() {
        all.push(v.span());
        spans_in(v.get_ref(), all);
    }
}

fn spans_in(value: &DeValue<'_>, all: &mut Vec<Range<usize>>) {
    match value {
        DeValue::Table(table) => spans(table, all),
        DeValue::Array(array) => array.iter().for_each(|v| {
            all.push(v.span());
            spans_in(v.get_ref(), all);
        }),
        _ => {}
    }
}
