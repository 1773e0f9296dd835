//! Parameters, their values, and settings: one value of each.

use std::fmt;

/// A parameter that can be set, and what it moves.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Parameter {
    /// Its name: `idle_time`.
    pub name: String,
    /// The values to explore, as the adapter takes them: `8ms`.
    pub values: Vec<String>,
    /// The nodes of the service graph whose times, probabilities or counts it moves (OT-M7). A node that isn't named here is
    /// assumed not to depend on the parameter, and is profiled once for all its values.
    pub moves: Vec<String>,
}

/// One value of each parameter: indices into [`Parameter::values`], in the parameters' order.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Setting(pub Vec<u16>);

/// All settings there are.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Space {
    parameters: Vec<Parameter>,
}

/// Settings that a space may have: what a solver can look at within its time.
pub const SETTINGS_MAX: usize = 1 << 20;

/// Settings up to which the runs of a profile are chosen by looking at all of them.
const GREEDY_MAX: usize = 2_048;

/// Columns and placeholders that aren't parameters.
const RESERVED: [&str; 5] = ["request", "node", "value", "count", "seconds"];

/// Reason why a space can't be used.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BadSpace {
    /// Number of the parameter with the problem.
    pub parameter: usize,
    /// Problem, and its remedy.
    pub what: String,
}

impl fmt::Display for BadSpace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}
impl std::error::Error for BadSpace {}

/// Returns whether it can stand in a cell of a profile.
pub(crate) fn is_cell(text: &str) -> bool {
    text.trim() == text && !text.contains([',', '"']) && !text.contains(char::is_control)
}

fn check_text(p: &Parameter) -> Result<(), String> {
    let is_plain = |c: char| c.is_alphanumeric() || "_-.".contains(c);
    if p.name.is_empty() || !p.name.chars().all(is_plain) {
        return Err(format!(
            "parameter `{}`: its name is a profile's column: letters, digits, `_`, `-` and `.` only",
            p.name
        ));
    }
    if RESERVED.contains(&p.name.as_str()) {
        return Err(format!("parameter `{}`: that name is taken by a profile's column or by {{seconds}}", p.name));
    }
    match p.values.iter().find(|v| !is_cell(v)) {
        Some(v) => Err(format!(
            "parameter `{}`: a profile can't hold the value `{v}`: no commas, quotes, line ends or blanks around it",
            p.name
        )),
        None => Ok(()),
    }
}

impl Space {
    /// Checks the parameters.
    ///
    /// # Errors
    /// If a name or value is given twice, not at all, or is none that a profile can hold; or there are more than [`SETTINGS_MAX`]
    /// settings.
    pub fn new(parameters: Vec<Parameter>) -> Result<Space, BadSpace> {
        let mut settings = 1usize;
        for (parameter, p) in parameters.iter().enumerate() {
            let bad = |what: String| BadSpace { parameter, what };
            check_text(p).map_err(bad)?;
            if parameters[..parameter].iter().any(|q| q.name == p.name) {
                return Err(bad(format!("parameter `{}`: a name of its own is needed", p.name)));
            }
            if p.values.is_empty() || p.values.len() > usize::from(u16::MAX) {
                return Err(bad(format!("parameter `{}` has no values to explore, or too many", p.name)));
            }
            let mut seen = std::collections::BTreeSet::new();
            if let Some(v) = p.values.iter().find(|v| !seen.insert(v.as_str())) {
                return Err(bad(format!("parameter `{}` has the value `{v}` twice", p.name)));
            }
            settings = settings.saturating_mul(p.values.len());
            if settings > SETTINGS_MAX {
                return Err(bad(format!(
                    "{settings} settings are more than the {SETTINGS_MAX} that can be compared: explore fewer values"
                )));
            }
        }
        Ok(Space { parameters })
    }

    /// The parameters.
    pub fn parameters(&self) -> &[Parameter] {
        &self.parameters
    }

    /// Returns the number of settings.
    pub fn len(&self) -> usize {
        self.parameters.iter().map(|p| p.values.len()).product()
    }

    /// Never: a space without parameters has the one empty setting.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// All settings, the last parameter varying fastest.
    pub fn settings(&self) -> impl Iterator<Item = Setting> + '_ {
        (0..self.len()).map(|n| self.setting(n))
    }

    /// Setting number `n` of [`Space::settings`].
    pub fn setting(&self, mut n: usize) -> Setting {
        let mut digits: Vec<u16> = Vec::with_capacity(self.parameters.len());
        for p in self.parameters.iter().rev() {
            digits.push((n % p.values.len()) as u16);
            n /= p.values.len();
        }
        digits.reverse();
        Setting(digits)
    }

    /// The setting with these values by name; `None` if a value isn't one of the explored ones or is missing.
    pub fn named(&self, values: &[(&str, &str)]) -> Option<Setting> {
        let digit = |p: &Parameter| {
            let value = values.iter().find(|v| v.0 == p.name)?.1;
            p.values.iter().position(|v| v == value).map(|i| i as u16)
        };
        self.parameters.iter().map(digit).collect::<Option<Vec<u16>>>().map(Setting)
    }

    /// Parameter names with a setting's values.
    pub fn values<'a>(&'a self, setting: &'a Setting) -> impl Iterator<Item = (&'a str, &'a str)> {
        self.parameters.iter().zip(&setting.0).map(|(p, &v)| (p.name.as_str(), p.values[usize::from(v)].as_str()))
    }

    /// A setting for people: `idle_time=8ms cache_size=1`.
    pub fn shown(&self, setting: &Setting) -> String {
        self.values(setting).map(|(n, v)| format!("{n}={v}")).collect::<Vec<_>>().join(" ")
    }

    /// The part of a setting that moves `node`: the index of each parameter that does, `None` for the others.
    pub fn key(&self, node: &str, setting: &Setting) -> Key {
        let part = |(p, &v): (&Parameter, &u16)| p.moves.iter().any(|m| m == node).then_some(v);
        Key(self.parameters.iter().zip(&setting.0).map(part).collect())
    }

    /// The fewest settings that show every node under each combination of the parameters that move it: one after the
    /// other, a setting that shows the most that is new. With parameters that move different nodes that is
    /// O(Σ values) instead of O(Π values) (OpTune §5.2.4).
    pub fn to_profile(&self, nodes: &[String]) -> Vec<Setting> {
        let mut wanted: std::collections::BTreeSet<(usize, Key)> = std::collections::BTreeSet::new();
        for s in self.settings() {
            wanted.extend(nodes.iter().enumerate().map(|(i, n)| (i, self.key(n, &s))));
        }
        let mut chosen = Vec::new();
        let shows =
            |s: &Setting| -> Vec<(usize, Key)> { nodes.iter().enumerate().map(|(i, n)| (i, self.key(n, s))).collect() };
        // Looking at every setting for every choice is for small spaces; in large ones each node's combinations are
        // shown one by one, the parameters that don't move it at their first value.
        if self.len() > GREEDY_MAX {
            let first = |k: &Key| Setting(k.0.iter().map(|v| v.unwrap_or(0)).collect());
            let mut all: Vec<Setting> = wanted.iter().map(|(_, k)| first(k)).collect();
            all.sort();
            all.dedup();
            return all;
        }
        while !wanted.is_empty() {
            let new = |s: &Setting| shows(s).iter().filter(|k| wanted.contains(k)).count();
            // The first of the best, so that the order doesn't depend on anything else.
            let best = self.settings().map(|s| (new(&s), s)).reduce(|a, b| if b.0 > a.0 { b } else { a });
            let (gain, setting) = best.expect("there is a setting");
            assert!(gain > 0, "every key comes from a setting");
            shows(&setting).iter().for_each(|k| {
                wanted.remove(k);
            });
            chosen.push(setting);
        }
        chosen
    }
}

/// Values of the parameters that affect a node.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Key(pub Vec<Option<u16>>);

#[cfg(test)]
mod tests {
    use super::*;

    fn parameter(name: &str, n: usize, moves: &[&str]) -> Parameter {
        Parameter {
            name: name.into(),
            values: (0..n).map(|v| v.to_string()).collect(),
            moves: moves.iter().map(|m| m.to_string()).collect(),
        }
    }

    #[test]
    fn settings_count_up_and_have_names() {
        let s = Space::new(vec![parameter("a", 2, &[]), parameter("b", 3, &[])]).unwrap();
        let all: Vec<Vec<u16>> = s.settings().map(|s| s.0).collect();
        assert_eq!(all, [[0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [1, 2]]);
        assert_eq!(s.shown(&s.setting(4)), "a=1 b=1");
        assert_eq!(s.named(&[("b", "2"), ("a", "1")]), Some(Setting(vec![1, 2])));
        assert_eq!(s.named(&[("a", "1")]), None);
    }

    #[test]
    fn independent_parameters_need_a_sum_of_runs_not_a_product() {
        let s = Space::new(vec![parameter("a", 5, &["x"]), parameter("b", 4, &["y"])]).unwrap();
        assert_eq!(s.to_profile(&["x".into(), "y".into()]).len(), 5);
        let both = Space::new(vec![parameter("a", 5, &["x"]), parameter("b", 4, &["x"])]).unwrap();
        assert_eq!(both.to_profile(&["x".into(), "y".into()]).len(), 20);
    }

    #[test]
    fn bad_spaces_are_told() {
        for (p, says) in [
            (vec![parameter("a", 1, &[]), parameter("a", 1, &[])], "a name of its own"),
            (vec![parameter("a", 0, &[])], "no values"),
            (vec![parameter("a", 60_000, &[]), parameter("b", 60_000, &[])], "explore fewer"),
            (vec![Parameter { values: vec!["1".into(), "1".into()], ..parameter("a", 1, &[]) }], "twice"),
            (vec![parameter("count", 1, &[])], "that name is taken"),
            (vec![parameter("a b", 1, &[])], "letters, digits"),
            (vec![Parameter { values: vec!["1,5".into()], ..parameter("a", 1, &[]) }], "can't hold the value `1,5`"),
            (vec![Parameter { values: vec!["1 ".into()], ..parameter("a", 1, &[]) }], "can't hold the value `1 `"),
        ] {
            assert!(Space::new(p).unwrap_err().to_string().contains(says), "{says}");
        }
    }
}
