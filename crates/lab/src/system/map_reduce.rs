//! OpTune's MapReduce scheduler (OT-M14, §5.3.3): jobs of map tasks, a barrier, and reduce tasks, on a cluster of slots.
//!
//! When a job arrives, chance (`prob_sjf`) decides whether it is scheduled first-come-first-served, at priority 3, or by
//! its size, at a priority from 5 (fewest reduces) to 1 (most). Free slots go to the waiting job of the highest priority,
//! the oldest among equals. `drop_p_maps` of a job's map tasks are dropped (approximation).
//!
//! Load levels are those of OpTune §5.4.1, by active map tasks when a job arrives.

use plimsoll_base::{Rng, Span, Time};
use plimsoll_tune::adapter::{Adapter, AdapterError, Run};
use plimsoll_tune::graph::{ServiceGraph, WrittenGraph};
use plimsoll_tune::profile::Observation;
use plimsoll_tune::space::{Parameter, Setting, Space};
use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};
use std::io::Read;
use std::path::Path;

/// One job as it is to run.
#[derive(Clone, Debug)]
pub struct Job {
    /// Time of submission.
    pub arrives_at: Time,
    /// Each map task's execution time.
    pub maps: Vec<Span>,
    /// Each reduce task's.
    pub reduces: Vec<Span>,
}

/// OpTune's cluster: ten machines of four map slots and one reduce slot each.
pub const MAP_SLOTS: u32 = 40;
/// See [`MAP_SLOTS`].
pub const REDUCE_SLOTS: u32 = 10;
/// Bounds of the levels VERY_LOW, LOW, NORMAL, HIGH, VERY_HIGH in active map tasks (§5.4.1).
pub const LEVEL_BOUNDS: [f64; 4] = [5.0, 10.0, 15.0, 50.0];
/// Jobs and hours of OpTune's scaled workload.
const JOBS: usize = 700;
const HOURS: u64 = 6;

/// Values of `prob_sjf`.
pub const PROB_SJF: [f64; 5] = [0.0, 0.25, 0.5, 0.75, 1.0];
/// Values of `drop_p_maps`.
pub const DROP_P_MAPS: [f64; 5] = [0.0, 0.2, 0.5, 0.8, 0.9];

/// Returns the graph of Fig. 5.6: maps in parallel, a barrier, reduces in parallel; a task's time includes its wait for a slot.
/// Tasks of one job wait together, so a job's maps take one rank each, and its reduces do, too.
pub fn graph() -> ServiceGraph {
    let text = "root = 'job'\ncomponents = ['start', 'map_phase', 'reduce_phase']\n[node]\n\
        job = { sequence = ['start', 'map_phase', 'reduce_phase'] }\n";
    let written: WrittenGraph = toml::from_str(text).expect("a constant");
    ServiceGraph::new(&written).expect("a constant")
}

/// The same with each task a component and the phases parallels of a measured number of copies, as OpTune composes
/// (the product of the tasks' CDFs): right only if a job's tasks are independent.
pub fn graph_of_tasks() -> ServiceGraph {
    let text = "root = 'job'\ncomponents = ['start', 'map', 'reduce']\n[node]\n\
        job = { sequence = ['start', 'maps', 'reduces'] }\nmaps = { parallel = ['map'], measured = true }\n\
        reduces = { parallel = ['reduce'], measured = true }\n";
    let written: WrittenGraph = toml::from_str(text).expect("a constant");
    ServiceGraph::new(&written).expect("a constant")
}

/// Both parameters; each moves everything, as both change who waits for whom.
pub fn space() -> Space {
    let all: Vec<String> =
        ["start", "map_phase", "reduce_phase", "map", "reduce", "maps", "reduces"].map(String::from).to_vec();
    let p = |name: &str, values: &[f64]| Parameter {
        name: name.into(),
        values: values.iter().map(f64::to_string).collect(),
        moves: all.clone(),
    };
    Space::new(vec![p("prob_sjf", &PROB_SJF), p("drop_p_maps", &DROP_P_MAPS)]).expect("distinct values")
}

/// Jobs from a SWIM file (job, submit time, gap, map input, shuffle, output bytes), scaled to the cluster as OpTune's were:
/// 700 jobs in six hours, 2 to 120 maps, 1 to 20 reduces, maps of 50 to 300 s a phase, reduces of 15 to 100 s.
///
/// # Errors
/// If the file can't be read or a line isn't such a record: `FILE:LINE: what`.
pub fn swim(path: &Path, seed: u64) -> Result<Vec<Job>, String> {
    let told = |line: usize, what: &str| format!("{}:{line}: {what}", path.display());
    let file = std::fs::File::open(path).map_err(|e| format!("{}: {e}", path.display()))?;
    let mut text = String::new();
    let read = if path.extension().is_some_and(|e| e == "gz") {
        flate2::read::GzDecoder::new(file).read_to_string(&mut text)
    } else {
        std::io::BufReader::new(file).read_to_string(&mut text)
    };
    read.map_err(|e| format!("{}: {e}", path.display()))?;
    let mut sizes = Vec::new();
    for (n, line) in text.lines().enumerate() {
        let cells: Vec<&str> = line.split('\t').collect();
        let number = |i: usize| cells.get(i).and_then(|c| c.trim().parse::<u64>().ok());
        match (number(1), number(3), number(4), number(5)) {
            (Some(at), Some(map), Some(shuffle), Some(out)) => sizes.push((at, map, shuffle + out)),
            _ => return Err(told(n + 1, "isn't job, submit time, gap, map input, shuffle and output bytes")),
        }
    }
    if sizes.is_empty() {
        return Err(told(1, "has no jobs"));
    }
    Ok(scaled(&sizes, seed))
}

/// Jobs of the published shape without the file: sizes log-normal over the same range, Poisson arrivals.
pub fn generated(seed: u64) -> Vec<Job> {
    let mut rng = Rng::new(seed, "jobs");
    let mut at = 0.0;
    let sizes: Vec<(u64, u64, u64)> = (0..JOBS)
        .map(|_| {
            at += rng.exp1() * 86_400.0 / JOBS as f64;
            let bytes = (17.0 + 4.0 * rng.normal()).exp();
            (at as u64, bytes as u64, (bytes * rng.unit()) as u64)
        })
        .collect();
    scaled(&sizes, seed)
}

/// Every n-th job, times squeezed into six hours, sizes mapped by rank onto OpTune's ranges: the trace's largest jobs are
/// too large for ten machines, and its order of sizes and its arrivals are what matters.
fn scaled(sizes: &[(u64, u64, u64)], seed: u64) -> Vec<Job> {
    let mut rng = Rng::new(seed, "tasks");
    let every = (sizes.len() / JOBS).max(1);
    let from = rng.below(every as u64) as usize;
    let picked: Vec<(u64, u64, u64)> = sizes.iter().skip(from).step_by(every).take(JOBS).copied().collect();
    let (first, last) = (picked[0].0, picked.iter().map(|p| p.0).max().unwrap_or(1).max(picked[0].0 + 1));
    let rank = |all: &mut Vec<u64>| all.sort_unstable();
    let (mut maps, mut reduces): (Vec<u64>, Vec<u64>) =
        (picked.iter().map(|p| p.1).collect(), picked.iter().map(|p| p.2).collect());
    rank(&mut maps);
    rank(&mut reduces);
    let share = |all: &[u64], v: u64| all.partition_point(|&x| x <= v) as f64 / all.len() as f64;
    let one = |&(at, map, reduce): &(u64, u64, u64)| {
        let (m, r) = (share(&maps, map), share(&reduces, reduce));
        // Most jobs are small: eleven tasks a job on average, as 8,000 tasks of 700 jobs are.
        let n_maps = (2.0 * 60f64.powf(m.powi(3))).round() as usize;
        let n_reduces = (20f64.powf(r.powi(2))).round() as usize;
        let mut task =
            |low: f64, high: f64| Span::from_secs_f64((low * (high / low).powf(rng.unit())) * (0.9 + 0.2 * rng.unit()));
        Job {
            arrives_at: Time::from_nanos((at - first) * (HOURS * 3_600_000_000_000 / (last - first))),
            maps: (0..n_maps).map(|_| task(50.0, 150.0)).collect(),
            reduces: (0..n_reduces).map(|_| task(15.0, 100.0)).collect(),
        }
    };
    picked.iter().map(one).collect()
}

/// The workload's first and last three hours, each from time zero on: OpTune profiles on the one and tries on the other (§5.4.1).
pub fn halves(jobs: Vec<Job>) -> (Vec<Job>, Vec<Job>) {
    let half = Time::ZERO + HALF;
    let (first, mut last): (Vec<Job>, Vec<Job>) = jobs.into_iter().partition(|j| j.arrives_at < half);
    last.iter_mut().for_each(|j| j.arrives_at = Time::ZERO + j.arrives_at.since(half));
    (first, last)
}

/// Length of each of [`halves`].
pub const HALF: Span = Span::from_secs(HOURS * 1_800);

struct Running {
    job: usize,
    since: Time,
    map_phase_over: Time,
    maps_waiting: Vec<Span>,
    reduces_waiting: Vec<Span>,
    maps_left: usize,
    reduces_left: usize,
    priority: u8,
    level: f64,
    counted: (usize, usize),
}

/// Record of a job at its end.
#[derive(Clone, Debug)]
struct Record {
    level: f64,
    node: &'static str,
    value: Observation,
}

/// The cluster. Its work repeats: when the last job was submitted, the first comes again.
pub struct Cluster {
    jobs: Vec<Job>,
    space: Space,
    prob_sjf: f64,
    drop_p_maps: f64,
    rng: Rng,
    now: Time,
    next_job: usize,
    round: Time,
    running: Vec<Running>,
    free_ids: Vec<usize>,
    map_slots: u32,
    reduce_slots: u32,
    /// Ends of tasks: time, order, job, is it a map, since when.
    ends: BinaryHeap<Reverse<(Time, u64, usize, bool)>>,
    order: u64,
    /// Jobs with tasks to start, by priority (best first) and age.
    wanting: BTreeSet<(Reverse<u8>, u64, usize)>,
    sizes: Vec<usize>,
    submitted: u64,
    records: Vec<Record>,
    busy: f64,
    level_seen: f64,
    /// Only jobs that arrive at this level are reported; `None`: all.
    only_level: Option<usize>,
}

impl Cluster {
    /// Idle, first come first served, nothing dropped.
    pub fn new(jobs: Vec<Job>, seed: u64) -> Cluster {
        assert!(!jobs.is_empty(), "no jobs");
        let mut sizes: Vec<usize> = jobs.iter().map(|j| j.reduces.len()).collect();
        sizes.sort_unstable();
        Cluster {
            jobs,
            space: space(),
            prob_sjf: 0.0,
            drop_p_maps: 0.0,
            rng: Rng::new(seed, "scheduler"),
            now: Time::ZERO,
            next_job: 0,
            round: Time::ZERO,
            running: Vec::new(),
            free_ids: Vec::new(),
            map_slots: MAP_SLOTS,
            reduce_slots: REDUCE_SLOTS,
            ends: BinaryHeap::new(),
            order: 0,
            wanting: BTreeSet::new(),
            sizes,
            submitted: 0,
            records: Vec::new(),
            busy: 0.0,
            level_seen: 0.0,
            only_level: None,
        }
    }

    /// Reports only jobs of one load level from now on.
    pub fn report_level(&mut self, level: Option<usize>) {
        self.only_level = level;
    }

    /// Map tasks waiting or running.
    pub fn active_maps(&self) -> f64 {
        let waiting: usize = self.running.iter().map(|r| r.maps_left).sum();
        waiting as f64
    }

    /// Mean share of map slots in use during the last [`Cluster::serve`].
    pub fn utilisation(&self, time: Span) -> f64 {
        self.busy / time.as_secs_f64() / f64::from(MAP_SLOTS)
    }

    /// Mean of active map tasks seen by the jobs that arrived during the last [`Cluster::serve`].
    pub fn level_seen(&self) -> f64 {
        self.level_seen
    }

    fn next_arrival(&self) -> Time {
        self.round + self.jobs[self.next_job].arrives_at.since(Time::ZERO)
    }

    /// Runs for `time` and returns what was recorded of the jobs that ended.
    pub fn serve(&mut self, time: Span) -> Run {
        let until = self.now + time;
        (self.busy, self.level_seen) = (0.0, 0.0);
        let mut seen = Vec::new();
        loop {
            let end = self.ends.peek().map_or(Time::NEVER, |Reverse(e)| e.0);
            let next = end.min(self.next_arrival());
            let step = next.min(until).since(self.now).as_secs_f64();
            self.busy += step * f64::from(MAP_SLOTS - self.map_slots);
            if next >= until {
                self.now = until;
                break;
            }
            self.now = next;
            if end == next {
                let Reverse((_, _, id, is_map)) = self.ends.pop().expect("just seen");
                self.task_over(id, is_map);
            } else {
                seen.push(self.active_maps());
                self.arrive();
            }
            self.fill_slots();
        }
        self.level_seen = seen.iter().sum::<f64>() / seen.len().max(1) as f64;
        let levels = plimsoll_tune::run::Levels::new(LEVEL_BOUNDS.to_vec()).expect("ascending");
        let mut run = Run::new();
        for r in std::mem::take(&mut self.records) {
            if self.only_level.is_none_or(|l| levels.of(r.level) == l) {
                run.entry(r.node.to_string()).or_default().push(r.value);
            }
        }
        run
    }

    fn arrive(&mut self) {
        let level = self.active_maps();
        let n = self.next_job;
        self.next_job += 1;
        if self.next_job == self.jobs.len() {
            (self.next_job, self.round) = (0, self.now + Span::from_secs(30));
        }
        let mut maps = self.jobs[n].maps.clone();
        let reduces = self.jobs[n].reduces.clone();
        self.rng.shuffle(&mut maps);
        let kept = ((maps.len() as f64) * (1.0 - self.drop_p_maps)).ceil().max(1.0) as usize;
        maps.truncate(kept);
        let priority = if self.rng.chance(self.prob_sjf) { self.size_priority(reduces.len()) } else { 3 };
        let running = Running {
            job: self.submitted as usize,
            since: self.now,
            map_phase_over: Time::NEVER,
            maps_left: maps.len(),
            reduces_left: reduces.len(),
            counted: (maps.len(), reduces.len()),
            maps_waiting: maps,
            reduces_waiting: reduces,
            priority,
            level,
        };
        let id = self.free_ids.pop().unwrap_or(self.running.len());
        if id == self.running.len() {
            self.running.push(running);
        } else {
            self.running[id] = running;
        }
        self.wanting.insert((Reverse(priority), self.submitted, id));
        self.submitted += 1;
    }

    /// Fifths of the sizes: the smallest have priority 5, those around the median 3.
    fn size_priority(&self, reduces: usize) -> u8 {
        let below = self.sizes.partition_point(|&s| s < reduces) as f64;
        let share = (below + self.sizes.partition_point(|&s| s <= reduces) as f64) / 2.0 / self.sizes.len() as f64;
        5 - (share * 5.0).min(4.0) as u8
    }

    fn fill_slots(&mut self) {
        for &(_, _, id) in &self.wanting.clone() {
            let r = &mut self.running[id];
            while self.map_slots > 0
                && let Some(time) = r.maps_waiting.pop()
            {
                self.map_slots -= 1;
                self.order += 1;
                self.ends.push(Reverse((self.now + time, self.order, id, true)));
            }
            while self.reduce_slots > 0
                && r.maps_left == 0
                && let Some(time) = r.reduces_waiting.pop()
            {
                self.reduce_slots -= 1;
                self.order += 1;
                self.ends.push(Reverse((self.now + time, self.order, id, false)));
            }
            if r.maps_waiting.is_empty() && r.reduces_waiting.is_empty() {
                self.wanting.remove(&(Reverse(r.priority), r.job as u64, id));
            }
        }
    }

    fn task_over(&mut self, id: usize, is_map: bool) {
        let now = self.now;
        let r = &mut self.running[id];
        let (level, request) = (r.level, r.job as u64);
        let mut record = |node: &'static str, value: f64| {
            self.records.push(Record { level, node, value: Observation { request, value, weight: 1.0 } });
        };
        if is_map {
            self.map_slots += 1;
            record("map", now.since(r.since).as_millis_f64());
            r.maps_left -= 1;
            if r.maps_left == 0 {
                r.map_phase_over = now;
                record("map_phase", now.since(r.since).as_millis_f64());
            }
            return;
        }
        self.reduce_slots += 1;
        record("reduce", now.since(r.map_phase_over).as_millis_f64());
        r.reduces_left -= 1;
        if r.reduces_left == 0 {
            record("start", 0.0);
            record("reduce_phase", now.since(r.map_phase_over).as_millis_f64());
            record("job", now.since(r.since).as_millis_f64());
            record("maps", r.counted.0 as f64);
            record("reduces", r.counted.1 as f64);
            self.free_ids.push(id);
        }
    }
}

impl Adapter for Cluster {
    fn apply(&mut self, setting: &Setting) -> Result<(), AdapterError> {
        self.prob_sjf = PROB_SJF[usize::from(setting.0[0])];
        self.drop_p_maps = DROP_P_MAPS[usize::from(setting.0[1])];
        debug_assert_eq!(self.space.parameters().len(), 2);
        Ok(())
    }

    fn measure(&mut self, time: Span) -> Result<Run, AdapterError> {
        Ok(self.serve(time))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mean(run: &Run) -> f64 {
        let jobs = &run["job"];
        jobs.iter().map(|o| o.value).sum::<f64>() / jobs.len() as f64
    }

    #[test]
    fn dropping_maps_and_small_jobs_first_shorten_jobs() {
        let run = |s: [u16; 2]| {
            let mut c = Cluster::new(generated(1), 1);
            c.apply(&Setting(s.to_vec())).unwrap();
            let r = c.serve(Span::from_secs(6 * 3600));
            (r, c.utilisation(Span::from_secs(6 * 3600)))
        };
        let (fifo, busy) = run([0, 0]);
        assert!((0.4..0.95).contains(&busy), "{busy}");
        assert_eq!(run([0, 0]).0, fifo, "equal seeds give equal runs");
        assert!(mean(&run([0, 3]).0) < 0.8 * mean(&fifo));
        assert!(mean(&run([4, 0]).0) < mean(&fifo));
        assert!(fifo["job"].len() > 600, "{}", fifo["job"].len());
    }

    #[test]
    fn halves_are_all_jobs_and_share_none() {
        let jobs = generated(3);
        let (first, last) = halves(jobs.clone());
        assert_eq!(first.len() + last.len(), jobs.len());
        assert!(first.len() > 200 && last.len() > 200, "{} and {}", first.len(), last.len());
        assert!(last.iter().chain(&first).all(|j| j.arrives_at <= Time::ZERO + HALF));
        let at = jobs.iter().position(|j| j.arrives_at >= Time::ZERO + HALF).unwrap();
        assert_eq!(last[0].maps, jobs[at].maps);
    }

    #[test]
    fn a_job_is_its_phases() {
        let mut c = Cluster::new(generated(2), 2);
        let run = c.serve(Span::from_secs(3600));
        for o in run["job"].iter().take(50) {
            let of = |node: &str| run[node].iter().find(|p| p.request == o.request).unwrap().value;
            assert!((of("map_phase") + of("reduce_phase") - o.value).abs() < 1e-6);
            let longest = run["map"].iter().filter(|p| p.request == o.request).map(|p| p.value).fold(0.0, f64::max);
            assert_eq!(longest, of("map_phase"), "the barrier is the last map");
        }
    }

    #[test]
    fn strange_files_are_told() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("f.tsv");
        std::fs::write(&file, "job0\t1\t1\t5\t5\t5\njob1\t2\tx\n").unwrap();
        assert!(swim(&file, 1).unwrap_err().contains("f.tsv:2: isn't"));
        std::fs::write(&file, "").unwrap();
        assert!(swim(&file, 1).unwrap_err().contains("no jobs"));
    }
}
