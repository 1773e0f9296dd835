//! AP-E1 to AP-E12: request shaping before a modelled database; AP-J1 and AP-B1 are ours. AP-E13 is measured on what it is about: `make
//! shape-cost`.

mod tails;

use crate::database::limiter::Limiter;
use crate::database::{CoreOrder, DatabaseConfig, DiskOrder, Front, Measured, Neighbour, Setting, run};
use crate::experiment::{Check, Experiment, Inputs, LabError, RowSpec, Sample, Switch};
use plimsoll_base::Span;
use plimsoll_shape::tune::model::{Curve, Point, measured_alpha};
use plimsoll_shape::tune::zeta::ZetaConfig;

const TPCC: DatabaseConfig = DatabaseConfig::TPCC;
const YCSB: DatabaseConfig = DatabaseConfig::YCSB;

/// One of the experiments of AppleS: rows, and what fills them.
pub struct Apples {
    id: &'static str,
    title: &'static str,
    source: &'static str,
    rows: fn() -> Vec<RowSpec>,
    sample: fn(&Runs) -> Vec<Option<f64>>,
}

/// Length of a sample's runs, and their seed.
struct Runs {
    seed: u64,
    quick: bool,
    brief: bool,
    /// Threads inside crowd each other by the measured law.
    crowds: bool,
}

impl Runs {
    fn setting(&self, database: DatabaseConfig, users: usize, front: Front) -> Setting {
        let auto = matches!(front, Front::Auto { .. });
        // Single operations are twenty times as many a second, and every loop comes to its end as much sooner.
        let single =
            database == DatabaseConfig { disk_order: database.disk_order, core_order: database.core_order, ..YCSB };
        let database = if self.crowds { database } else { DatabaseConfig { crowding: &[], ..database } };
        let (warm, time) = match (self.quick, auto, single) {
            (true, true, _) if self.brief => (8, 1),
            (true, false, _) if self.brief => (1, 1),
            (true, false, _) => (1, 2),
            (true, true, _) => (25, 2),
            (false, false, true) => (1, 3),
            (false, true, true) => (50, 4),
            (false, false, false) => (3, 10),
            // The tuner has come to its end by then.
            (false, true, false) => (110, 10),
        };
        Setting {
            database,
            users,
            uneven: false,
            front,
            sensitive: None,
            neighbour: None,
            warm: Span::from_secs(warm),
            time: Span::from_secs(time),
        }
    }
    fn one(&self, database: DatabaseConfig, users: usize, front: Front) -> Measured {
        run(&self.setting(database, users, front), self.seed)
    }
    fn rate(&self, database: DatabaseConfig, users: usize, p: u32, zeta: u32) -> f64 {
        self.one(database, users, Front::Fixed { p, zeta }).rate
    }
    /// Throughput at each P of a grid, and the best of them.
    fn grid(&self, database: DatabaseConfig, users: usize, zeta: u32) -> (Vec<Point>, Point) {
        let at = |p| Point { p, rate: self.rate(database, users, p, zeta) };
        let ps = [4, 8, 12, 16, 20, 24, 32, 48, 64, 96, 128, 192, 256, 512, 1024];
        let points: Vec<Point> = ps.into_iter().filter(|p| *p <= users as u32).map(at).collect();
        let best = points.iter().copied().max_by(|a, b| a.rate.total_cmp(&b.rate)).expect("a grid isn't empty");
        (points, best)
    }
    /// The matching point: the least P of a grid whose throughput is within [`EQUAL`] of the best, as the curve is flat beyond it.
    fn matching(&self, database: DatabaseConfig, users: usize, zeta: u32) -> u32 {
        let (points, best) = self.grid(database, users, zeta);
        points.iter().find(|p| p.rate >= best.rate * EQUAL).expect("the best is one of them").p
    }
}

/// A throughput from this part of the best on is taken for equal, as by the tuner.
const EQUAL: f64 = 0.995;

/// ζ and P by feedback, with an unfairness of at most `unfairness_percent`.
fn shaped(unfairness_percent: u64) -> Front {
    bounded(unfairness_percent, None)
}

/// The same, and with a CV of latency of at most 90 % of this run's.
fn bounded(unfairness_percent: u64, base: Option<&Measured>) -> Front {
    let bounds = ZetaConfig {
        unfairness_max_milli: unfairness_percent * 10,
        variability_max_milli: base.map(|b| (b.variability * 9.0) as u64),
        ..ZetaConfig::default()
    };
    Front::Auto { zeta: 2, bounds: Some(bounds) }
}

fn more(now: f64, before: f64) -> f64 {
    100.0 * (now / before - 1.0)
}

fn some(values: Vec<f64>) -> Vec<Option<f64>> {
    values.into_iter().map(Some).collect()
}

fn row(name: impl Into<String>, unit: &'static str) -> RowSpec {
    RowSpec::new(name, unit)
}

/// The crowding law is MariaDB's published benchmark (docs/papers/apples.md).
const LAW: &str = "the model was given the cost of crowding, from which this follows";
const HITS: &str = "AppleS effectively improves the efficiency of the buffer pool by increasing its hit ratio";
const LARGER: &str = "Fig 6: a larger L raises the hit ratio while P is below C";

const SWEEP: [usize; 5] = [64, 128, 256, 512, 1024];

fn e1_rows() -> Vec<RowSpec> {
    let mut rows = vec![
        row("users at which the base peaks", "1").reproduces(32.0),
        row("base at 512 users against its peak", "%").given(Check::AtMost(-5.0)).note(LAW),
    ];
    for n in SWEEP {
        rows.push(row(format!("{n} users: throughput gained"), "%").given(Check::AtLeast(0.0)).note(LAW));
        rows.push(row(format!("{n} users: base unfairness"), "%"));
        rows.push(row(format!("{n} users: shaped unfairness"), "%").goal(Check::AtMost(10.0)));
        rows.push(row(format!("{n} users: shaped CV of the base's"), "%").goal(Check::AtMost(90.0)));
        rows.push(row(format!("{n} users: shaped time in the database"), "ms"));
        rows.push(row(format!("{n} users: shaped delay outside"), "ms"));
        rows.push(row(format!("{n} users: latency against the base's"), "%").paper_says(
            Check::AtMost(0.0),
            "Fig 1: AppleS's latency, delay and database time together, is below the baseline's",
        ));
        rows.push(
            row(format!("{n} users: hit ratio, shaped minus base"), "points").paper_says(Check::AtLeast(0.0), HITS),
        );
    }
    rows
}

fn e1(r: &Runs) -> Vec<Option<f64>> {
    let base: Vec<(usize, f64)> =
        [4, 8, 16, 32, 64, 128, 256, 512].map(|n| (n, r.one(TPCC, n, Front::None).rate)).to_vec();
    let peak = base.iter().copied().max_by(|a, b| a.1.total_cmp(&b.1)).expect("not empty");
    let mut out = vec![peak.0 as f64, more(base[base.len() - 1].1, peak.1)];
    for n in SWEEP {
        let b = r.one(TPCC, n, Front::None);
        let s = r.one(TPCC, n, bounded(10, Some(&b)));
        let latency = |m: &Measured| m.delay_ms + m.inside_ms;
        out.extend([
            more(s.rate, b.rate),
            b.unfairness,
            s.unfairness,
            100.0 * s.variability / b.variability,
            s.inside_ms,
            s.delay_ms,
            more(latency(&s), latency(&b)),
            s.hit - b.hit,
        ]);
    }
    some(out)
}

fn e2_rows() -> Vec<RowSpec> {
    [32, 128, 512]
        .map(|n| {
            row(format!("{n} users: most lock wait of a user over the mean"), "1")
                .note("a most of N over its mean exceeds 1 whatever the server does: not judged")
        })
        .to_vec()
}

fn e2(r: &Runs) -> Vec<Option<f64>> {
    let worst = |n| {
        let w = r.one(TPCC, n, Front::None).lock_waits_ms;
        w.iter().copied().fold(0.0, f64::max) * w.len() as f64 / w.iter().sum::<f64>().max(1e-9)
    };
    some([32, 128, 512].map(worst).to_vec())
}

fn e3_rows() -> Vec<RowSpec> {
    vec![
        row("unfairness at 1024 users over that at 4", "1").reproduces(100.0),
        row("CV at 1024 users over that at 4", "1").reproduces(3.0),
        row("requests that wait for a disk, 1024 users", "1")
            .paper_says(Check::AtLeast(10.0), "Fig 3: long I/O queues at 1024 users"),
    ]
}

fn e3(r: &Runs) -> Vec<Option<f64>> {
    let afq = DatabaseConfig { disk_order: DiskOrder::Fair, ..YCSB };
    let (few, many) = (r.one(afq, 4, Front::None), r.one(afq, 1024, Front::None));
    some(vec![
        many.unfairness / few.unfairness.max(1e-9),
        many.variability / few.variability.max(1e-9),
        many.disk_queue,
    ])
}

/// L = 1 is no sequentiality (footnote 2).
const E4_ZETAS: [u32; 5] = [1, 2, 8, 32, 128];

fn e4_rows() -> Vec<RowSpec> {
    let mut rows: Vec<RowSpec> = E4_ZETAS
        .map(|z| {
            let point = row(format!("L = {z}: matching point"), "1")
                .note("the least P within 0.5 % of the best throughput of those tried");
            match z {
                1 => point,
                2 => point.beside(14.0).reproduces_range(12.0, 16.0),
                _ => point.beside(18.0).reproduces_range(16.0, 20.0),
            }
        })
        .to_vec();
    rows.push(row("hit ratio at L = 32 minus that at L = 2, P = 16", "%").paper_says(Check::AtLeast(0.0), LARGER));
    rows.push(row("hit ratio at L = 32 minus that at L = 1, P = 16", "%").paper_says(Check::AtLeast(0.0), LARGER));
    rows.push(
        row("time in the database at P = 256 over that at 16", "1")
            .paper_says(Check::AtLeast(2.0), "Fig 6: database time surges with P")
            .note("taken as twice"),
    );
    rows.push(
        row("delay outside at P = 128 over that at 8", "1")
            .paper_says(Check::AtMost(1.0), "Fig 6: the controlled delay falls with P"),
    );
    rows.push(
        row("time in the database at L = 128 over that at 8, P = 16", "1")
            .reproduces_range(0.8, 1.2)
            .note("paper: zeta is nearly orthogonal to P; ± 20 %"),
    );
    rows.push(
        row("unfairness at L = 128 minus that at L = 8, P = 16", "%")
            .paper_says(Check::AtLeast(0.0), "Fig 6: L = 128 hurts fairness"),
    );
    rows
}

fn e4(r: &Runs) -> Vec<Option<f64>> {
    let mut out: Vec<f64> = E4_ZETAS.map(|z| f64::from(r.matching(TPCC, 256, z))).to_vec();
    let at = |p, zeta| r.one(TPCC, 256, Front::Fixed { p, zeta });
    let (l1, l2, l8, l32, l128) = (at(16, 1), at(16, 2), at(16, 8), at(16, 32), at(16, 128));
    out.extend([
        l32.hit - l2.hit,
        l32.hit - l1.hit,
        at(256, 8).inside_ms / l8.inside_ms,
        at(128, 8).delay_ms / at(8, 8).delay_ms,
        l128.inside_ms / l8.inside_ms,
        l128.unfairness - l8.unfairness,
    ]);
    some(out)
}

fn e5_rows() -> Vec<RowSpec> {
    vec![
        row("TPC-C-like, 128 users: mean error of the model's peak", "%").beside(3.58).paper_says(
            Check::AtMost(3.58),
            "Eq. 2 can accurately estimate the trend of throughput […] the average λmax error (i.e., 3.58%) over all the cases in Fig. 7",
        ),
        row("… worst over middle samples and zetas", "%"),
        row("YCSB-like, 1024 users, zeta 1: error", "%")
            .beside(4.46)
            .paper_says(Check::AtMost(4.46), "Fig 7: an error of 4.46 % at the smallest sequentiality"),
        row("regret of the whole tuner, 128 users", "%").goal(Check::AtMost(2.0)),
        row("runs without a curve of this kind", "1"),
    ]
}

/// Distance of the throughput at the model's matching point from that of the grid's best, in either direction: a point between two of
/// the grid's may be better than both.
fn model_error(r: &Runs, cfg: DatabaseConfig, users: usize, zeta: u32, middle: u32) -> Option<f64> {
    let at = |p| Point { p, rate: r.rate(cfg, users, p, zeta) };
    let best = r.grid(cfg, users, zeta).1.rate;
    let curve = Curve::fit([at(4), at(middle), at(users as u32)])?;
    let chosen = r.rate(cfg, users, curve.peak(4, users as u32), zeta);
    Some((100.0 * (1.0 - chosen / best)).abs())
}

fn e5(r: &Runs) -> Vec<Option<f64>> {
    let cases: Vec<(u32, u32)> = if r.quick {
        vec![(2, 24), (8, 48)]
    } else {
        [1, 4, 16].into_iter().flat_map(|z| [16, 32, 64].map(|m| (z, m))).collect()
    };
    let errors: Vec<Option<f64>> = cases.iter().map(|(z, m)| model_error(r, TPCC, 128, *z, *m)).collect();
    let known: Vec<f64> = errors.iter().flatten().copied().collect();
    let mean = (!known.is_empty()).then(|| known.iter().sum::<f64>() / known.len() as f64);
    let best = r.grid(TPCC, 128, 2).1.rate;
    let tuned = r.one(TPCC, 128, Front::Auto { zeta: 2, bounds: None }).rate;
    vec![
        mean,
        mean.map(|_| known.iter().copied().fold(0.0, f64::max)),
        model_error(r, YCSB, 1024, 1, 64),
        Some(100.0 * (1.0 - tuned / best)),
        Some((errors.len() - known.len()) as f64),
    ]
}

fn e6_rows() -> Vec<RowSpec> {
    ["TPC-C-like", "YCSB-like"]
        .map(|n| row(format!("{n}: largest error of the fitted alpha"), "1").goal(Check::AtMost(0.1)))
        .to_vec()
}

fn e6(r: &Runs) -> Vec<Option<f64>> {
    let worst = |cfg| {
        let points = r.grid(cfg, 256, 4).0;
        let find = |p| points.iter().find(|x| x.p == p).copied();
        let curve = Curve::fit([find(4)?, find(48)?, find(256)?])?;
        let error = |x: &Point| (measured_alpha(points[0], *x) - curve.alpha(x.p)).abs();
        Some(points.iter().skip(1).map(error).fold(0.0, f64::max))
    };
    vec![worst(TPCC), worst(YCSB)]
}

fn e7_rows() -> Vec<RowSpec> {
    let mut rows = Vec::new();
    for n in SWEEP {
        let gained = row(format!("{n} users: throughput gained"), "%").given(Check::AtLeast(0.0)).note(LAW);
        rows.push(match n {
            64 => gained.beside(9.8),
            512 => gained.beside(28.1),
            _ => gained,
        });
        let confined =
            "the I/O unfairness and the CV of request latency can be effectively confined within the expected ranges";
        rows.push(row(format!("{n} users: unfairness"), "%").paper_says(Check::AtMost(15.0), confined));
        rows.push(row(format!("{n} users: CV of the base's"), "%").paper_says(Check::AtMost(90.0), confined));
        rows.push(
            row(format!("{n} users: spun core time, base minus shaped"), "%").given(Check::AtLeast(0.0)).note(LAW),
        );
    }
    rows
}

fn e7(r: &Runs) -> Vec<Option<f64>> {
    let one = |n| {
        let b = r.one(TPCC, n, Front::None);
        let s = r.one(TPCC, n, bounded(15, Some(&b)));
        [more(s.rate, b.rate), s.unfairness, 100.0 * s.variability / b.variability, b.spin - s.spin]
    };
    some(SWEEP.into_iter().flat_map(one).collect())
}

const ORDERS: [(&str, DiskOrder); 3] =
    [("FIFO (noop)", DiskOrder::Fifo), ("fair (AFQ)", DiskOrder::Fair), ("elevator (deadline)", DiskOrder::Elevator)];

/// `fairer`: by how much at least and at most.
fn orders_rows(fairer: (f64, f64)) -> Vec<RowSpec> {
    let mut rows = Vec::new();
    for (name, _) in ORDERS {
        rows.push(row(format!("{name}: throughput gained"), "%").given(Check::AtLeast(-2.5)).note(LAW));
        rows.push(row(format!("{name}: unfairness, base over shaped"), "1").reproduces_range(fairer.0, fairer.1));
        let kept = row(format!("{name}: shaped unfairness"), "%").beside(10.0);
        rows.push(kept.paper_says(Check::AtMost(11.7), "below or very close to the required limit"));
    }
    rows
}

fn orders(r: &Runs, cfg: DatabaseConfig) -> Vec<Option<f64>> {
    let one = |(_, disk_order)| {
        let cfg = DatabaseConfig { disk_order, ..cfg };
        let (b, s) = (r.one(cfg, 256, Front::None), r.one(cfg, 256, shaped(10)));
        [more(s.rate, b.rate), b.unfairness / s.unfairness.max(1e-9), s.unfairness]
    };
    some(ORDERS.into_iter().flat_map(one).collect())
}

/// Compared with the base at each number of users: equal core shares alone, the gate alone, and both.
const SHARED: [&str; 3] = ["equal core shares alone", "shaped", "both"];
const MANY: usize = 512;
/// The paper's figures are "up to": the most over the numbers of users.
const UP_TO: &str = "the most over 64 to 1024 users, each figure by itself";

fn cgroup_rows(gained: Option<f64>, fairer: [Option<f64>; 2], both: f64) -> Vec<RowSpec> {
    let gains = [None, gained, Some(both)];
    let fairer = [None, fairer[0], fairer[1]];
    let mut rows = Vec::new();
    for ((name, gained), fairer) in SHARED.iter().zip(gains).zip(fairer) {
        let is_shaped = *name != SHARED[0];
        let most = row(format!("{name}: throughput gained"), "%");
        let most = gained.into_iter().fold(most, RowSpec::beside);
        rows.push(if is_shaped { most.given(Check::AtLeast(0.0)).note(LAW) } else { most.note(UP_TO) });
        let fair = row(format!("{name}: unfairness, base over this"), "1").note(UP_TO);
        rows.push(fairer.into_iter().fold(fair, RowSpec::reproduces));
        let at_512 = row(format!("{name}: unfairness at {MANY} users, base over this"), "1");
        let has_goal = is_shaped && fairer.is_none();
        rows.push(if has_goal { at_512.goal(Check::AtLeast(3.0)) } else { at_512 });
        rows.push(row(format!("{name}: CV of the base's, the largest"), "%").note("the gate bounds it at 90 %"));
    }
    rows
}

fn cgroup(r: &Runs, cfg: DatabaseConfig) -> Vec<Option<f64>> {
    let fair = DatabaseConfig { core_order: CoreOrder::Fair, ..cfg };
    // Gained, fairer, fairer with MANY users, CV.
    let mut most = [[f64::NEG_INFINITY; 4]; SHARED.len()];
    // One number of users shows that it runs.
    for users in SWEEP.into_iter().filter(|n| !r.brief || *n == MANY) {
        let base = r.one(cfg, users, Front::None);
        let gate = bounded(10, Some(&base));
        for (most, (database, front)) in most.iter_mut().zip([(fair, Front::None), (cfg, gate), (fair, gate)]) {
            let m = r.one(database, users, front);
            let fairer = base.unfairness / m.unfairness.max(1e-9);
            let of = [
                more(m.rate, base.rate),
                fairer,
                if users == MANY { fairer } else { f64::NEG_INFINITY },
                100.0 * m.variability / base.variability,
            ];
            most.iter_mut().zip(of).for_each(|(most, v)| *most = most.max(v));
        }
    }
    some(most.into_iter().flatten().collect())
}

const LIMITERS: [(&str, Limiter); 6] = [
    ("pool of 33 (2 x cores + 1)", Limiter::Fixed(33)),
    ("PgBouncer's pool of 20", Limiter::Fixed(20)),
    ("one a core (thread pool that never stalls)", Limiter::ThreadPool),
    ("AIMD", Limiter::Aimd),
    ("Vegas", Limiter::Vegas),
    ("Gradient2", Limiter::Gradient2),
];

fn baselines_rows() -> Vec<RowSpec> {
    let mut rows = vec![row("none: throughput", "1/s"), row("none: unfairness", "%")];
    for (name, _) in LIMITERS {
        rows.push(row(format!("{name}: throughput"), "1/s"));
        rows.push(row(format!("{name}: unfairness"), "%"));
    }
    rows.push(row("shaped: throughput", "1/s"));
    rows.push(row("shaped: unfairness", "%"));
    rows.push(row("shaped against the best adaptive limiter", "%").goal(Check::AtLeast(0.0)));
    rows.push(
        row("unfairness of that limiter over shaped", "1")
            .note("limiters have one queue for all users, so are unfair by construction: not judged"),
    );
    for (name, _) in LIMITERS {
        rows.push(row(format!("{name}, one queue a user: throughput"), "1/s"));
        rows.push(row(format!("{name}, one queue a user: unfairness"), "%"));
    }
    rows.push(row("shaped against the best adaptive limiter with one queue a user", "%").goal(Check::AtLeast(0.0)));
    rows
}

fn baselines(r: &Runs) -> Vec<Option<f64>> {
    // 80 users with 1 to 8 connections each.
    let one = |front| run(&Setting { uneven: true, ..r.setting(TPCC, 256, front) }, r.seed);
    let all: Vec<Measured> = LIMITERS.map(|(_, l)| one(Front::Queue(l))).to_vec();
    let fair: Vec<Measured> = LIMITERS.map(|(_, l)| one(Front::Queues(l))).to_vec();
    let s = one(shaped(10));
    let best_of = |all: &[Measured]| {
        let adaptive = all[3..].iter().cloned();
        adaptive.max_by(|a, b| a.rate.total_cmp(&b.rate)).expect("three adaptive ones")
    };
    let (best, best_fair) = (best_of(&all), best_of(&fair));
    let none = one(Front::None);
    let mut out: Vec<f64> = [&none].into_iter().chain(&all).flat_map(|m| [m.rate, m.unfairness]).collect();
    out.extend([s.rate, s.unfairness, more(s.rate, best.rate), best.unfairness / s.unfairness.max(1e-9)]);
    out.extend(fair.iter().flat_map(|m| [m.rate, m.unfairness]));
    out.push(more(s.rate, best_fair.rate));
    some(out)
}

fn joint_rows() -> Vec<RowSpec> {
    vec![
        row("P = 64 alone: throughput", "1/s"),
        row("with the storage's forecast: throughput against that", "%").goal(Check::AtLeast(-2.0)),
        row("… time in the database against that", "%").goal(Check::AtMost(0.0)),
        row("… wait for locks against that", "%").goal(Check::AtMost(0.0)),
        row("… requests that wait for the disks, alone", "1"),
        row("… with the forecast", "1"),
        row("… latency in all against that", "%").goal(Check::AtMost(2.0)),
    ]
}

/// 256 users, a P that is good without the neighbour, which takes 18 of the 20 channels for two seconds of four.
fn joint(r: &Runs) -> Vec<Option<f64>> {
    let with = |wanted| {
        let neighbour = Neighbour { every: Span::from_secs(4), takes: 18, wanted };
        let setting = r.setting(TPCC, 256, Front::Fixed { p: 64, zeta: 1 });
        run(&Setting { neighbour: Some(neighbour), time: Span::from_secs(20), ..setting }, r.seed)
    };
    let (alone, both) = (with(None), with(Some(Span::from_millis(2))));
    let latency = |m: &Measured| m.delay_ms + m.inside_ms;
    some(vec![
        alone.rate,
        more(both.rate, alone.rate),
        more(both.inside_ms, alone.inside_ms),
        more(both.lock_wait_ms, alone.lock_wait_ms),
        alone.disk_queue,
        both.disk_queue,
        more(latency(&both), latency(&alone)),
    ])
}

const FROM_THE_START: [usize; 3] = [64, 256, 1024];

fn from_the_start_rows() -> Vec<RowSpec> {
    let mut rows = Vec::new();
    for n in FROM_THE_START {
        let gained = row(format!("{n} users: throughput gained in the first two minutes"), "%");
        rows.push(
            gained.goal(Check::AtLeast(0.0)).note("the search for P and zeta is part of it; AP-E1 measures after it"),
        );
        rows.push(row(format!("{n} users: unfairness in the first two minutes"), "%"));
        rows.push(row(format!("{n} users: CV of the base's in the first two minutes"), "%"));
    }
    rows
}

/// Base and shaped from the first request on, search included.
fn from_the_start(r: &Runs) -> Vec<Option<f64>> {
    let time = Span::from_secs(match (r.quick, r.brief) {
        (true, true) => 9,
        (true, false) => 27,
        _ => 120,
    });
    let whole = |n, front| run(&Setting { warm: Span::ZERO, time, ..r.setting(TPCC, n, front) }, r.seed);
    let one = |n| {
        let b = whole(n, Front::None);
        let s = whole(n, bounded(10, Some(&b)));
        [more(s.rate, b.rate), s.unfairness, 100.0 * s.variability / b.variability]
    };
    some(FROM_THE_START.into_iter().flat_map(one).collect())
}

/// All of them.
pub fn all() -> Vec<Apples> {
    let apples = |id, title, source, rows, sample| Apples { id, title, source, rows, sample };
    vec![
        apples("AP-E1", "Users swept, base against shaped", "AppleS Fig. 1", e1_rows, e1),
        apples("AP-E2", "Lock waits are spread unevenly over users", "AppleS Fig. 2", e2_rows, e2),
        apples("AP-E3", "Users swept before a disk-bound store", "AppleS Fig. 3", e3_rows, e3),
        apples("AP-E4", "P and L", "AppleS Fig. 6", e4_rows, e4),
        apples("AP-E5", "The model's peak against the measured one", "AppleS Fig. 7", e5_rows, e5),
        apples("AP-E6", "The parallel fraction", "AppleS Fig. 8", e6_rows, e6),
        apples("AP-E7", "Throughput under bounds on unfairness and CV", "AppleS Fig. 9, 10", e7_rows, e7),
        apples(
            "AP-E8",
            "Under other disk schedulers, TPC-C-like",
            "AppleS Fig. 11",
            || orders_rows((4.6, 7.3)),
            |r| orders(r, TPCC),
        ),
        apples(
            "AP-E9",
            "With equal core shares, TPC-C-like",
            "AppleS Fig. 12, 13",
            || cgroup_rows(Some(39.2), [Some(31.8), Some(34.5)], 45.6),
            |r| cgroup(r, TPCC),
        ),
        apples(
            "AP-E10",
            "With equal core shares, YCSB-like",
            "AppleS Fig. 14, 15",
            || cgroup_rows(None, [None, Some(101.5)], 28.6),
            |r| cgroup(r, YCSB),
        ),
        apples(
            "AP-E11",
            "Under other disk schedulers, YCSB-like",
            "AppleS Fig. 16",
            || orders_rows((4.6, 39.6)),
            |r| orders(r, YCSB),
        ),
        apples("AP-E12", "Tail objectives", "AppleS Fig. 17, 18", tails::e12_rows, tails::e12),
        apples(
            "AP-E12-TIGHT",
            "Tail objectives, tighter and looser",
            "AppleS Fig. 17",
            tails::tight_rows,
            tails::tight,
        ),
        apples(
            "AP-START",
            "The tuner's search included, from the first request",
            "AppleS §3, Fig. 1",
            from_the_start_rows,
            from_the_start,
        ),
        apples("AP-J1", "With the storage's forecast", "the idea of AppleS §3.4", joint_rows, joint),
        apples("AP-B1", "Against other limits on parallelism", "not in the paper", baselines_rows, baselines),
    ]
}

impl Experiment for Apples {
    fn id(&self) -> &'static str {
        self.id
    }
    fn title(&self) -> &'static str {
        self.title
    }
    fn source(&self) -> &'static str {
        self.source
    }
    fn version(&self) -> u32 {
        3
    }
    fn device(&self) -> &'static str {
        "queueing model of a database"
    }
    fn notes(&self) -> Vec<String> {
        vec![
            "a queueing model of a database with locks, a cache, disks and cores; not MySQL or MongoDB".into(),
            "the model was not fitted to the paper's figures; rows of the kind generator ask for the direction that it was given".into(),
            "what many connections cost on the cores is MariaDB's published benchmark of its thread pool (16 cores)"
                .into(),
        ]
    }
    fn rows(&self, _inputs: &Inputs) -> Vec<RowSpec> {
        (self.rows)()
    }
    fn sample(&self, seed: u64, inputs: &Inputs) -> Result<Sample, LabError> {
        let values = (self.sample)(&Runs {
            seed,
            quick: inputs.quick,
            brief: inputs.brief,
            crowds: !inputs.has(Switch::NoCrowding),
        });
        Ok(Sample { values, plots: Vec::new(), notes: Vec::new() })
    }
}
