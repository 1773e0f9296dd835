//! Limits of volumes' requests and bytes per second.

use super::page::{Family, Page};
use super::settings::{Live, VolumePart};
use super::{About, Part, Shown};
use crate::config::{BadConfig, Config, PoolConfig, ThrottleConfig};
use crate::reload::volume_section;
use plimsoll_base::{Span, Time, VolumeKey, bytes_text};
use plimsoll_stack::{OwnTerms, Stack};
use plimsoll_store::VolumeRecord;
use plimsoll_throttle::{Limit, ThrottleStatus, ThrottleTerms};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// `GET /v1/pools/{name}/throttle`: the limits of a pool's volumes.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ThrottleView {
    /// Every volume that has a limit.
    pub volumes: Vec<ThrottledVolume>,
}

/// A volume's limits.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ThrottledVolume {
    /// Name.
    pub volume: String,
    /// Requests per second; absent: no limit.
    pub iops: Option<u64>,
    /// Requests that go on at once after an idle time.
    pub iops_burst: Option<u64>,
    /// Bytes per second; absent: no limit.
    pub bandwidth_bytes: Option<u64>,
    /// Bytes that go on at once after an idle time.
    pub bandwidth_burst_bytes: Option<u64>,
    /// Requests that wait for a limit now.
    pub waiting: u64,
    /// Requests that had to wait, since the start.
    pub held: u64,
    /// Time that they waited, in total.
    pub waited_us: u64,
}

/// With less, a request of the largest size would hold the next one up for more than an hour.
const BANDWIDTH_MIN: u64 = 16 << 10;

/// Translates a volume's section into the terms of the layer.
///
/// # Errors
/// The limit that is out of range.
pub fn terms(c: &ThrottleConfig) -> Result<ThrottleTerms, BadConfig> {
    let limit = |per_s: Option<u64>, burst: Option<u64>, key: &str| match (per_s, burst) {
        (None, Some(_)) => Err(BadConfig::new(format!("throttle: {key}_burst means nothing without {key}"))),
        (None, None) => Ok(None),
        (Some(per_s), burst) => {
            let default = Limit::per_second(per_s);
            Ok(Some(Limit { burst: burst.unwrap_or(default.burst), ..default }))
        }
    };
    let terms = ThrottleTerms {
        requests: limit(c.iops, c.iops_burst, "iops")?,
        bytes: limit(c.bandwidth.map(|b| b.0), c.bandwidth_burst.map(|b| b.0), "bandwidth")?,
    };
    terms.check().map_err(|what| BadConfig::new(what).about("throttle"))?;
    if let Some(l) = terms.bytes.filter(|l| l.per_s < BANDWIDTH_MIN) {
        return Err(BadConfig::new(format!(
            "throttle: bandwidth of {} bytes per second is less than {BANDWIDTH_MIN}",
            l.per_s
        )));
    }
    Ok(terms)
}

fn view(volume: String, s: &ThrottleStatus) -> ThrottledVolume {
    let ThrottleTerms { requests, bytes } = s.terms;
    ThrottledVolume {
        volume,
        iops: requests.map(|l| l.per_s),
        iops_burst: requests.map(|l| l.burst),
        bandwidth_bytes: bytes.map(|l| l.per_s),
        bandwidth_burst_bytes: bytes.map(|l| l.burst),
        waiting: s.waiting as u64,
        held: s.held,
        waited_us: s.waited.as_micros(),
    }
}

/// The part.
pub struct Throttle;

impl Part for Throttle {
    type Seen = Vec<(VolumeKey, ThrottleStatus)>;
    type View = ThrottleView;
    const NAME: &'static str = "throttle";
    const SUMMARY: &'static str = "Limits of the requests and bytes per second of a pool's volumes";
    const HOW: &'static str = "say `throttle = true` in the pool's section";

    fn look(stack: &Stack, _: Time) -> Option<Self::Seen> {
        stack.layer::<plimsoll_throttle::Throttle>().map(|t| t.status().collect())
    }

    fn view(seen: &Self::Seen, about: &About) -> ThrottleView {
        ThrottleView { volumes: seen.iter().map(|(key, s)| view(about.volume_name(*key), s)).collect() }
    }

    fn shown(v: &ThrottleView) -> Shown {
        let waiting: u64 = v.volumes.iter().map(|v| v.waiting).sum();
        let mut shown =
            Shown::new(format!("{} volumes have limits, {waiting} requests wait for them", v.volumes.len()));
        let limit = |per_s: Option<u64>, burst: Option<u64>, text: fn(u64) -> String| match (per_s, burst) {
            (Some(per_s), Some(burst)) => format!("{}, bursts of {}", text(per_s), text(burst)),
            _ => "-".into(),
        };
        let row = |v: &ThrottledVolume| {
            vec![
                v.volume.clone(),
                limit(v.iops, v.iops_burst, |n| n.to_string()),
                limit(v.bandwidth_bytes, v.bandwidth_burst_bytes, bytes_text),
                v.waiting.to_string(),
                v.held.to_string(),
                Span::from_micros(v.waited_us).to_string(),
            ]
        };
        let head = ["VOLUME", "REQUESTS/S", "BYTES/S", "WAIT", "HELD", "WAITED"];
        shown.table(&head, v.volumes.iter().map(row).collect());
        shown
    }

    fn metrics(page: &mut Page, pools: &[(&str, ThrottleView)]) {
        let volumes = pools.iter().flat_map(|(pool, v)| v.volumes.iter().map(|volume| (*pool, volume)));
        let labelled = volumes.map(|(pool, v)| (vec![("pool", pool), ("volume", &*v.volume)], v));
        page.families(VOLUMES, &labelled.collect::<Vec<_>>());
    }

    fn check_config(config: &Config, pool: &PoolConfig) -> Result<(), BadConfig> {
        let mine = config.volume.iter().filter(|v| v.pool.get_ref() == pool.name.get_ref());
        for (v, throttle) in mine.filter_map(|v| Some((v, v.throttle.as_ref()?))) {
            let in_volume = |e: BadConfig| e.about(volume_section(v.name.get_ref()));
            if !pool.throttle {
                let what = "throttle means nothing without `throttle = true` in its pool";
                return Err(in_volume(BadConfig::new(what)));
            }
            terms(throttle).map_err(in_volume)?;
        }
        Ok(())
    }

    fn add_terms(_: &Live, _: &VolumeRecord, part: &VolumePart, own: OwnTerms) -> OwnTerms {
        own.with(&part.throttle)
    }
}

/// Metrics of a volume that has limits.
const VOLUMES: &[Family<ThrottledVolume>] = &[
    ("plimsoll_throttle_waiting", "Requests of a volume that wait for its limits.", |v| v.waiting as f64),
    ("plimsoll_throttle_held_total", "Requests of a volume that had to wait for its limits.", |v| v.held as f64),
    ("plimsoll_throttle_wait_seconds_total", "Sum of requests' waits for their volume's limits.", |v| {
        v.waited_us as f64 / 1e6
    }),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::ByteSize;

    #[test]
    fn a_section_becomes_limits() {
        let c = ThrottleConfig { iops: Some(100), bandwidth: Some(ByteSize(1 << 20)), ..ThrottleConfig::default() };
        let t = terms(&c).unwrap();
        assert_eq!(t.requests, Some(Limit { per_s: 100, burst: 10 }));
        assert_eq!(t.bytes, Some(Limit { per_s: 1 << 20, burst: (1 << 20) / 10 }));
        let refused = |c: ThrottleConfig| terms(&c).unwrap_err().to_string();
        assert!(refused(ThrottleConfig { iops: Some(0), ..ThrottleConfig::default() }).contains("0 per second"));
        let slow = ThrottleConfig { bandwidth: Some(ByteSize(1)), ..ThrottleConfig::default() };
        assert!(refused(slow).contains("is less than 16384"));
        assert!(refused(ThrottleConfig { iops_burst: Some(1), ..ThrottleConfig::default() }).contains("without iops"));
    }
}
