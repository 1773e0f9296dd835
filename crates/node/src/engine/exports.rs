//! Exports: the counters of each tenant on each volume, and its deadline if that sets itself.

use super::auto_deadline::{AutoDeadline, AutoTerms};
use super::metrics::ExportMetrics;
use super::refusals::Spared;
use crate::view::{ExportPromise, ExportView, History};
use plimsoll_base::{Class, Completion, Objective, Op, Span, TenantId, Time, VolumeKey};
use plimsoll_stack::layer::NODES_MAX;
use slab::Slab;
use std::collections::BTreeMap;

/// The last number under which the stack accounts for exports. Unit tests have fewer.
pub const ACCOUNT_MAX: u16 = if cfg!(test) { 7 } else { u16::MAX };

/// The number under which the stack accounts for an export. Past the last number they share it.
#[inline]
pub fn account_of(place: usize) -> u16 {
    place.min(usize::from(ACCOUNT_MAX)) as u16
}

/// Time of an export's requests: in each layer, and at the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Waits {
    /// By layer, before it passed them on.
    pub by_layer: [Span; NODES_MAX],
    /// From the first dispatch to the end, of those that were done.
    pub at_device: Span,
}

impl Waits {
    fn since(&self, earlier: &Waits) -> Waits {
        let part = |n: usize| self.by_layer[n].saturating_sub(earlier.by_layer[n]);
        Waits { by_layer: std::array::from_fn(part), at_device: self.at_device.saturating_sub(earlier.at_device) }
    }
}

/// The waits at the beginnings of the two newest minutes in which a request ended.
#[derive(Clone, Copy, Debug, Default)]
struct Marks([(u64, Waits); 2]);

impl Marks {
    /// The first request of a minute has ended.
    fn begin(&mut self, minute: u64, waits: Waits) {
        self.0 = [self.0[1], (minute, waits)];
    }

    /// Waits of the last whole minute and of the running one.
    fn since(&self, minute: u64, now: &Waits) -> Waits {
        let [older, newer] = &self.0;
        if newer.0 + 1 < minute {
            return Waits::default(); // nothing has ended since
        }
        let from = if older.0 + 1 == minute && newer.0 == minute { older } else { newer };
        now.since(&from.1)
    }
}

const MINUTE: Span = Span::from_secs(60);

fn minute_of(now: Time) -> u64 {
    now.as_nanos() / MINUTE.as_nanos()
}

struct Export {
    key: VolumeKey,
    tenant: TenantId,
    metrics: ExportMetrics,
    marks: Marks,
    /// For reads that come without a deadline, where the tenant has one that sets itself.
    auto: Option<Auto>,
}

/// A deadline that sets itself.
struct Auto {
    terms: AutoTerms,
    /// Number of changes of the directory before the terms were read.
    as_of: u64,
    learned: AutoDeadline,
}

/// See the module's documentation.
#[derive(Default)]
pub struct Exports {
    all: Slab<Export>,
    places: BTreeMap<(VolumeKey, TenantId), usize>,
    /// Of the tenants that have some.
    objectives: BTreeMap<TenantId, Vec<Objective>>,
}

impl Exports {
    /// Returns the place of a tenant's export of a volume, which is made at the first use. `auto` has the terms of a deadline that sets
    /// itself, and the number of changes of the directory before they were read. The deadline goes on under newer terms from where it is.
    ///
    /// Each request of a connection has the terms that held when the connection began. So older terms, or none, change nothing.
    #[inline]
    pub fn place(&mut self, key: VolumeKey, tenant: TenantId, auto: Option<(AutoTerms, u64)>) -> usize {
        let place = *self.places.entry((key, tenant)).or_insert_with(|| {
            let mut metrics = ExportMetrics::default();
            metrics.set_objectives(self.objectives.get(&tenant).map_or(&[], Vec::as_slice));
            self.all.insert(Export { key, tenant, metrics, marks: Marks::default(), auto: None })
        });
        let kept = &mut self.all[place].auto;
        if let Some((terms, as_of)) = auto
            && kept.as_ref().is_none_or(|k| k.as_of < as_of)
        {
            let learned = match kept.take() {
                Some(Auto { terms: same, learned, .. }) if same == terms => learned,
                before => terms.go_on_from(before.map_or(terms.most, |k| k.learned.deadline())),
            };
            *kept = Some(Auto { terms, as_of, learned });
        }
        place
    }

    /// A tenant's class, whose objectives are counted from now on; `None`: it goes.
    pub fn set_class(&mut self, tenant: TenantId, class: Option<&Class>) {
        let objectives = match class {
            Some(Class::LatencyCritical { objectives, .. }) => objectives.clone(),
            _ => Vec::new(),
        };
        self.all
            .iter_mut()
            .filter(|(_, e)| e.tenant == tenant)
            .for_each(|(_, e)| e.metrics.set_objectives(&objectives));
        if objectives.is_empty() {
            self.objectives.remove(&tenant);
        } else {
            self.objectives.insert(tenant, objectives);
        }
    }

    /// The deadline that sets itself, as it is now; that of `terms` before the first read.
    pub fn auto_deadline(&self, key: VolumeKey, tenant: TenantId, terms: AutoTerms) -> Span {
        let export = self.places.get(&(key, tenant)).map(|at| &self.all[*at]);
        export.and_then(|e| e.auto.as_ref()).map_or(terms.most, |auto| auto.learned.deadline())
    }

    /// A read without a deadline of its own took so long, or (`None`) was refused: teaches the deadline that sets itself.
    #[inline]
    pub fn teach(&mut self, place: usize, took: Option<Span>) {
        if let Some(auto) = &mut self.all[place].auto {
            auto.learned.ended(took);
        }
    }

    /// Counts a request that was refused at once.
    #[inline]
    pub fn refused(&mut self, place: usize, now: Time) {
        self.all[place].metrics.refused(now);
    }

    /// Counts a read that is served, however late, by a rule of refusals.
    pub fn spared(&mut self, place: usize, rule: Spared) {
        self.all[place].metrics.spared().count(rule);
    }

    /// Such a read is done, so long after its arrival.
    pub fn spared_took(&mut self, place: usize, response: Span) {
        self.all[place].metrics.spared().response.record(response);
    }

    /// Counts a request that ended. True if it is the first of its minute: then [`Exports::mark`] is due.
    #[inline]
    pub fn ended(&mut self, place: usize, now: Time, c: &Completion) -> bool {
        let e = &mut self.all[place];
        e.metrics.ended(now, c);
        e.marks.0[1].0 != minute_of(now)
    }

    /// Counts a request that an injected error ended.
    pub fn injected(&mut self, place: usize, op: Op) {
        self.all[place].metrics.injected(op);
    }

    /// Remembers where an export's time went until now.
    pub fn mark(&mut self, place: usize, now: Time, by_layer: [Span; NODES_MAX]) {
        let e = &mut self.all[place];
        e.marks.begin(minute_of(now), Waits { by_layer, at_device: e.metrics.device.sum() });
    }

    /// An export's waits in the last whole minute and in the running one. `by_layer` is since the start.
    pub fn waits(&self, place: usize, now: Time, by_layer: [Span; NODES_MAX]) -> Waits {
        let e = &self.all[place];
        e.marks.since(minute_of(now), &Waits { by_layer, at_device: e.metrics.device.sum() })
    }

    /// Promises in the last minute, of exports with requests in it.
    pub fn promises(&mut self, now: Time) -> Vec<ExportPromise> {
        let of = |e: &mut Export| {
            e.metrics.turn(now);
            let promise = ExportPromise::of(e.key, e.tenant, &e.metrics);
            (!promise.is_empty()).then_some(promise)
        };
        self.all.iter_mut().filter_map(|(_, e)| of(e)).collect()
    }

    /// The last minute by seconds, the last hour by minutes, and the last day by ten minutes, of a volume's or a tenant's exports, or all.
    pub fn history(&mut self, now: Time, volume: Option<VolumeKey>, tenant: Option<TenantId>) -> History {
        let is_meant = |e: &Export| volume.is_none_or(|v| v == e.key) && tenant.is_none_or(|t| t == e.tenant);
        let mut sum = History::default();
        for (_, e) in self.all.iter_mut().filter(|(_, e)| is_meant(e)) {
            e.metrics.turn(now);
            sum.add(&History::of(&e.metrics));
        }
        sum
    }

    /// The volume of the export at a place.
    pub fn key(&self, place: usize) -> Option<VolumeKey> {
        self.all.get(place).map(|e| e.key)
    }

    /// Copies the counters of the first export at `from` or after it, with its place.
    pub fn view(&mut self, from: usize, now: Time) -> Option<(usize, ExportView)> {
        let (place, e) = self.all.iter_mut().find(|(place, _)| *place >= from)?;
        e.metrics.turn(now);
        let auto_deadline = e.auto.as_ref().map(|auto| auto.learned.deadline());
        Some((place, ExportView { auto_deadline, ..ExportView::of(e.key, e.tenant, &e.metrics) }))
    }

    /// Forgets the exports that are `gone`, and returns their places: names come and go as long as the node runs.
    pub fn forget(&mut self, gone: impl Fn(VolumeKey, TenantId) -> bool) -> Vec<usize> {
        let places: Vec<usize> = self.all.iter().filter(|(_, e)| gone(e.key, e.tenant)).map(|(at, _)| at).collect();
        for place in &places {
            let e = self.all.remove(*place);
            self.places.remove(&(e.key, e.tenant));
        }
        places
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VOLUMES: [VolumeKey; 2] = [VolumeKey { id: 1, generation: 1 }, VolumeKey { id: 2, generation: 1 }];
    const TENANTS: [TenantId; 2] = [TenantId(1), TenantId(2)];

    #[test]
    fn a_forgotten_export_begins_anew() {
        let mut all = Exports::default();
        let place = |all: &mut Exports, v: usize, t: usize| all.place(VOLUMES[v], TENANTS[t], None);
        assert_eq!([place(&mut all, 0, 0), place(&mut all, 0, 1), place(&mut all, 1, 0)], [0, 1, 2]);
        assert_eq!(place(&mut all, 0, 1), 1, "the same again");
        (0..3).for_each(|at| all.refused(at, Time::ZERO));
        assert_eq!(all.forget(|key, _| key == VOLUMES[0]), [0, 1]);
        let refused = |all: &mut Exports, at| all.view(at, Time::ZERO).map(|(at, v)| (at, v.busy_refused));
        assert_eq!((refused(&mut all, 0), refused(&mut all, 3)), (Some((2, 1)), None));
        let anew = place(&mut all, 0, 1);
        assert_eq!(refused(&mut all, anew), Some((anew, 0)));
    }

    /// Waits are those since the last whole minute began, however long nothing ends.
    #[test]
    fn waits_are_of_the_last_minutes() {
        let waits = |s| Waits { at_device: Span::from_secs(s), ..Waits::default() };
        let mut marks = Marks::default();
        let since = |marks: &Marks, minute, s| marks.since(minute, &waits(s)).at_device.as_micros() / 1_000_000;
        assert_eq!(since(&marks, 0, 5), 5, "the first minute");
        marks.begin(1, waits(7));
        assert_eq!(since(&marks, 1, 9), 9, "the first minute and the running one");
        marks.begin(2, waits(20));
        assert_eq!(since(&marks, 2, 21), 14, "since minute 1 began");
        assert_eq!(since(&marks, 3, 22), 2, "minute 2, as nothing has ended since");
        assert_eq!(since(&marks, 4, 22), 0);
        marks.begin(9, waits(30));
        assert_eq!(since(&marks, 9, 31), 1, "the minute before had nothing");
    }

    #[test]
    fn each_export_learns_its_own_deadline() {
        let mut all = Exports::default();
        let terms = AutoTerms { refuse_permille: 50, least: Span::from_millis(1), most: Span::from_millis(100) };
        let deadline = |all: &Exports, t: usize| all.auto_deadline(VOLUMES[0], TENANTS[t], terms);
        assert_eq!(deadline(&all, 0), terms.most, "nothing is known yet");
        let places = TENANTS.map(|t| all.place(VOLUMES[0], t, Some((terms, 0))));
        (0..1000).for_each(|_| all.teach(places[0], Some(Span::from_millis(2))));
        assert!(deadline(&all, 0) < terms.most);
        assert_eq!(deadline(&all, 1), terms.most);
    }

    /// A reload gives a tenant such a deadline, and then other terms: exports that exist follow.
    #[test]
    fn an_export_takes_on_the_terms_of_a_reload() {
        let mut all = Exports::default();
        let terms = AutoTerms { refuse_permille: 50, least: Span::from_millis(1), most: Span::from_millis(100) };
        let deadline = |all: &Exports| all.auto_deadline(VOLUMES[0], TENANTS[0], terms);
        let place = all.place(VOLUMES[0], TENANTS[0], None);
        assert_eq!(all.place(VOLUMES[0], TENANTS[0], Some((terms, 3))), place);
        (0..20_000).for_each(|_| all.teach(place, Some(Span::from_millis(2))));
        let learned = deadline(&all);
        assert!(learned < Span::from_millis(50), "{learned}");
        all.place(VOLUMES[0], TENANTS[0], None); // a connection from before
        all.place(VOLUMES[0], TENANTS[0], Some((terms, 4)));
        assert_eq!(deadline(&all), learned, "nothing is forgotten");
        all.place(VOLUMES[0], TENANTS[0], Some((AutoTerms { most: learned / 2, ..terms }, 5)));
        assert_eq!(deadline(&all), learned / 2, "within the new bounds");
    }

    /// Connections from before a reload and from after it send by turns: the terms of the reload hold.
    #[test]
    fn older_connections_bring_no_older_terms_back() {
        let mut all = Exports::default();
        let before = AutoTerms { refuse_permille: 50, least: Span::from_millis(1), most: Span::from_millis(10) };
        let after = AutoTerms { least: Span::from_millis(40), most: Span::from_millis(100), ..before };
        for _ in 0..10 {
            for (terms, as_of) in [(before, 7), (after, 8)] {
                let place = all.place(VOLUMES[0], TENANTS[0], Some((terms, as_of)));
                all.teach(place, None);
            }
            assert!(all.auto_deadline(VOLUMES[0], TENANTS[0], before) >= after.least, "the older terms hold again");
        }
        let now = all.auto_deadline(VOLUMES[0], TENANTS[0], before);
        let place = all.place(VOLUMES[0], TENANTS[0], Some((before, 7)));
        assert_eq!(all.auto_deadline(VOLUMES[0], TENANTS[0], before), now, "an older connection changes nothing");
        (0..50).for_each(|_| all.teach(place, None));
        assert!(all.auto_deadline(VOLUMES[0], TENANTS[0], before) > now, "its reads teach");
    }
}
