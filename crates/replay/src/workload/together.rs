//! Several closed loops at once, each a tenant's.

use crate::workload::{ClosedLoop, Step};
use plimsoll_base::Time;

/// See the module's documentation. Threads are numbered part by part.
pub struct Together {
    parts: Vec<Part>,
    /// Part that owns each thread.
    owners: Vec<u16>,
    only: Option<u16>,
    /// Nothing is asked for before.
    from: Time,
}

struct Part {
    tenant: u16,
    first_thread: u32,
    load: Box<dyn ClosedLoop>,
}

impl Together {
    /// Each load is its tenant's.
    pub fn new(loads: Vec<(u16, Box<dyn ClosedLoop>)>) -> Together {
        let (mut parts, mut owners) = (Vec::new(), Vec::new());
        for (tenant, load) in loads {
            let first_thread = owners.len() as u32;
            owners.extend(std::iter::repeat_n(parts.len() as u16, load.threads() as usize));
            parts.push(Part { tenant, first_thread, load });
        }
        Together { parts, owners, only: None, from: Time::ZERO }
    }

    /// Only this tenant's load runs from `from` on, or all again. Threads of the others have finished, as far as a run that begins then
    /// is concerned.
    pub fn only(&mut self, tenant: Option<u16>, from: Time) {
        (self.only, self.from) = (tenant, from);
    }

    fn part(&self, thread: u32) -> &Part {
        &self.parts[usize::from(self.owners[thread as usize])]
    }
}

impl ClosedLoop for Together {
    fn threads(&self) -> u32 {
        self.owners.len() as u32
    }
    fn depth(&self) -> u32 {
        self.parts.iter().map(|p| p.load.depth()).max().unwrap_or(1)
    }
    fn depth_of(&self, thread: u32) -> u32 {
        let p = self.part(thread);
        p.load.depth_of(thread - p.first_thread)
    }
    fn tenant_of(&self, thread: u32) -> Option<u16> {
        Some(self.part(thread).tenant)
    }
    /// One label for all: results are separated by tenants here.
    fn labels(&self) -> &[&'static str] {
        &["io"]
    }
    fn next(&mut self, thread: u32, now: Time) -> Step {
        let p = &mut self.parts[usize::from(self.owners[thread as usize])];
        if self.only.is_some_and(|t| t != p.tenant) {
            return Step::Finished;
        }
        if now < self.from {
            return Step::Think(self.from.since(now));
        }
        match p.load.next(thread - p.first_thread, now) {
            Step::Send { request, .. } => Step::Send { request, label: 0 },
            other => other,
        }
    }
}
