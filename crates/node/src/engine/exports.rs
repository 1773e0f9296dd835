//! Exports: the counters of each tenant on each volume, and its deadline if that sets itself.

use super::auto_deadline::{AutoDeadline, AutoTerms};
use super::metrics::ExportMetrics;
use crate::view::ExportView;
use plimsoll_base::{Completion, Span, TenantId, Time, VolumeKey};
use slab::Slab;
use std::collections::BTreeMap;

/// The last number under which the stack accounts for exports. Unit tests have fewer.
pub const ACCOUNT_MAX: u16 = if cfg!(test) { 7 } else { u16::MAX };

/// The number under which the stack accounts for an export. Past the last number they share it.
#[inline]
pub fn account_of(place: usize) -> u16 {
    place.min(usize::from(ACCOUNT_MAX)) as u16
}

struct Export {
    key: VolumeKey,
    tenant: TenantId,
    metrics: ExportMetrics,
    /// For reads that come without a deadline, where the tenant has one that sets itself.
    auto: Option<AutoDeadline>,
}

/// See the module's documentation.
#[derive(Default)]
pub struct Exports {
    all: Slab<Export>,
    places: BTreeMap<(VolumeKey, TenantId), usize>,
}

impl Exports {
    /// Returns the place of a tenant's export of a volume, which is made at the first use.
    #[inline]
    pub fn place(&mut self, key: VolumeKey, tenant: TenantId, auto: Option<AutoTerms>) -> usize {
        *self.places.entry((key, tenant)).or_insert_with(|| {
            let auto = auto.map(|terms| terms.begin());
            self.all.insert(Export { key, tenant, metrics: ExportMetrics::default(), auto })
        })
    }

    /// The deadline that sets itself, as it is now; that of `terms` before the first read.
    pub fn auto_deadline(&self, key: VolumeKey, tenant: TenantId, terms: AutoTerms) -> Span {
        let export = self.places.get(&(key, tenant)).map(|at| &self.all[*at]);
        export.and_then(|e| e.auto.as_ref()).map_or(terms.most, AutoDeadline::deadline)
    }

    /// A read without a deadline of its own took so long, or (`None`) was refused: teaches the deadline that sets itself.
    #[inline]
    pub fn teach(&mut self, place: usize, took: Option<Span>) {
        if let Some(auto) = &mut self.all[place].auto {
            auto.ended(took);
        }
    }

    /// Counts a request that was refused at once.
    #[inline]
    pub fn refused(&mut self, place: usize) {
        self.all[place].metrics.busy_refused += 1;
    }

    /// Counts a request that ended.
    #[inline]
    pub fn ended(&mut self, place: usize, now: Time, c: &Completion) {
        self.all[place].metrics.ended(now, c);
    }

    /// Copies the counters of the first export at `from` or after it, with its place.
    pub fn view(&mut self, from: usize, now: Time) -> Option<(usize, ExportView)> {
        let (place, e) = self.all.iter_mut().find(|(place, _)| *place >= from)?;
        e.metrics.minutes.turn(now);
        e.metrics.seconds.turn(now);
        let auto_deadline = e.auto.as_ref().map(AutoDeadline::deadline);
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
        (0..3).for_each(|at| all.refused(at));
        assert_eq!(all.forget(|key, _| key == VOLUMES[0]), [0, 1]);
        let refused = |all: &mut Exports, at| all.view(at, Time::ZERO).map(|(at, v)| (at, v.busy_refused));
        assert_eq!((refused(&mut all, 0), refused(&mut all, 3)), (Some((2, 1)), None));
        let anew = place(&mut all, 0, 1);
        assert_eq!(refused(&mut all, anew), Some((anew, 0)));
    }

    #[test]
    fn each_export_learns_its_own_deadline() {
        let mut all = Exports::default();
        let terms = AutoTerms { refuse_permille: 50, least: Span::from_millis(1), most: Span::from_millis(100) };
        let deadline = |all: &Exports, t: usize| all.auto_deadline(VOLUMES[0], TENANTS[t], terms);
        assert_eq!(deadline(&all, 0), terms.most, "nothing is known yet");
        let places = TENANTS.map(|t| all.place(VOLUMES[0], t, Some(terms)));
        (0..1000).for_each(|_| all.teach(places[0], Some(Span::from_millis(2))));
        assert!(deadline(&all, 0) < terms.most);
        assert_eq!(deadline(&all, 1), terms.most);
    }
}
