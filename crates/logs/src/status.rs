//! Counters and status of the logs.

use crate::layer::{Life, Logs};
use crate::log::State;
use plimsoll_base::{Span, Time};

/// The reason of emptying logs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Why {
    /// No log had room, or the MTL table had none.
    #[default]
    Full,
    /// The operator asked.
    Asked,
    /// The off-hours began.
    OffHours,
    /// It was time.
    Periodic,
    /// Clients were quiet.
    Idle,
    /// Clients were quiet, and one log was nearly full.
    Swap,
}

impl Why {
    /// In a word.
    pub const fn name(self) -> &'static str {
        match self {
            Why::Full => "full",
            Why::Asked => "asked",
            Why::OffHours => "off-hours",
            Why::Periodic => "periodic",
            Why::Idle => "idle",
            Why::Swap => "swap",
        }
    }
}

/// Report of one emptying of logs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CleanReport {
    /// Its reason.
    pub why: Why,
    /// Logs emptied.
    pub logs: u32,
    /// Its beginning.
    pub begun_at: Time,
    /// Its duration, pauses included.
    pub took: Span,
    /// Of that, reading logs.
    pub read_time: Span,
    /// Of that, writing.
    pub write_time: Span,
    /// Valid pieces moved.
    pub extents: u64,
    /// Requests that read them.
    pub reads: u64,
    /// Their bytes.
    pub read_bytes: u64,
    /// Requests that wrote them: fewer than pieces where neighbours were merged.
    pub writes: u64,
    /// Their bytes.
    pub write_bytes: u64,
}

/// Counters since the start.
#[derive(Clone, Debug, Default)]
pub struct Counters {
    /// Writes that went to logs.
    pub logged: u64,
    /// Their bytes.
    pub logged_bytes: u64,
    /// Records written.
    pub records: u64,
    /// Their bytes, headers included.
    pub record_bytes: u64,
    /// Records that failed and were written elsewhere.
    pub records_failed: u64,
    /// Small writes that went to their home addresses because no log had room.
    pub spilled: u64,
    /// Reads that found something in a log.
    pub reads_from_logs: u64,
    /// Ranges whose logged data were superseded at home.
    pub kills: u64,
    /// Reads that found other bytes in a log than were written there.
    pub reads_corrupt: u64,
    /// Reads of logged data that are known lost.
    pub reads_lost: u64,
    /// Records written only to say what was durable before them.
    pub witness_records: u64,
    /// Writes of tables that failed and were tried again.
    pub table_errors: u64,
    /// Logged pieces of another volume that a read didn't see.
    pub foreign_hidden: u64,
    /// Notes written.
    pub notes: u64,
    /// Images of the MTL table written.
    pub images: u64,
    /// The last one's bytes.
    pub image_bytes: u64,
    /// Time that the last one took.
    pub image_time: Span,
    /// Logs swapped.
    pub swaps: u64,
    /// Checkpoints, whole or in idle time.
    pub checkpoints: u64,
    /// Jobs that came to nothing.
    pub cleans_failed: u64,
    /// Reads and writes of theirs that failed.
    pub clean_errors: u64,
    /// Bytes moved to their home addresses or to another log.
    pub cleaned_bytes: u64,
    /// Logs retired.
    pub logs_retired: u64,
    /// The last job.
    pub last_clean: Option<CleanReport>,
    /// Report of the last recovery.
    pub recovery: RecoveryReport,
}

/// Findings and cost of a recovery.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RecoveryReport {
    /// From the start until the layer served.
    pub took: Span,
    /// Extents in the image.
    pub image_extents: u64,
    /// Logs looked at for records.
    pub logs_scanned: u32,
    /// Records found.
    pub records: u64,
    /// Bytes read.
    pub bytes_read: u64,
    /// Logs that could not be read.
    pub logs_unreadable: u32,
    /// Copies of layout page, note or image that were corrupt and have been written again.
    pub repaired: u32,
    /// Bytes of durable records that were corrupt.
    pub lost_bytes: u64,
    /// It was of format version 1 and has been converted.
    pub converted: bool,
    /// The capacitor's dump was whole, so no log was looked at.
    pub from_dump: bool,
}

/// Work of the layer beside passing requests on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Activity {
    /// Records under way.
    pub records: u32,
    /// A flush that has kills to record is under way.
    pub recording_kills: bool,
    /// An image of the MTL table is under way.
    pub image: bool,
    /// Logs are being emptied.
    pub cleaning: Option<Why>,
}

/// Status of the logs.
#[derive(Clone, Debug)]
pub struct LogsStatus {
    /// The problem, if there is one.
    pub problem: Option<String>,
    /// Number of logs.
    pub logs: u32,
    /// One log's bytes.
    pub log_bytes: u64,
    /// One group's bytes.
    pub group_bytes: u64,
    /// Writes up to this are logged now; 0: none.
    pub logged_write_bytes: u64,
    /// The same as configured.
    pub logged_write_bytes_configured: u64,
    /// Logging is switched off for a load that it doesn't help.
    pub switched_off: bool,
    /// Used space of each log, in percent, in the order of their places; 255: retired.
    pub occupancy: Vec<u8>,
    /// Valid bytes in logs.
    pub valid_bytes: u64,
    /// Extents in the MTL table.
    pub extents: u64,
    /// The most extents that it may have.
    pub extents_max: u64,
    /// Bytes of an image of it.
    pub mtl_bytes: u64,
    /// Kills that no record says yet.
    pub kills_pending: u64,
    /// Bytes whose reads fail until they are written again, as what was logged of them is lost.
    pub lost_bytes: u64,
    /// The emptying under way: its reason, and bytes that are still to move.
    pub cleaning: Option<(Why, u64)>,
    /// Its remaining time, extrapolated from the time so far.
    pub cleaning_left: Option<Span>,
    /// Since the start.
    pub counters: Counters,
}

impl Logs {
    /// The reason why it doesn't serve, or serves in part only.
    pub fn problem(&self) -> Option<String> {
        match &self.life {
            Life::Recovering => None,
            Life::Ready => self.trouble_in_words(),
            Life::Degraded(why) => Some((*why).to_string()),
            Life::Failed(why) => Some(why.clone()),
        }
    }

    fn trouble_in_words(&self) -> Option<String> {
        let lost = self.mtl.lost_bytes();
        let lost = (lost > 0).then(|| {
            format!("{lost} bytes of logged data are lost: reads of them fail until they are written again or restored")
        });
        let trouble = self.trouble.map(|t| t.why.to_string());
        let logs = self.unreadable_logs();
        let unreadable = (logs > 0).then(|| {
            format!(
                "logged data of {logs} logs can't be read, so these logs stay as they are: reads of such data fail; write them again or restore them, or order a checkpoint to try again, and replace the device"
            )
        });
        let all = [self.lost.clone(), lost, unreadable, self.corrupt.clone(), trouble];
        let all: Vec<String> = all.into_iter().flatten().collect();
        (!all.is_empty()).then(|| all.join("; "))
    }

    /// Returns the work under way.
    pub fn activity(&self) -> Activity {
        Activity {
            records: self.records_inflight,
            recording_kills: self.flush_job.is_some(),
            image: self.is_image_busy(),
            cleaning: self.clean.as_ref().map(|c| c.why),
        }
    }

    /// Returns the counters.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Returns the status now. Looks at every log.
    pub fn status(&self, now: Time) -> LogsStatus {
        let size = self.layout.shape.log_bytes;
        let percent = |l: &crate::log::Log| match l.state {
            State::Bad => 255,
            _ => (u64::from(l.tail) * 100).div_ceil(size) as u8,
        };
        let (cleaning, cleaning_left) = self.cleaning(now);
        LogsStatus {
            problem: self.problem(),
            logs: self.layout.logs,
            log_bytes: size,
            group_bytes: self.layout.shape.group_bytes,
            logged_write_bytes: self.adapt.logged_write_bytes(),
            logged_write_bytes_configured: self.config.logged_write_bytes,
            switched_off: self.adapt.is_off(),
            occupancy: self.logs.iter().map(percent).collect(),
            valid_bytes: self.mtl.bytes(),
            extents: self.mtl.len() as u64,
            extents_max: u64::from(self.layout.shape.extents_max),
            mtl_bytes: self.mtl.len() as u64 * crate::layout::IMAGE_EXTENT_BYTES,
            kills_pending: self.kills.len() as u64,
            lost_bytes: self.mtl.lost_bytes(),
            cleaning,
            cleaning_left,
            counters: self.counters.clone(),
        }
    }

    fn cleaning(&self, now: Time) -> (Option<(Why, u64)>, Option<Span>) {
        let Some((why, done, left, begun_at)) = self.clean_progress() else { return (None, None) };
        let took = now.since(begun_at);
        (Some((why, left)), (done > 0).then(|| took.scale(left, done)))
    }
}
