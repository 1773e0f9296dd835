//! The event log: changes with their authors, clients, refusals, problems and their ends. Memory has a bounded number of each
//! kind, so that a flood of one kind never displaces another. Events also go to the log, with a target of their own; frequent
//! kinds are logged rarely.

use crate::crowd::Seldom;
use std::collections::VecDeque;
use std::sync::Mutex;
use std::time::{SystemTime, UNIX_EPOCH};

/// Events of one kind that are kept.
pub const KEPT: usize = 512;
/// Longer texts are cut: some are made of what clients sent.
const TEXT_BYTES_MAX: usize = 1024;
/// Names of all kinds.
pub const KINDS: [&str; 7] = ["node", "change", "problem", "connection", "refusal", "tls", "cleaning"];

/// The subject of an event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// The node itself: started, reloaded, ending.
    Node,
    /// A change through the control API.
    Change,
    /// A problem began or ended: a broken promise, a failing device, a pool that recovers.
    Problem,
    /// An NBD client came or went.
    Connection,
    /// Somebody asked for what isn't granted, or found a limit reached.
    Refusal,
    /// A TLS handshake failed.
    Tls,
    /// Logs were emptied.
    Cleaning,
}

impl Kind {
    /// Its name in the API.
    pub const fn name(self) -> &'static str {
        KINDS[self as usize]
    }
}

/// Severity of an event.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Severity {
    /// Ordinary.
    Info,
    /// Somebody may have to look.
    Warning,
    /// Somebody must.
    Error,
}

impl Severity {
    /// Its name in the API.
    pub const fn name(self) -> &'static str {
        ["info", "warning", "error"][self as usize]
    }
}

/// An event.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Event {
    /// Its number, from 1, in the order of all kinds.
    pub number: u64,
    /// Microseconds since 1970.
    pub unix_us: u64,
    /// Its subject.
    pub kind: Kind,
    /// Its severity.
    pub severity: Severity,
    /// The client that caused it, if one did: `uid:0`, an address, `cert:NAME` and an address.
    pub who: Option<String>,
    /// The event in words.
    pub what: String,
}

#[derive(Debug, Default)]
struct Kept {
    last: u64,
    by_kind: [VecDeque<Event>; KINDS.len()],
}

/// An event that isn't kept or logged yet.
#[derive(Debug)]
struct New {
    unix_us: u64,
    kind: Kind,
    severity: Severity,
    who: Option<String>,
    what: String,
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub struct Events {
    /// Queue of threads that must not wait: at most the number of events kept.
    soon: Mutex<Vec<New>>,
    kept: Mutex<Kept>,
    logged: [Seldom; KINDS.len()],
}

impl Events {
    /// Adds an event, and logs it. Of clients that come and go, are refused or fail in TLS, and of emptied logs, one a second is logged.
    pub fn add(&self, kind: Kind, severity: Severity, who: Option<String>, what: String) {
        self.settle();
        self.keep(New { unix_us: unix_us(), kind, severity, who, what });
    }

    /// Adds an event from a thread that must not wait, as a pool's: it is kept and logged when the next one is added or events are read.
    pub fn add_soon(&self, kind: Kind, severity: Severity, who: Option<String>, what: String) {
        let mut soon = self.soon.lock().expect("no panic while held");
        if soon.len() < KEPT {
            soon.push(New { unix_us: unix_us(), kind, severity, who, what });
        }
    }

    /// Keeps and logs what was added by threads that must not wait.
    pub fn settle(&self) {
        let soon = std::mem::take(&mut *self.soon.lock().expect("no panic while held"));
        soon.into_iter().for_each(|new| self.keep(new));
    }

    fn keep(&self, New { unix_us, kind, severity, who, what }: New) {
        // Clients' words stay on one line.
        let plain = |text: String| text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect::<String>();
        let (who, mut what) = (who.map(plain), plain(what));
        if what.len() > TEXT_BYTES_MAX {
            let end = (0..=TEXT_BYTES_MAX).rev().find(|at| what.is_char_boundary(*at)).unwrap_or(0);
            what.truncate(end);
            what.push('…');
        }
        let is_frequent = matches!(kind, Kind::Connection | Kind::Refusal | Kind::Tls | Kind::Cleaning);
        if !is_frequent || self.logged[kind as usize].may() {
            let (name, by) = (kind.name(), who.as_deref().unwrap_or("-"));
            match severity {
                Severity::Info if is_frequent => tracing::debug!(target: "plimsoll::events", kind = name, by, "{what}"),
                Severity::Info => tracing::info!(target: "plimsoll::events", kind = name, by, "{what}"),
                Severity::Warning => tracing::warn!(target: "plimsoll::events", kind = name, by, "{what}"),
                Severity::Error => tracing::error!(target: "plimsoll::events", kind = name, by, "{what}"),
            }
        }
        let mut kept = self.kept.lock().expect("no panic while held");
        kept.last += 1;
        let number = kept.last;
        let of_kind = &mut kept.by_kind[kind as usize];
        if of_kind.len() == KEPT {
            of_kind.pop_front();
        }
        of_kind.push_back(Event { number, unix_us, kind, severity, who, what });
    }

    /// The events after number `after`, oldest first, the newest `most` of them, of one kind or of all; and the number of the newest event
    /// of all.
    pub fn after(&self, after: u64, kind: Option<&str>, most: usize) -> (Vec<Event>, u64) {
        self.settle();
        let kept = self.kept.lock().expect("no panic while held");
        let wanted = kept.by_kind.iter().flatten();
        let wanted = wanted.filter(|e| e.number > after && kind.is_none_or(|kind| kind == e.kind.name()));
        let mut all: Vec<Event> = wanted.cloned().collect();
        all.sort_unstable_by_key(|e| e.number);
        let first = all.len().saturating_sub(most);
        (all.split_off(first), kept.last)
    }
}

/// The time, in microseconds since 1970.
pub(crate) fn unix_us() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_micros() as u64)
}

/// A time of UTC, as RFC 3339 has it.
pub fn utc(unix_us: u64) -> String {
    let (days, s) = (unix_us / 86_400_000_000, unix_us / 1_000_000 % 86_400);
    // Days since 0000-03-01, in eras of 400 years (Hinnant, "chrono-compatible low-level date algorithms").
    let z = days + 719_468;
    let (era, day_of_era) = (z / 146_097, z % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z", s / 3600, s / 60 % 60, s % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_dates() {
        for (s, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_795_437_296, "2026-11-23T12:34:56Z"),
        ] {
            assert_eq!(utc(s * 1_000_000), text);
        }
    }

    #[test]
    fn a_flood_of_one_kind_leaves_the_others() {
        let events = Events::default();
        events.add(Kind::Change, Severity::Info, Some("uid:0".into()), "x".into());
        for n in 0..3 * KEPT {
            events.add(Kind::Refusal, Severity::Warning, None, format!("{n} {}", "é".repeat(TEXT_BYTES_MAX)));
        }
        let (all, last) = events.after(0, None, usize::MAX);
        assert_eq!((all.len(), all[0].kind, last), (KEPT + 1, Kind::Change, 3 * KEPT as u64 + 1));
        assert!(all.iter().all(|e| e.what.len() <= TEXT_BYTES_MAX + "…".len()));
        assert!(all.is_sorted_by_key(|e| e.number));
        let (newest, _) = events.after(0, Some("refusal"), 2);
        assert_eq!(newest.iter().map(|e| e.number).collect::<Vec<_>>(), [last - 1, last]);
        assert_eq!(events.after(last, None, 10).0, []);
        events.add_soon(Kind::Connection, Severity::Info, None, "two\nlines".into());
        assert_eq!(events.after(last, None, 10).0[0].what, "two lines");
    }

    #[test]
    fn kinds_have_their_names() {
        use Kind::{Change, Cleaning, Connection, Node, Problem, Refusal, Tls};
        let all = [Node, Change, Problem, Connection, Refusal, Tls, Cleaning];
        assert_eq!(all.map(|kind| format!("{kind:?}").to_lowercase()), KINDS);
        assert_eq!(all.map(Kind::name), KINDS);
    }
}
