//! The journal's records of WEUs, while starting: dead and clean slots, retired numbers, deleted volumes.

use super::Recovery;
use crate::format::Record;
use crate::index::{Loc, set_bit};

/// Bits of a WEU, under a number.
#[derive(Clone, Default)]
pub(super) struct Marks {
    pub sequence: u64,
    pub dead: Vec<u64>,
    pub cleaned: Vec<u64>,
}

impl Recovery {
    /// The age of an entry relative to others: its chunk, and its slot.
    pub(super) fn order(&self, loc: Loc) -> (u64, u32) {
        let chunks = &self.chunks[loc.weu() as usize];
        let at = chunks.partition_point(|(first, _)| *first <= loc.slot());
        (at.checked_sub(1).map_or(0, |i| chunks[i].1), loc.slot())
    }

    /// Applies what the journal says; `under` is the number that bits are under.
    pub(super) fn replay(&mut self, record: Record, under: &mut u64) {
        let weus = self.marks.len() as u32;
        match record {
            Record::Dead { weu, sequence, slot } if weu < weus => {
                if let Some(m) = self.marks_of(weu, sequence) {
                    set_bit(&mut m.dead, slot);
                }
            }
            Record::Cleaned { weu, sequence, slot } if weu < weus => {
                if let Some(m) = self.marks_of(weu, sequence) {
                    set_bit(&mut m.cleaned, slot);
                }
            }
            Record::Least { weu, sequence, suspect, confirmed } if weu < weus => {
                self.least[weu as usize] = self.least[weu as usize].max(sequence);
                *under = sequence;
                if confirmed {
                    self.confirmed[weu as usize] = self.confirmed[weu as usize].max(sequence);
                }
                if suspect {
                    self.suspect.insert((weu, sequence));
                }
            }
            Record::Held { weu, sequence, slots } if weu < weus => {
                let held = &mut self.held[weu as usize];
                *held = (*held).max((sequence, slots));
            }
            Record::Gone(key) => {
                self.gone.insert(key);
            }
            Record::Missed(key) => self.miss(key),
            Record::DeadBits { weu, word, bits } if weu < weus => {
                let sequence = *under;
                if let Some(m) = self.marks_of(weu, sequence) {
                    or_word(&mut m.dead, word, bits);
                }
            }
            Record::CleanBits { weu, word, bits } if weu < weus => {
                let sequence = *under;
                if let Some(m) = self.marks_of(weu, sequence) {
                    or_word(&mut m.cleaned, word, bits);
                }
            }
            _ => {} // of a WEU that there isn't: no such block was written by us
        }
    }

    /// The marks of a WEU under a number, unless later ones are known.
    fn marks_of(&mut self, weu: u32, sequence: u64) -> Option<&mut Marks> {
        let m = &mut self.marks[weu as usize];
        if sequence < m.sequence {
            return None;
        }
        if sequence > m.sequence {
            *m = Marks { sequence, ..Marks::default() };
        }
        Some(m)
    }
}

fn or_word(bits: &mut Vec<u64>, word: u32, value: u64) {
    if bits.len() <= word as usize {
        bits.resize(word as usize + 1, 0);
    }
    bits[word as usize] |= value;
}
