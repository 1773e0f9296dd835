//! The server's side of MySQL's protocol: where an answer ends, and what it says.

use super::super::packet::Start;
use super::super::words::Word;
use super::wire::{ERR_DEADLOCK, ERR_PROGRESS, caps, com, eof_status, lenenc, ok_status, status, until_nul};
use super::{Answer, FULL, Phase, Talk};

impl Talk {
    /// True if the answer that was owed is complete.
    pub(super) fn server_packet(&mut self, p: &Start<'_>, login: &mut bool) -> bool {
        if std::mem::replace(&mut self.output_continues, p.len == FULL) {
            return false;
        }
        match self.phase {
            Phase::Greeting => {
                self.greeting(p.head);
                false
            }
            Phase::Handshake => false,
            Phase::Auth => {
                match p.head.first() {
                    Some(0) => {
                        self.status(ok_status(p.head));
                        (self.account, self.database) = self.claimed;
                        (self.phase, *login) = (Phase::Command, true);
                    }
                    Some(0xff) if self.command == com::CHANGE_USER => self.phase = Phase::Command,
                    _ => {}
                }
                self.phase == Phase::Command
            }
            Phase::Command => self.answer_packet(p),
        }
    }

    fn greeting(&mut self, head: &[u8]) {
        let Some((_, rest)) = head.strip_prefix(&[10]).and_then(until_nul) else {
            // Too many connections is said with an ERR packet instead; anything else is no MySQL.
            self.lost = head.first() != Some(&0xff);
            return;
        };
        // Connection id 4, scramble 8, filler 1, then capabilities low 2, charset 1, status 2, capabilities high 2.
        if let (Some(low), Some(high)) = (rest.get(13..15), rest.get(18..20)) {
            self.server_caps = u32::from_le_bytes([low[0], low[1], high[0], high[1]]);
        }
        // Length of the scramble 1, reserved 6, then what MySQL reserves too.
        if let Some(more) = rest.get(27..31).filter(|_| self.server_caps & caps::MYSQL == 0) {
            self.server_extended = u32::from_le_bytes([more[0], more[1], more[2], more[3]]);
        }
        self.phase = Phase::Handshake;
    }

    fn answer_packet(&mut self, p: &Start<'_>) -> bool {
        let first = p.head.first().copied().unwrap_or(0);
        if first == 0xff && !matches!(self.answer, Answer::None | Answer::Prepared(_) | Answer::Count(_)) {
            return self.error(p.head);
        }
        let eof = first == 0xfe && p.len < FULL;
        self.answer = match self.answer {
            Answer::None => return false,
            Answer::First | Answer::File => return self.first_packet(p, first),
            Answer::Columns if eof && p.len < 9 => {
                let status = eof_status(p.head);
                if status.is_some_and(|s| s & status::CURSOR != 0) || self.command == com::FIELD_LIST {
                    return self.ended(status);
                }
                Answer::Rows
            }
            Answer::Columns => Answer::Columns,
            Answer::Count(n) if n <= 1 => Answer::Rows,
            Answer::Count(n) => Answer::Count(n - 1),
            Answer::Rows if eof => {
                let status = if p.len == 5 { eof_status(p.head) } else { ok_status(p.head) };
                return self.ended(status);
            }
            Answer::Rows => Answer::Rows,
            Answer::Prepared(n) if n <= 1 => return self.ended(None),
            Answer::Prepared(n) => Answer::Prepared(n - 1),
        };
        false
    }

    fn first_packet(&mut self, p: &Start<'_>, first: u8) -> bool {
        match (self.command, first) {
            (com::STATISTICS, _) => return self.ended(None),
            (com::PREPARE, 0) => return self.was_prepared(p.head),
            (_, 0) => return self.ended(ok_status(p.head)),
            (com::FIELD_LIST, 0xfe) => return self.ended(eof_status(p.head)),
            (com::FETCH, _) => {
                self.answer = Answer::Rows;
                return self.answer_packet(p);
            }
            (_, 0xfb) => self.answer = Answer::File,
            _ if self.deprecate_eof => {
                let (count, rest) = lenenc(p.head).unwrap_or((0, &[]));
                // The client has kept the definitions of this prepared statement's columns.
                let kept = self.cache_metadata && rest.first() == Some(&0);
                let none = count == 0 || kept || self.command == com::FIELD_LIST;
                self.answer = if none { Answer::Rows } else { Answer::Count(count as u32) };
            }
            // Kept or not, their EOF comes.
            _ => self.answer = Answer::Columns,
        }
        false
    }

    fn was_prepared(&mut self, head: &[u8]) -> bool {
        let word = std::mem::replace(&mut self.word, Word::None);
        self.last_prepared = head.get(1..5).map_or(0, |b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]));
        if !self.prepared.set(self.last_prepared, word) {
            // No room to remember it: as if it were executed now.
            self.word = word;
        }
        let count = |at: usize| head.get(at..at + 2).map_or(0, |b| u32::from(u16::from_le_bytes([b[0], b[1]])));
        let (columns, params) = (count(5), count(7));
        let eof = u32::from(!self.deprecate_eof);
        let packets = columns + params + eof * (u32::from(columns > 0) + u32::from(params > 0));
        self.answer = Answer::Prepared(packets);
        packets == 0 && self.ended(None)
    }

    fn error(&mut self, head: &[u8]) -> bool {
        let code = head.get(1..3).map_or(0, |b| u16::from_le_bytes([b[0], b[1]]));
        if code == ERR_PROGRESS {
            return false;
        }
        // A deadlock's victim is rolled back; after other errors the transaction stands as it was.
        if code == ERR_DEADLOCK {
            self.in_trans = false;
        }
        (self.answer, self.undone) = (Answer::None, true);
        true
    }

    fn ended(&mut self, status: Option<u16>) -> bool {
        self.status(status);
        if status.is_some_and(|s| s & status::MORE_RESULTS != 0) {
            self.answer = Answer::First;
            return false;
        }
        (self.answer, self.undone) = (Answer::None, self.word == Word::Undo);
        self.takes_effect();
        true
    }

    fn status(&mut self, status: Option<u16>) {
        if let Some(s) = status {
            self.in_trans = s & status::IN_TRANS != 0;
        }
    }
}
