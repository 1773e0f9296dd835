//! The OSDs behind a pool on an RBD image: each one's forecast, and reads that are steered past those that stand out.

use super::page::{Family, Page};
use super::{About, Part, Shown};
use plimsoll_base::{Span, Time};
use plimsoll_sched::osds::{OsdView as Osd, Osds as Layer};
use plimsoll_stack::Stack;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// `GET /v1/pools/{name}/osds`: the OSDs that have an RBD image's objects.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct OsdsView {
    /// Epoch of the cluster's map; 0 before it is known.
    pub epoch: u64,
    /// Reason why reads aren't steered past slow OSDs. Absent: they are.
    pub unsteered: Option<String>,
    /// The OSDs.
    pub osds: Vec<OsdView>,
}

/// An OSD.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct OsdView {
    /// Its number in the cluster.
    pub osd: u32,
    /// Its CRUSH host.
    pub host: String,
    /// Forecast of a read of 4 KiB there now, microseconds.
    pub forecast_us: u64,
    /// Reads sent to it.
    pub reads: u64,
    /// Its share of the pool's reads, percent.
    pub share_percent: f64,
    /// Reads that stalled there.
    pub late: u64,
    /// Reads whose primary it is that went to a replica.
    pub steered: u64,
    /// Reads whose primary it is that were refused.
    pub refused: u64,
    /// Reads that were kept from a replica because their object had just been written.
    pub fresh: u64,
    /// It stands out: its reads stall, and are steered past it where that is possible.
    pub stands_out: bool,
}

/// The part.
pub struct Osds;

impl Part for Osds {
    type Seen = (u64, Option<String>, Vec<Osd>);
    type View = OsdsView;
    const NAME: &'static str = "osds";
    const SUMMARY: &'static str = "The OSDs of a pool on an RBD image: forecasts, and reads steered past slow ones";
    const HOW: &'static str = "pools whose device is an RBD image have it, unless `sched` says otherwise";

    fn look(stack: &Stack, now: Time) -> Option<Self::Seen> {
        stack.layer::<Layer>().map(|l| (l.epoch(), l.unsteered().map(Into::into), l.view(now)))
    }

    fn view((epoch, unsteered, osds): &Self::Seen, _: &About) -> OsdsView {
        let all: u64 = osds.iter().map(|o| o.reads).sum();
        let of = |o: &Osd| OsdView {
            osd: o.number,
            host: o.host.clone(),
            forecast_us: Span::from_nanos(o.forecast_ns).as_micros(),
            reads: o.reads,
            share_percent: if all == 0 { 0.0 } else { o.reads as f64 * 100.0 / all as f64 },
            late: o.late,
            steered: o.steered,
            refused: o.refused,
            fresh: o.fresh,
            stands_out: o.stands_out,
        };
        OsdsView { epoch: *epoch, unsteered: unsteered.clone(), osds: osds.iter().map(of).collect() }
    }

    fn shown(v: &OsdsView) -> Shown {
        let out: Vec<String> = v.osds.iter().filter(|o| o.stands_out).map(|o| format!("osd.{}", o.osd)).collect();
        let mut shown = match v.epoch {
            0 => Shown::new("the cluster's map isn't known yet: all is taken for one OSD"),
            epoch => Shown::new(format!("{} OSDs (map {epoch}), {} of them stand out", v.osds.len(), out.len())),
        };
        if !out.is_empty() {
            let so = if v.unsteered.is_none() { "are" } else { "aren't" };
            shown.problem = Some(format!("{}: reads stall there, and {so} steered to replicas", out.join(", ")));
        }
        if let Some(why) = &v.unsteered {
            shown.line("not steered", why.clone());
        }
        let row = |o: &OsdView| {
            vec![
                format!("osd.{}{}", o.osd, if o.stands_out { " (!)" } else { "" }),
                o.host.clone(),
                format!("{}", Span::from_micros(o.forecast_us)),
                format!("{:.1} %", o.share_percent),
                o.late.to_string(),
                o.steered.to_string(),
                o.refused.to_string(),
                o.fresh.to_string(),
            ]
        };
        shown.table(
            &["OSD", "host", "forecast", "share", "late", "steered", "refused", "fresh"],
            v.osds.iter().map(row).collect(),
        );
        shown
    }

    fn metrics(page: &mut Page, pools: &[(&str, OsdsView)]) {
        let named: Vec<(&str, String, &OsdView)> =
            pools.iter().flat_map(|(pool, v)| v.osds.iter().map(move |o| (*pool, o.osd.to_string(), o))).collect();
        let of: Vec<_> = named.iter().map(|(pool, osd, o)| (vec![("pool", *pool), ("osd", &**osd)], *o)).collect();
        page.families(OSDS, &of);
    }
}

/// Metrics of OSDs.
const OSDS: &[Family<OsdView>] = &[
    ("plimsoll_osd_stands_out", "1 while reads of this OSD stall and are steered past it.", |o| {
        f64::from(u8::from(o.stands_out))
    }),
    ("plimsoll_osd_forecast_seconds", "Forecast of a read of 4 KiB at this OSD.", |o| o.forecast_us as f64 / 1e6),
    ("plimsoll_osd_reads_total", "Reads sent to this OSD.", |o| o.reads as f64),
    ("plimsoll_osd_late_total", "Reads that stalled at this OSD.", |o| o.late as f64),
    ("plimsoll_osd_steered_total", "Reads whose primary this OSD is that went to a replica.", |o| o.steered as f64),
    ("plimsoll_osd_refused_total", "Reads whose primary this OSD is that were refused.", |o| o.refused as f64),
    ("plimsoll_osd_fresh_total", "Reads kept from a replica because their object had just been written.", |o| {
        o.fresh as f64
    }),
];
