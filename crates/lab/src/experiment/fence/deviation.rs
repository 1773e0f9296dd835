//! VF-E2 to VF-E7: deviations.

use crate::experiment::fence::common_notes;
use crate::experiment::fence::machines::{ALL, Compared, HETEROGENEOUS, Times, cache_bytes, compare, is_cached, name};
use crate::experiment::fence::system::{Devices, System};
use crate::experiment::{Check, Experiment, Inputs, LabError, RowSpec, Sample};
use crate::plot::{Curve, Plot};
use crate::workload::filebench::Personality;
use plimsoll_cache::Sharing;

const DEVICES: &str = "hdd-160g-7200, vf-sata-60g";

fn curves(c: &Compared, of: &str) -> Vec<Curve> {
    let got = c.shared.got[0].as_ref().expect("the first machine ran");
    vec![Curve::of_histogram(of, &got.response).thinned()]
}

/// VF-E2: a fifth of saturation, without fences.
pub struct LowLoad;

impl Experiment for LowLoad {
    fn id(&self) -> &'static str {
        "VF-E2"
    }
    fn title(&self) -> &'static str {
        "Deviation without fences at 20 % of saturation"
    }
    fn source(&self) -> &'static str {
        "VirtualFence §4.4"
    }
    fn device(&self) -> &'static str {
        DEVICES
    }
    fn notes(&self) -> Vec<String> {
        let mut notes = common_notes();
        notes.push("machines of 2, 6, 6 and 6 %; under CFQ".into());
        notes
    }
    fn rows(&self, _inputs: &Inputs) -> Vec<RowSpec> {
        let mut rows = Vec::new();
        for device in ["HDD", "SSD"] {
            for p in ALL {
                let row = |what| RowSpec::new(format!("{device}: {}: {what}", name(p)), "%");
                rows.push(row("throughput deviation").check(Check::AtMost(15.0)).note("paper: relatively low"));
                rows.push(row("response deviation").note("paper: still significant"));
            }
        }
        rows
    }
    fn sample(&self, seed: u64, inputs: &Inputs) -> Result<Sample, LabError> {
        let mut values = Vec::new();
        for devices in [Devices::Hdd, Devices::Ssd] {
            for p in ALL {
                let system = System::new(devices, false, 0, seed);
                let c = compare(&system, p, &[2, 6, 6, 6], false, Times::of(inputs.quick))?;
                values.extend([Some(c.low.throughput), Some(c.low.response)]);
            }
        }
        Ok(Sample { values, ..Sample::default() })
    }
}

/// VF-E3: all three workloads behind fences.
pub struct Fenced;

impl Experiment for Fenced {
    fn id(&self) -> &'static str {
        "VF-E3"
    }
    fn title(&self) -> &'static str {
        "Deviation behind fences: VirtualFence(50 %, 20 ms), 4 slots"
    }
    fn source(&self) -> &'static str {
        "VirtualFence §4.6.1, Fig 4.4a"
    }
    fn device(&self) -> &'static str {
        DEVICES
    }
    fn notes(&self) -> Vec<String> {
        common_notes()
    }
    fn rows(&self, _inputs: &Inputs) -> Vec<RowSpec> {
        let mut rows = Vec::new();
        for p in ALL {
            let row = |what| RowSpec::new(format!("{}: {what}", name(p)), "%");
            rows.push(row("low-intensity machine, throughput deviation").paper(15.0, Check::AtMost(15.0)));
            rows.push(row("low-intensity machine, response deviation").paper(15.0, Check::AtMost(15.0)));
            rows.push(row("low-intensity machine, p99 deviation").check(Check::AtMost(15.0)).note("our goal"));
            rows.push(row("others, throughput deviation").paper(19.0, Check::AtMost(19.0)));
            rows.push(row("others, response deviation").paper(19.0, Check::AtMost(19.0)));
            rows.push(row("others, p99 deviation"));
            rows.push(row("hit ratio of reads").paper(50.0, Check::Within(45.0, 55.0)));
            rows.push(RowSpec::new(format!("{}: saturation", name(p)), "1/s"));
            rows.push(row("disk batches within ±5 ms of the prediction").paper(70.0, Check::AtLeast(70.0)));
            rows.push(row("flash batches within ±250 us of the prediction").paper(83.0, Check::AtLeast(83.0)));
        }
        rows
    }
    fn sample(&self, seed: u64, inputs: &Inputs) -> Result<Sample, LabError> {
        let mut sample = Sample::default();
        let mut shown = Vec::new();
        for p in ALL {
            let system = System::virtual_fence(cache_bytes(p, 50), seed);
            let c = compare(&system, p, &HETEROGENEOUS, true, Times::of(inputs.quick))?;
            let others = c.others.expect("asked for");
            for d in [c.low, others] {
                sample.values.extend([d.throughput, d.response, d.p99].map(Some));
            }
            sample.values.extend([Some(c.shared.hit_percent), Some(c.saturation)]);
            let fence = c.shared.fence.as_ref().expect("it has one");
            let within = |i: usize| {
                let b = fence.devices[i];
                (b.batches > 0).then(|| 100.0 * b.within as f64 / b.batches as f64)
            };
            sample.values.extend([within(0), within(1)]);
            shown.extend(curves(&c, name(p)));
        }
        sample.plots.push(Plot::of_times("Low-intensity machine beside others, response times", shown));
        Ok(sample)
    }
}

/// VF-E4: more hits.
pub struct HitRates;

const HITS: [u32; 3] = [50, 75, 100];

impl Experiment for HitRates {
    fn id(&self) -> &'static str {
        "VF-E4"
    }
    fn title(&self) -> &'static str {
        "Fileserver's deviation behind fences by hit ratio"
    }
    fn source(&self) -> &'static str {
        "VirtualFence §4.6.1, Fig 4.4b"
    }
    fn device(&self) -> &'static str {
        DEVICES
    }
    fn notes(&self) -> Vec<String> {
        common_notes()
    }
    fn rows(&self, _inputs: &Inputs) -> Vec<RowSpec> {
        let mut rows = Vec::new();
        for hit in HITS {
            let row = |what| RowSpec::new(format!("{hit} %: {what}"), "%");
            rows.push(row("low-intensity machine, throughput deviation").check(Check::AtMost(15.0)));
            rows.push(row("low-intensity machine, response deviation").check(Check::AtMost(15.0)));
            rows.push(row("hit ratio of reads"));
        }
        rows.push(
            RowSpec::new("response deviation, 100 % less 50 %", "%")
                .check(Check::AtMost(0.0))
                .note("paper: deviation falls with the hit ratio"),
        );
        rows
    }
    fn sample(&self, seed: u64, inputs: &Inputs) -> Result<Sample, LabError> {
        let (mut values, mut responses) = (Vec::new(), Vec::new());
        for hit in HITS {
            let p = Personality::Fileserver;
            let system = System::virtual_fence(cache_bytes(p, hit), seed);
            let c = compare(&system, p, &HETEROGENEOUS, false, Times::of(inputs.quick))?;
            values.extend([c.low.throughput, c.low.response, c.shared.hit_percent].map(Some));
            responses.push(c.low.response);
        }
        values.push(Some(responses[2] - responses[0]));
        Ok(Sample { values, ..Sample::default() })
    }
}

/// VF-E5: Fileserver's raw figures.
pub struct Raw;

impl Experiment for Raw {
    fn id(&self) -> &'static str {
        "VF-E5"
    }
    fn title(&self) -> &'static str {
        "Fileserver's response times: disk alone and shared, fenced alone and shared"
    }
    fn source(&self) -> &'static str {
        "VirtualFence §4.6.1"
    }
    fn device(&self) -> &'static str {
        DEVICES
    }
    fn notes(&self) -> Vec<String> {
        common_notes()
    }
    fn rows(&self, _inputs: &Inputs) -> Vec<RowSpec> {
        let ms = |what, paper, check| RowSpec::new(what, "ms").paper(paper, check);
        vec![
            ms("HDD, alone", 19.0, Check::Within(10.0, 30.0)),
            ms("HDD, shared", 98.0, Check::AtLeast(38.0)),
            ms("VirtualFence, alone", 59.0, Check::Within(30.0, 90.0)),
            ms("VirtualFence, shared", 64.0, Check::Within(30.0, 96.0)),
            RowSpec::new("saturation, VirtualFence over HDD", "x").paper(3.3, Check::AtLeast(1.0)),
        ]
    }
    fn sample(&self, seed: u64, inputs: &Inputs) -> Result<Sample, LabError> {
        let p = Personality::Fileserver;
        let times = Times::of(inputs.quick);
        let hdd = compare(&System::new(Devices::Hdd, false, 0, seed), p, &HETEROGENEOUS, false, times)?;
        let vf = compare(&System::virtual_fence(cache_bytes(p, 50), seed), p, &HETEROGENEOUS, false, times)?;
        let values =
            [hdd.low.alone_ms, hdd.low.shared_ms, vf.low.alone_ms, vf.low.shared_ms, vf.saturation / hdd.saturation];
        let mut all = curves(&hdd, "HDD, shared");
        all.extend(curves(&vf, "VirtualFence, shared"));
        let plots = vec![Plot::of_times("Fileserver beside others, response times", all)];
        Ok(Sample { values: values.map(Some).to_vec(), plots, ..Sample::default() })
    }
}

/// VF-E6: all variants of Table 4.1.
pub struct Variants;

const SHARED: Devices = Devices::Hybrid(Sharing::Shared);
const OWN: Devices = Devices::Hybrid(Sharing::PerVolume);
/// Name, devices, slots, and the paper's throughput and response deviation where its text gives them.
type Variant = (&'static str, Devices, bool, Option<(f64, f64)>);
const VARIANTS: [Variant; 8] = [
    ("HDD", Devices::Hdd, false, None),
    ("SSD", Devices::Ssd, false, None),
    ("HDD+NWC", Devices::Hdd, true, Some((13.0, 33.0))),
    ("SSD+NWC", Devices::Ssd, true, Some((3.0, 10.0))),
    ("Hybrid/Shared", SHARED, false, None),
    ("Hybrid/Shared+NWC", SHARED, true, None),
    ("Hybrid/Partitioned", OWN, false, None),
    ("VirtualFence", OWN, true, Some((6.0, 12.0))),
];

impl Experiment for Variants {
    fn id(&self) -> &'static str {
        "VF-E6"
    }
    fn title(&self) -> &'static str {
        "Mailserver's deviation by variant: what each part contributes"
    }
    fn source(&self) -> &'static str {
        "VirtualFence §4.6.1, Fig 4.5, Table 4.1"
    }
    fn device(&self) -> &'static str {
        DEVICES
    }
    fn notes(&self) -> Vec<String> {
        let mut notes = common_notes();
        notes.push(
            "the shared cache is as large as the four together; no cost of another process is added to it (VF-M6)"
                .into(),
        );
        notes
    }
    fn rows(&self, _inputs: &Inputs) -> Vec<RowSpec> {
        let mut rows = Vec::new();
        for (variant, devices, _, paper) in VARIANTS {
            let row = |what| RowSpec::new(format!("{variant}: {what}"), "%");
            let (throughput, response) = (row("throughput deviation"), row("response deviation"));
            match (variant, paper) {
                ("VirtualFence", Some((t, r))) => {
                    rows.push(throughput.paper(t, Check::AtMost(6.0)).note("our goal: 3"));
                    rows.push(response.paper(r, Check::AtMost(12.0)).note("our goal: 6"));
                }
                (_, Some((t, r))) => rows.extend([throughput.paper(t, Check::None), response.paper(r, Check::None)]),
                _ => rows.extend([throughput, response]),
            }
            rows.push(row("p99 deviation"));
            if matches!(devices, Devices::Hybrid(_)) {
                rows.push(row("hit ratio of reads"));
            }
        }
        let order = |what: &str| RowSpec::new(format!("response deviation: {what}"), "%").check(Check::AtLeast(0.0));
        rows.push(order("Hybrid/Shared less HDD+NWC"));
        rows.push(order("Hybrid/Partitioned less HDD+NWC"));
        rows.push(order("Hybrid/Shared+NWC less HDD+NWC"));
        rows.push(order("Hybrid/Shared less Hybrid/Partitioned"));
        rows.push(order("HDD+NWC less VirtualFence"));
        rows.push(order("VirtualFence less SSD+NWC"));
        rows
    }
    fn sample(&self, seed: u64, inputs: &Inputs) -> Result<Sample, LabError> {
        let p = Personality::Varmail;
        let (mut values, mut responses, mut shown) = (Vec::new(), Vec::new(), Vec::new());
        for (variant, devices, fenced, _) in VARIANTS {
            let system = System::new(devices, fenced, cache_bytes(p, 50), seed);
            let c = compare(&system, p, &HETEROGENEOUS, false, Times::of(inputs.quick))?;
            values.extend([c.low.throughput, c.low.response, c.low.p99].map(Some));
            values.extend(is_cached(&system).then_some(Some(c.shared.hit_percent)));
            responses.push(c.low.response);
            shown.extend(curves(&c, variant));
        }
        let r = responses;
        let orders = [r[4] - r[2], r[6] - r[2], r[5] - r[2], r[4] - r[6], r[2] - r[7], r[7] - r[3]];
        values.extend(orders.map(Some));
        let plots = vec![Plot::of_times("Mailserver's low-intensity machine beside others, response times", shown)];
        Ok(Sample { values, plots, ..Sample::default() })
    }
}

/// VF-E7: four machines of 5 % each.
pub struct Homogeneous;

impl Experiment for Homogeneous {
    fn id(&self) -> &'static str {
        "VF-E7"
    }
    fn title(&self) -> &'static str {
        "Deviation of four machines at 5 % of saturation each: HDD, SSD, VirtualFence"
    }
    fn source(&self) -> &'static str {
        "VirtualFence §4.6.2, Fig 4.6"
    }
    fn device(&self) -> &'static str {
        DEVICES
    }
    fn notes(&self) -> Vec<String> {
        common_notes()
    }
    fn rows(&self, _inputs: &Inputs) -> Vec<RowSpec> {
        let mut rows = Vec::new();
        for p in ALL {
            for system in ["HDD", "SSD", "VirtualFence"] {
                let row = |what| RowSpec::new(format!("{}: {system}: {what}", name(p)), "%");
                let (t, r) = (row("throughput deviation"), row("response deviation"));
                match system {
                    "VirtualFence" => {
                        rows.push(t.paper(14.0, Check::AtMost(14.0)));
                        rows.push(r.paper(14.0, Check::AtMost(14.0)));
                    }
                    "SSD" if p != Personality::Webserver => rows.extend([t, r.paper(50.0, Check::AtLeast(50.0))]),
                    _ => rows.extend([t, r]),
                }
                let ms = |what| RowSpec::new(format!("{}: {system}: {what}", name(p)), "ms");
                let paper = match (p, system) {
                    (Personality::Fileserver, "HDD") => Some((21.0, 42.0)),
                    (Personality::Fileserver, "VirtualFence") => Some((35.0, 40.0)),
                    _ => None,
                };
                let (alone, shared) = (ms("alone"), ms("shared"));
                match paper {
                    Some((a, s)) => rows.extend([alone.paper(a, Check::None), shared.paper(s, Check::None)]),
                    None => rows.extend([alone, shared]),
                }
            }
        }
        rows
    }
    fn sample(&self, seed: u64, inputs: &Inputs) -> Result<Sample, LabError> {
        let mut values = Vec::new();
        for p in ALL {
            for (devices, fenced) in [(Devices::Hdd, false), (Devices::Ssd, false), (OWN, true)] {
                let system = System::new(devices, fenced, cache_bytes(p, 50), seed);
                let c = compare(&system, p, &[5; 4], false, Times::of(inputs.quick))?;
                values.extend([c.low.throughput, c.low.response, c.low.alone_ms, c.low.shared_ms].map(Some));
            }
        }
        Ok(Sample { values, ..Sample::default() })
    }
}
