//! The one face that everything tunable has: it is set, and it is measured.

use crate::graph::ServiceGraph;
use crate::profile::{Observation, Profile};
use crate::space::{Setting, Space};
use plimsoll_base::Span;
use std::collections::BTreeMap;
use std::fmt;

/// Result of one measurement: observations by node. Under the name of the graph's root: whole requests.
pub type Run = BTreeMap<String, Vec<Observation>>;

/// Reason why a system could not be set or measured.
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
    /// Setting that worked before the experiment in progress.
    home: Option<Setting>,
}

impl<'a> Guarded<'a> {
    /// Nothing is known to work yet; `good`, if given, is what the system runs with now.
    pub fn new(adapter: &'a mut dyn Adapter, space: &'a Space, good: Option<Setting>) -> Guarded<'a> {
        Guarded { adapter, space, applied: good.clone(), good, home: None }
    }

    /// The last setting under which the system was measured.
    pub fn last_good(&self) -> Option<&Setting> {
        self.good.as_ref()
    }

    /// Runs an experiment. At any end of it, the system goes back to the setting that worked before, if that is known, and not to
    /// the last one tried.
    ///
    /// # Errors
    /// The experiment's, and what became of putting the setting back.
    pub fn experiment<T>(
        &mut self,
        tries: impl FnOnce(&mut Self) -> Result<T, AdapterError>,
    ) -> Result<T, AdapterError> {
        self.home.clone_from(&self.good);
        let tried = tries(self);
        match (tried, self.home.take()) {
            (Ok(t), Some(home)) => {
                self.good = Some(home.clone());
                self.apply(&home)?;
                Ok(t)
            }
            // What failed wasn't the adapter, which puts things back itself.
            (Err(e), Some(home)) => {
                self.good = Some(home);
                Err(self.put_back(&e.0))
            }
            (tried, None) => tried,
        }
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

    /// Applies a setting, lets it settle and warm up, and measures: what was served while it settled, if it's to settle, and
    /// what was served then.
    ///
    /// # Errors
    /// As [`Guarded::apply`].
    pub fn try_out(&mut self, setting: &Setting, lengths: &Lengths) -> Result<(Option<Run>, Run), AdapterError> {
        self.apply(setting)?;
        let settling = if lengths.settle > Span::ZERO { Some(self.measure(lengths.settle)?) } else { None };
        self.warm(lengths)?;
        Ok((settling, self.measure(lengths.time)?))
    }

    /// A measurement that nobody looks at, under what is applied (OT-M4).
    ///
    /// # Errors
    /// As [`Guarded::apply`].
    pub fn warm(&mut self, lengths: &Lengths) -> Result<(), AdapterError> {
        if lengths.warm > Span::ZERO {
            self.measure(lengths.warm)?;
        }
        Ok(())
    }

    fn put_back(&mut self, what: &str) -> AdapterError {
        let Some(good) = self.home.take().or_else(|| self.good.clone()) else {
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

/// Lengths of the phases in which each setting is tried.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lengths {
    /// Right after a switch: recorded apart, as what the switch costs. Zero: not at all.
    pub settle: Span,
    /// Then, not recorded: until caches hold what they hold in the long run. Zero: not at all.
    pub warm: Span,
    /// Time of recording.
    pub time: Span,
}

/// The name under which a profile has whole requests served right after a switch; no node may have it.
pub const SETTLING: &str = "(settling)";

/// A profile that ended early.
#[derive(Clone, PartialEq, Debug)]
pub struct Incomplete {
    /// Observations recorded until then.
    pub recorded: Profile,
    /// Reason for the end.
    pub why: AdapterError,
}

impl fmt::Display for Incomplete {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.why.fmt(f)
    }
}
impl std::error::Error for Incomplete {}

/// Profiles: applies each setting, lets it settle and warm up, measures, and records what each node took. Ends where it began,
/// if that is known. `progress` hears after each setting.
///
/// # Errors
/// The adapter's, with what was recorded until then; the system is back at what worked before.
pub fn profile(
    guarded: &mut Guarded<'_>,
    graph: &ServiceGraph,
    settings: &[Setting],
    lengths: &Lengths,
    progress: &mut dyn FnMut(usize),
) -> Result<Profile, Incomplete> {
    let mut profile = Profile::new();
    let all = guarded.experiment(|guarded| {
        for (n, setting) in settings.iter().enumerate() {
            let (settling, run) = guarded.try_out(setting, lengths)?;
            if let Some(s) = settling {
                // What is served right after a switch is no part of the steady state, but it's what a switch costs (OT-A5).
                let settling = requests(graph, &s)?.to_vec();
                record(&mut profile, setting, n as u64, Run::from([(SETTLING.to_string(), settling)]));
            }
            record(&mut profile, setting, n as u64, run);
            progress(n + 1);
        }
        Ok(())
    });
    match all {
        Ok(()) => Ok(profile),
        Err(why) => Err(Incomplete { recorded: profile, why }),
    }
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

    const SECOND: Lengths = Lengths { settle: Span::ZERO, warm: Span::ZERO, time: Span::from_secs(1) };

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
            let r = profile(&mut g, &graph(), &settings, &SECOND, &mut |_| {});
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
        let p = profile(&mut g, &graph(), &settings, &SECOND, &mut |_| {}).unwrap();
        assert_eq!((flaky.applied, p.of_node("r").count()), (vec![0, 1, 2, 1], 3));
    }

    #[test]
    fn an_experiment_that_fails_ends_where_it_began_with_what_it_recorded() {
        let space = space();
        let settings: Vec<Setting> = space.settings().collect();
        let mut flaky = Flaky { calls: 0, fails_at: 6, applied: Vec::new() }; // measuring the third
        let mut g = Guarded::new(&mut flaky, &space, Some(Setting(vec![1])));
        let e = profile(&mut g, &graph(), &settings, &SECOND, &mut |_| {}).unwrap_err();
        assert_eq!(e.recorded.of_node("r").count(), 2);
        assert!(e.to_string().contains("put back to a=1"), "{e}");
        assert_eq!(flaky.applied, [0, 1, 2, 1]);
        // What was measured has no whole requests: no fault of the adapter, and still no reason to stay.
        let other: crate::graph::WrittenGraph = toml::from_str("root = 'q'\ncomponents = ['q']").unwrap();
        let mut flaky = Flaky { calls: 0, fails_at: 0, applied: Vec::new() };
        let mut g = Guarded::new(&mut flaky, &space, Some(Setting(vec![1])));
        let lengths = Lengths { settle: Span::from_secs(1), ..SECOND };
        let e = profile(&mut g, &ServiceGraph::new(&other).unwrap(), &settings, &lengths, &mut |_| {}).unwrap_err();
        assert!(e.to_string().contains("no whole requests") && e.to_string().contains("put back to a=1"), "{e}");
        assert_eq!(flaky.applied, [0, 1]);
    }

    #[test]
    fn a_warm_up_is_measured_and_not_recorded() {
        let space = space();
        let mut flaky = Flaky { calls: 0, fails_at: 0, applied: Vec::new() };
        let mut g = Guarded::new(&mut flaky, &space, None);
        let settings: Vec<Setting> = space.settings().collect();
        let lengths = Lengths { warm: Span::from_secs(5), ..SECOND };
        let p = profile(&mut g, &graph(), &settings, &lengths, &mut |_| {}).unwrap();
        assert!(p.of_node("r").all(|(_, o)| o.len() == 1));
        assert_eq!(flaky.calls, 9, "each setting is applied, warmed up and measured");
    }
}
