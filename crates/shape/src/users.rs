//! Users of requests: rules assign account, database and address to a user (AP-M2). The default is the account. The paper's peer port would
//! make each connection a user of its own.

use crate::gate::{NAME_BYTES, User, UserClass};
use crate::walk::Name;
use bytemuck::{Pod, Zeroable};
use serde::Deserialize;
use std::fmt;
use std::net::IpAddr;

/// Most rules there can be.
pub const RULES_MAX: usize = 128;

/// Attribute that makes a user where no rule matches.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GroupBy {
    /// The account that logged in.
    #[default]
    Account,
    /// The database that was named at login.
    Database,
    /// The client's address.
    Peer,
    /// The client's address and port: each connection (the paper's choice, §4.1).
    Connection,
}

impl GroupBy {
    /// As kept in the control segment.
    pub fn code(self) -> u32 {
        self as u32
    }
    /// From the control segment; the account for what is unknown.
    pub fn of_code(code: u32) -> GroupBy {
        [GroupBy::Account, GroupBy::Database, GroupBy::Peer, GroupBy::Connection]
            .into_iter()
            .find(|g| g.code() == code)
            .unwrap_or_default()
    }
}

/// A rule as it lies in the control segment: who matches becomes the user `group`.
#[derive(Clone, Copy, Pod, Zeroable, Debug)]
#[repr(C)]
pub struct Rule {
    field: u32,
    /// 1: the pattern is a prefix.
    prefix: u32,
    pattern: [u8; NAME_BYTES],
    group: [u8; NAME_BYTES],
    /// φ in thousandths.
    pub weight_milli: u32,
    class: u32,
    /// Objective for p99.9 in µs; 0 for none.
    pub objective_us: u64,
}

/// The entry of all who have none of their own.
const OTHERS: &str = "others";
const FIELDS: [&str; 3] = ["account", "database", "peer"];

fn text(field: &[u8; NAME_BYTES]) -> &[u8] {
    &field[..field.iter().position(|b| *b == 0).unwrap_or(NAME_BYTES)]
}

impl Rule {
    fn matches(&self, fields: &[&[u8]; 3]) -> bool {
        let Some(value) = fields.get(self.field as usize) else { return false };
        let pattern = text(&self.pattern);
        if self.prefix == 1 { value.starts_with(pattern) } else { *value == pattern }
    }
    /// The user that it makes.
    pub fn group(&self) -> &[u8] {
        text(&self.group)
    }
    /// Gives its terms to a user.
    pub fn apply(&self, user: &mut User) {
        user.weight_milli = self.weight_milli;
        user.set_class(self.class());
        user.objective_us = self.objective_us;
    }
    /// That user's class.
    pub fn class(&self) -> UserClass {
        if self.class == 1 { UserClass::LatencySensitive } else { UserClass::BestEffort }
    }
}

/// A rule file: TOML, see docs/guides/shaper.md.
#[derive(Deserialize, Debug, Default)]
#[serde(deny_unknown_fields)]
struct RuleFile {
    #[serde(default)]
    user: Vec<RuleText>,
}

#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields)]
struct RuleText {
    name: String,
    account: Option<String>,
    database: Option<String>,
    peer: Option<String>,
    #[serde(default = "one")]
    weight: f64,
    #[serde(default)]
    class: ClassText,
    p999_ms: Option<f64>,
}

fn one() -> f64 {
    1.0
}

#[derive(Deserialize, Debug, Default, PartialEq, Eq, Clone, Copy)]
#[serde(rename_all = "kebab-case")]
enum ClassText {
    #[default]
    BestEffort,
    LatencySensitive,
}

/// Problem of a rule file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BadRules(pub String);
impl fmt::Display for BadRules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
impl std::error::Error for BadRules {}

/// Reads rules from TOML.
///
/// # Errors
/// Says which entry is wrong, and how.
pub fn parse_rules(source: &str) -> Result<Vec<Rule>, BadRules> {
    let file: RuleFile = toml::from_str(source).map_err(|e| BadRules(e.to_string().trim().to_string()))?;
    if file.user.len() > RULES_MAX {
        return Err(BadRules(format!("{} rules: at most {RULES_MAX} are taken", file.user.len())));
    }
    file.user.iter().map(|r| r.rule().map_err(|e| BadRules(format!("user `{}`: {e}", r.name)))).collect()
}

impl RuleText {
    fn rule(&self) -> Result<Rule, String> {
        if self.name.is_empty() || self.name == OTHERS {
            return Err(format!(
                "needs another name: `{OTHERS}` is the entry that all share who have none, and none is no name"
            ));
        }
        let named = [&self.account, &self.database, &self.peer];
        let mut given = named.iter().enumerate().filter_map(|(i, v)| v.as_ref().map(|v| (i, v)));
        let (Some((field, value)), None) = (given.next(), given.next()) else {
            return Err(format!("needs exactly one of {}", FIELDS.join(", ")));
        };
        if !(1.0..=1000.0).contains(&self.weight) {
            return Err(format!("weight {} is not within 1 to 1000", self.weight));
        }
        if self.p999_ms.is_some() != (self.class == ClassText::LatencySensitive) {
            return Err("an objective `p999_ms` goes with class \"latency-sensitive\", and only with it".into());
        }
        let objective = self.p999_ms.unwrap_or(0.0);
        if self.p999_ms.is_some() && !(0.001..=3_600_000.0).contains(&objective) {
            return Err(format!("p999_ms = {objective} is not within 0.001 to 3600000"));
        }
        Ok(Rule {
            field: field as u32,
            prefix: u32::from(value.ends_with('*')),
            pattern: padded(value.trim_end_matches('*'))?,
            group: padded(&self.name)?,
            weight_milli: (self.weight * 1000.0).round() as u32,
            class: u32::from(self.class == ClassText::LatencySensitive),
            objective_us: (objective * 1000.0).round() as u64,
        })
    }
}

fn padded(text: &str) -> Result<[u8; NAME_BYTES], String> {
    if text.len() > NAME_BYTES {
        return Err(format!("`{text}` is longer than {NAME_BYTES} bytes"));
    }
    let mut out = [0; NAME_BYTES];
    out[..text.len()].copy_from_slice(text.as_bytes());
    Ok(out)
}

/// A client's address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Peer {
    /// Address.
    pub ip: IpAddr,
    /// Port.
    pub port: u16,
}

impl Peer {
    /// As text, without allocation.
    pub fn name(&self, with_port: bool) -> Name {
        use std::io::Write;
        let mut text = [0u8; 64];
        let mut left = &mut text[..];
        // 64 bytes hold any address and port.
        let written = if with_port { write!(left, "{}:{}", self.ip, self.port) } else { write!(left, "{}", self.ip) };
        let unused = left.len();
        let mut name = Name::EMPTY;
        if written.is_ok() {
            name.set(&text[..64 - unused]);
        }
        name
    }
}

/// The user of a connection, and the rule that made it.
pub fn classify<'r>(
    rules: &'r [Rule],
    by: GroupBy,
    account: &Name,
    database: &Name,
    peer: Peer,
) -> (Name, Option<&'r Rule>) {
    let address = peer.name(false);
    let fields = [account.as_bytes(), database.as_bytes(), address.as_bytes()];
    let mut name = Name::EMPTY;
    if let Some(rule) = rules.iter().find(|r| r.matches(&fields)) {
        name.set(rule.group());
        return (name, Some(rule));
    }
    let chosen = match by {
        GroupBy::Account => account.as_bytes(),
        GroupBy::Database => database.as_bytes(),
        GroupBy::Peer => address.as_bytes(),
        GroupBy::Connection => &[],
    };
    match (chosen, by) {
        (_, GroupBy::Connection) => name = peer.name(true),
        ([], _) => name = address,
        _ => name.set(chosen),
    }
    (name, None)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PEER: Peer = Peer { ip: IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 7)), port: 4000 };

    fn name(text: &str) -> Name {
        let mut n = Name::EMPTY;
        n.set(text.as_bytes());
        n
    }

    #[test]
    fn the_first_rule_that_matches_names_the_user() {
        let text = r#"
            [[user]]
            name = "web"
            account = "web_*"
            weight = 3
            class = "latency-sensitive"
            p999_ms = 60
            [[user]]
            name = "batch"
            peer = "10.0.0.7"
        "#;
        let rules = parse_rules(text).unwrap();
        let (user, rule) = classify(&rules, GroupBy::Account, &name("web_7"), &name("shop"), PEER);
        assert_eq!((user, rule.unwrap().weight_milli), (name("web"), 3000));
        assert_eq!((rule.unwrap().class(), rule.unwrap().objective_us), (UserClass::LatencySensitive, 60_000));
        assert_eq!(classify(&rules, GroupBy::Account, &name("x"), &name("shop"), PEER).0, name("batch"));
        for (by, want) in [
            (GroupBy::Account, "x"),
            (GroupBy::Database, "shop"),
            (GroupBy::Peer, "10.0.0.7"),
            (GroupBy::Connection, "10.0.0.7:4000"),
        ] {
            assert_eq!(classify(&[], by, &name("x"), &name("shop"), PEER).0, name(want));
            assert_eq!(GroupBy::of_code(by.code()), by);
        }
        assert_eq!(classify(&[], GroupBy::Account, &Name::EMPTY, &Name::EMPTY, PEER).0, name("10.0.0.7"));
    }

    #[test]
    fn bad_rules_say_what_is_wrong() {
        for (text, want) in [
            ("[[user]]\nname = 'others'\naccount = 'b'", "user `others`: needs another name"),
            ("[[user]]\nname = ''\naccount = 'b'", "user ``: needs another name"),
            ("[[user]]\nname = 'a'", "user `a`: needs exactly one of account, database, peer"),
            ("[[user]]\nname = 'a'\naccount = 'b'\nweight = 0.5", "user `a`: weight 0.5 is not within 1 to 1000"),
            ("[[user]]\nname = 'a'\naccount = 'b'\np999_ms = 5", "an objective `p999_ms` goes with class"),
            ("[[user]]\nname = 'a'\ncolour = 'b'", "unknown field `colour`"),
        ] {
            let e = parse_rules(text).unwrap_err().0;
            assert!(e.contains(want), "{e}");
        }
    }
}
