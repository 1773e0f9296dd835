//! Measurements of a run.

use super::engine::{Model, User};
use super::{Measured, Setting};

/// Coefficient of variation of a user's latencies.
fn variation(u: &User) -> f64 {
    let n = u.done.max(1) as f64;
    let mean = u.sum / n;
    let variance = (u.squares / n - mean * mean).max(0.0);
    if u.done >= 2 { variance.sqrt() / mean } else { 0.0 }
}

impl Model {
    pub fn report(mut self, setting: &Setting) -> Measured {
        let seconds = setting.time.as_secs_f64();
        let n = self.users.len() as f64;
        let mut by_user = vec![0; setting.user_of(self.users.len() - 1) + 1];
        self.users.iter().enumerate().for_each(|(i, u)| by_user[setting.user_of(i)] += u.done);
        let mean = self.sums.finished as f64 / by_user.len() as f64;
        let far = |done: &u64| (*done as f64 - mean).abs();
        let s = self.sensitive_users;
        let head = *self.gate.gate().head;
        let sums = &self.sums;
        let finished = sums.finished.max(1) as f64;
        Measured {
            rate: sums.finished as f64 / seconds,
            unfairness: 100.0 * by_user.iter().map(far).fold(0.0, f64::max) / mean.max(1e-9),
            variability: 100.0 * self.users.iter().map(variation).sum::<f64>() / n,
            delay_ms: sums.delay.as_millis_f64() / finished,
            inside_ms: sums.inside_time.as_millis_f64() / finished,
            hit: 100.0 * sums.hits as f64 / sums.reads.max(1) as f64,
            spin: 100.0 * sums.crowded_ns as f64 / sums.core_ns.max(1) as f64,
            lock_waits_ms: self.users.iter().map(|u| u.lock_wait.as_millis_f64()).collect(),
            lock_wait_ms: self.users.iter().map(|u| u.lock_wait.as_millis_f64()).sum::<f64>() / finished,
            disk_queue: sums.disk_samples.0 as f64 / sums.disk_samples.1.max(1) as f64,
            sensitive_p999_ms: self.sensitive.percentile(99.9).as_millis_f64(),
            sensitive_variability: 100.0 * self.users[..s].iter().map(variation).sum::<f64>() / s.max(1) as f64,
            sensitive_rate: self.users[..s].iter().map(|u| u.done).sum::<u64>() as f64 / seconds,
            p: head.knobs.p,
            zeta: head.knobs.zeta,
            inside_max: sums.inside_max,
        }
    }
}
