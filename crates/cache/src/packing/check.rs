//! Rules that hold of chunks in memory after each event.

use super::Packing;
use std::collections::{BTreeMap, BTreeSet};

impl Packing {
    /// Checks what must hold after each event, for `Cache::check_truth`.
    ///
    /// # Errors
    /// The rule that is broken, and where.
    pub(crate) fn check(&self) -> Result<(), String> {
        let (mut open, mut numbers) = (BTreeSet::new(), BTreeSet::new());
        // The end of the slots of each WEU's chunks so far, and its number.
        let mut weus: BTreeMap<u32, (u32, u64, bool)> = BTreeMap::new();
        let mut by_sequence: BTreeMap<u64, u32> = BTreeMap::new();
        for c in &self.chunks {
            let at = || format!("the chunk of WEU {} from slot {}", c.weu, c.first_slot);
            let rule = |holds: bool, why: &str| if holds { Ok(()) } else { Err(format!("{} {why}", at())) };
            rule(c.closed || open.insert((c.part, c.dirty)), "is open beside another")?;
            rule(c.sequence < self.next_sequence, "has a number that may be given again")?;
            let first = *by_sequence.entry(c.sequence).or_insert(c.weu);
            if first != c.weu {
                return Err(format!("{} has the number of WEU {first}", at()));
            }
            rule(c.closed == (c.number > 0) && c.number < self.next_chunk, "is numbered before it is closed")?;
            rule(!c.closed || numbers.insert(c.number), "has another's number")?;
            rule(!c.closed || c.writes as usize >= c.held.len().max(1), "is closed, and nothing of it is written")?;
            rule(c.dirty || c.supersedes.is_empty(), "is clean, and an entry waits for it")?;
            if let Some((end, sequence, is_closed)) = weus.get(&c.weu) {
                rule(*sequence == c.sequence && *is_closed && *end <= c.first_slot, "is in the way of another")?;
            }
            weus.insert(c.weu, (c.first_slot + c.entries.len() as u32, c.sequence, c.closed));
        }
        Ok(())
    }
}
