//! The one face that everything tunable has: it is set, and it is measured.

use crate::graph::ServiceGraph;
use crate::profile::{Observation, Profile};
use crate::space::{Setting, Space};
use plimsoll_base::Span;
use std::collections::BTreeMap;
use std::fmt;

/// What one measurement gave: observations by node. Under the name of the graph's root: whole requests.
pub type Run = BTreeMap<String, Vec<Observation>>;

/// Why a system could not be set or measured.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AdapterError(pub String);

impl fmt::Display for AdapterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
impl std::error::Error for AdapterError {}

/// A system that can be tuned.
pub trait Adapter {
    /// Puts a setting in place; when it returns, new requests are served under it.
    ///
    /// # Errors
    /// If the system can't be set so.
    fn apply(&mut self, setting: &Setting) -> Result<(), AdapterError>;

    /// Measures what is served during the next `time`.
    ///
    /// # Errors
    /// If nothing could be measured.
    fn measure(&mut self, time: Span) -> Result<Run, AdapterError>;
}

/// An adapter that remembers what last worked, and goes back to it when something doesn't.
pub struct Guarded<'a> {
    adapter: &'a mut dyn Adapter,
    space: &'a Space,
    applied: Option<Setting>,
    good: Option<Setting>,
}

impl<'a> Guarded<'a> {
    /// Nothing is known to work yet; `good`, if given, is what the system runs with now.
    pub fn new(adapter: &'a mut dyn Adapter, space: &'a Space, good: Option<Setting>) -> Guarded<'a> {
        Guarded { adapter, space, applied: good.clone(), good }
    }

    /// The last setting under which the system was measured.
    pub fn last_good(&self) -> Option<&Setting> {
        self.good.as_ref()
    }

    /// Sets the system, unless it's set so already.
    ///
    /// # Errors
    /// The adapter's, and what became of putting the last good setting back.
    pub fn apply(&mut self, setting: &Setting) -> Result<(), AdapterError> {
        if self.applied.as_ref() == Some(setting) {
            return Ok(());
        }
        self.applied = None;
        match self.adapter.apply(setting) {
            Ok(()) => {
                self.applied = Some(setting.clone());
                Ok(())
            }
            Err(e) => Err(self.put_back(&format!("applying {}: {e}", self.space.shown(setting)))),
        }
    }

    /// Measures under what is applied; what can be measured works.
    ///
    /// # Errors
    /// As [`Guarded::apply`].
    pub fn measure(&mut self, time: Span) -> Result<Run, AdapterError> {
        match self.adapter.measure(time) {
            Ok(run) => {
                self.good = self.applied.clone();
                Ok(run)
            }
            Err(e) => Err(self.put_back(&format!("measuring: {e}"))),
        }
    }

    fn put_back(&mut self, what: &str) -> AdapterError {
        let Some(good) = self.good.clone() else {
            return AdapterError(format!("{what}; no setting was known to work before, so none was put back"));
        };
        self.applied = None;
        let shown = self.space.shown(&good);
        match self.adapter.apply(&good) {
            Ok(()) => {
                self.applied = Some(good);
                AdapterError(format!("{what}; put back to {shown}, which worked last"))
            }
            Err(e) => AdapterError(format!("{what}; and putting back {shown}, which worked last, failed too: {e}")),
        }
    }
}

/// The name under which a profile has whole requests served right after a switch; no node may have it.
pub const SETTLING: &str = "(settling)";

/// Profiles: applies each setting, lets it settle, measures, and records what each node took. Ends where it began, if
/// that is known. `progress` hears after each setting.
///
/// # Errors
/// The adapter's; the system is then back at what worked last.
pub fn profile(
    guarded: &mut Guarded<'_>,
    graph: &ServiceGraph,
    settings: &[Setting],
    settle: Span,
    time: Span,
    progress: &mut dyn FnMut(usize),
) -> Result<Profile, AdapterError> {
    let before = guarded.last_good().cloned();
    let mut profile = Profile::new();
    for (n, setting) in settings.iter().enumerate() {
        guarded.apply(setting)?;
        if settle > Span::ZERO {
            // What is served right after a switch is no part of the steady state, but it's what a switch costs (OT-A5).
            let run = guarded.measure(settle)?;
            let settling = requests(graph, &run)?.to_vec();
            record(&mut profile, setting, n as u64, Run::from([(SETTLING.to_string(), settling)]));
        }
        let run = guarded.measure(time)?;
        record(&mut profile, setting, n as u64, run);
        progress(n + 1);
    }
    if let Some(b) = before {
        guarded.apply(&b)?;
    }
    Ok(profile)
}

/// Adds a run to a profile. Requests of different runs get different numbers.
pub fn record(profile: &mut Profile, setting: &Setting, run_number: u64, run: Run) {
    for (node, observations) in run {
        for o in observations {
            let request = run_number << 40 | o.request & ((1 << 40) - 1);
            profile.add(&node, setting, Observation { request, ..o });
        }
    }
}

/// A run's whole requests.
///
/// # Errors
/// If the adapter doesn't measure them.
pub fn requests<'a>(graph: &ServiceGraph, run: &'a Run) -> Result<&'a [Observation], AdapterError> {
    let root = &graph.nodes()[graph.root()].name;
    run.get(root).map(Vec::as_slice).filter(|o| !o.is_empty()).ok_or_else(|| {
        AdapterError(format!("no whole requests were measured: report their times under the root's name, `{root}`"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::space::Parameter;

    /// Fails at the n-th call.
    struct Flaky {
        calls: usize,
        fails_at: usize,
        applied: Vec<u16>,
    }
    impl Flaky {
        fn call(&mut self) -> Result<(), AdapterError> {
            self.calls += 1;
            if self.calls == self.fails_at { Err(AdapterError("it broke".into())) } else { Ok(()) }
        }
    }
    impl Adapter for Flaky {
        fn apply(&mut self, setting: &Setting) -> Result<(), AdapterError> {
            self.call()?;
            self.applied.push(setting.0[0]);
            Ok(())
        }
        fn measure(&mut self, _time: Span) -> Result<Run, AdapterError> {
            self.call()?;
            Ok(BTreeMap::from([("r".to_string(), vec![Observation { request: 1, value: 1.0, weight: 1.0 }])]))
        }
    }

    fn graph() -> ServiceGraph {
        let written: crate::graph::WrittenGraph = toml::from_str("root = 'r'\ncomponents = ['r']").unwrap();
        ServiceGraph::new(&written).unwrap()
    }

    fn space() -> Space {
        let values = (0..3).map(|v| v.to_string()).collect();
        Space::new(vec![Parameter { name: "a".into(), values, moves: vec![] }]).unwrap()
    }

    #[test]
    fn whatever_fails_the_last_good_setting_comes_back() {
        let space = space();
        let settings: Vec<Setting> = space.settings().collect();
        let run = |fails_at| {
            let mut flaky = Flaky { calls: 0, fails_at, applied: Vec::new() };
            let mut g = Guarded::new(&mut flaky, &space, None);
            let r = profile(&mut g, &graph(), &settings, Span::ZERO, Span::from_secs(1), &mut |_| {});
            let e = r.err().map(|e| e.to_string()).unwrap_or_default();
            (flaky.applied, e)
        };
        assert_eq!(run(99), (vec![0, 1, 2], String::new()));
        let (applied, e) = run(1);
        assert!(applied.is_empty() && e.contains("applying a=0: it broke; no setting was known"), "{e}");
        let (applied, e) = run(5); // applying the third
        assert_eq!(applied, [0, 1, 1]);
        assert!(e.contains("applying a=2: it broke; put back to a=1"), "{e}");
        let (applied, e) = run(4); // measuring the second
        assert_eq!(applied, [0, 1, 0]);
        assert!(e.contains("measuring: it broke; put back to a=0"), "{e}");
    }

    #[test]
    fn a_profile_ends_where_it_began() {
        let space = space();
        let mut flaky = Flaky { calls: 0, fails_at: 0, applied: Vec::new() };
        let mut g = Guarded::new(&mut flaky, &space, Some(Setting(vec![1])));
        let settings: Vec<Setting> = space.settings().collect();
        let p = profile(&mut g, &graph(), &settings, Span::ZERO, Span::from_secs(1), &mut |_| {}).unwrap();
        assert_eq!((flaky.applied, p.of_node("r").count()), (vec![0, 1, 2, 1], 3));
    }
}
