//! Accepted requests whose promise breaks while they wait (MittOS §4.2, MT-M12).
//!
//! There are two causes. Requests that go in front of a node of the same group use up the tolerance of the node's requests: that is
//! known at once. The time of other groups, and turns that end, can't be known beforehand. A request that still waits when its deadline
//! is over ends then.

use super::node::tree_of;
use super::tolerance::NO_LIMIT;
use super::{Cfq, Late};
use crate::tree::Key;
use plimsoll_base::{Io, Outcome, Span, Time};
use plimsoll_stack::Actions;
use std::collections::BTreeSet;

/// Requests that one call ends: some 100 us of the pool's thread. If more are late, others have their turn before the rest.
pub(super) const REVOKED_MAX: usize = 256;

impl Cfq {
    /// A promise broke: true if the request is to be ended for it.
    pub(super) fn revoke(&mut self, now: Time, io: &mut Io) -> bool {
        if !io.may_be_refused() {
            return false;
        }
        match self.config.late {
            Late::Keep => false,
            Late::Cancel => {
                self.revoked += 1;
                true
            }
            Late::Flag => {
                let after = io.deadline + self.config.failover_hop + Span::from_nanos(1);
                if io.head.expected_at < after {
                    self.revoked += 1;
                    self.flagged.push((io.id, now));
                }
                io.head.expected_at = io.head.expected_at.max(after);
                false
            }
        }
    }

    /// Work of `cost` has come to node `at`: all behind it tolerate that much less, as far as it's done before their turn.
    pub(super) fn delay_others(&mut self, now: Time, at: usize, cost: Span) {
        let node = &self.nodes[at];
        let (group, tree) = (node.group, tree_of(node.key.class));
        let turn_left = self.turn.as_ref().filter(|t| t.node == at).map(|t| t.ends_at.since(now));
        let (total, count) = (node.pending.total(), node.pending.len());
        let after = self.work_of(node, total, count);
        let before = self.work_of(node, total.saturating_sub(cost), count - 1).min(after);
        let bound = turn_left.unwrap_or(node.slice);
        let in_turn = (after.min(bound) - before.min(bound)).as_nanos() as i64;
        let all = (after - before).as_nanos() as i64;
        for i in tree..self.groups[group].round.len() {
            let nodes = &self.groups[group].round[i];
            let first = match turn_left {
                _ if i > tree => 0,
                Some(_) => 0,
                None => nodes.iter().position(|n| *n == at).map_or(nodes.len(), |p| p + 1),
            };
            for &n in nodes.iter().skip(first) {
                self.nodes[n].tolerance.lose(if i > tree { all } else { in_turn });
            }
        }
        // Who has the turn isn't in the round, and loses it to a better class.
        if let Some(turn) = &self.turn {
            let active = &mut self.nodes[turn.node];
            if active.group == group && tree_of(active.key.class) > tree {
                active.tolerance.lose(all);
            }
        }
    }

    /// Gives back, or marks, the requests of a group that can't be in time any more, at most `left`. Returns how many more this call may.
    pub(super) fn revoke_late(&mut self, now: Time, group: usize, mut left: usize, out: &mut Actions) -> usize {
        if self.config.late == Late::Keep {
            return left;
        }
        let round = std::mem::take(&mut self.groups[group].round);
        let active = self.turn.as_ref().map(|t| t.node).filter(|&at| self.nodes[at].group == group);
        for at in round.iter().flatten().copied().chain(active) {
            while left > 0
                && let Some(key) = self.nodes[at].tolerance.next_late()
            {
                self.revoke_one(now, at, key, out);
                left -= 1;
            }
        }
        if left == 0 {
            self.late.insert(self.groups[group].tenant);
        }
        self.groups[group].round = round;
        self.leave_round(group);
        left
    }

    /// Ends those that were late when enough had been ended, at most `left`. Returns how many more this call may end.
    pub(super) fn go_on_revoking(&mut self, now: Time, mut left: usize, out: &mut Actions) -> usize {
        while left > 0
            && let Some(tenant) = self.late.pop_first()
        {
            if let Some(group) = self.groups.iter().position(|g| g.tenant == tenant) {
                left = self.revoke_late(now, group, left, out);
            }
        }
        left
    }

    /// A node that has nothing left has no turn to wait for.
    fn leave_round(&mut self, group: usize) {
        let nodes = &mut self.nodes;
        for nodes_of in &mut self.groups[group].round {
            nodes_of.retain(|&n| {
                let stays = !nodes[n].pending.is_empty();
                nodes[n].in_round = stays;
                stays
            });
        }
    }

    /// From when on a waiting request can't be in time, whoever else comes or goes; `None` if nothing is to be done then.
    pub(super) fn due(&self, io: &Io) -> Option<Time> {
        let is_given_back = self.config.late == Late::Cancel && io.may_be_refused();
        is_given_back.then(|| io.deadline + self.config.failover_hop)
    }

    /// Ends requests whose time is over, at most a call's share of them. Returns how many more this call may end.
    pub(super) fn end_overdue(&mut self, now: Time, out: &mut Actions) -> usize {
        let (mut left, mut groups) = (REVOKED_MAX, BTreeSet::new());
        while left > 0
            && let Some((&(due, _), &(at, key))) = self.due.first_key_value()
            && due <= now
        {
            self.revoke_one(now, at, key, out);
            groups.insert(self.nodes[at].group);
            left -= 1;
        }
        for group in groups {
            self.leave_round(group);
        }
        left
    }

    fn revoke_one(&mut self, now: Time, at: usize, key: Key, out: &mut Actions) {
        let node = &mut self.nodes[at];
        if self.config.late == Late::Flag {
            let hop = self.config.failover_hop;
            let tolerance = &mut node.tolerance;
            node.pending.change(key, |io, group| {
                tolerance.remove(*group, key);
                *group = NO_LIMIT;
                io.head.expected_at = io.head.expected_at.max(io.deadline + hop + Span::from_nanos(1));
            });
            self.flagged.push((key.1, now));
            self.revoked += 1;
            return;
        }
        let io = self.withdraw(now, at, key).expect("it's known to wait");
        self.revoked += 1;
        let wait = io.deadline.since(now).max(self.device.busy_for(now) + self.dispatch_cost);
        out.end(io, Outcome::Busy { wait, confidence: self.device.confidence() });
    }
}
