//! Settings of the logs' behaviour, changeable live (the layout is [`crate::Shape`]).

use plimsoll_base::{Span, Time};
use serde::{Deserialize, Serialize};

/// Length of the longest trim or zeroes that the layer takes without keeping others waiting: it looks at each logged extent.
pub const RANGE_BYTES: u64 = 8 << 20;

/// Settings of the layer. Each default names its source.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LogsConfig {
    /// LoggedWriteSize: writes up to this go to a log (Manylogs §III-C: 256 KB for the block layer); 0 logs nothing. It should be at
    /// most [`crate::Shape::logged_write_max`]: a recovery under a lower value looks for records of up to that size.
    pub logged_write_bytes: u64,
    /// The largest record: what waits when one is built goes out with it.
    pub record_bytes_max: u64,
    /// Records under way at once. More than one, or a burst waits for its first write; few, or nothing is gathered.
    pub records_inflight_max: u32,
    /// A write waits this long for others to go with it. Nothing beside a disk's rotation; a sync() of 20 files comes
    /// within it.
    pub gather: Span,
    /// The times at which logged data are checkpointed.
    pub clean: CleanConfig,
    /// A log is swapped in idle time when it is fuller than this, in percent (§III-G: 80).
    pub swap_above_percent: u32,
    /// And only if the next log with room is more groups away than this: as long as there is one close by, moving data away from
    /// where they are read costs more than it gives (measured: ML-8H). 0 as in the paper.
    pub swap_reach_groups: u32,
    /// The MTL table is written out at least so often while it changes (§III-E: hourly); bounds recovery.
    pub image_every: Span,
    /// Lower LoggedWriteSize when the logs would fill before the off-hours (§VI; ML-M17).
    pub adaptive: bool,
    /// Stop logging a load that fills all logs within this time at the smallest LoggedWriteSize: there it doesn't pay
    /// (§VIII). Zero never stops.
    pub off_below: Span,
    /// Capacitor-backed RAM for the MTL table, where there is any.
    pub capacitor: Option<Capacitor>,
    /// If nothing is logged for this long after records became durable, an empty record witnesses that they were. So a later corruption
    /// of them is noticed, and not taken for a record that a power loss tore.
    pub witness_after: Span,
    /// Serve, degraded, although durable records are known lost whose ranges are not known: older data may be read there. A start
    /// with it that finds no further loss no longer says so of an earlier one.
    pub accept_loss: bool,
    /// A mistake planted by a test that looks whether it is found.
    #[serde(skip)]
    pub planted: Option<Planted>,
}

impl Default for LogsConfig {
    fn default() -> LogsConfig {
        LogsConfig {
            logged_write_bytes: 256 << 10,
            record_bytes_max: 1 << 20,
            records_inflight_max: 2,
            gather: Span::from_micros(200),
            clean: CleanConfig::default(),
            swap_above_percent: 80,
            swap_reach_groups: 4,
            image_every: Span::from_secs(3600),
            adaptive: true,
            off_below: Span::from_secs(600),
            capacitor: None,
            witness_after: Span::from_millis(100),
            accept_loss: false,
            planted: None,
        }
    }
}

/// Rules of checkpointing (§III-F). Under any setting, logs are also emptied when none has room, and when the operator asks.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CleanConfig {
    /// Once a day, in bulk.
    pub off_hours: Option<OffHours>,
    /// Every so often, whatever the load.
    pub every: Option<Span>,
    /// Piece by piece when clients have asked nothing for this long; log swapping waits for the same.
    pub idle_after: Option<Span>,
    /// True if idle time is used for cleaning (otherwise for swapping only, as the paper prefers where it is rare).
    pub when_idle: bool,
    /// And then only when more than this share of the logs, in percent, holds something worth moving: as lazily as there is
    /// room for. Data that are read again soon are closer together in the logs than at home (measured: ML-8H).
    pub when_used_percent: u32,
    /// Bytes held in memory while they move.
    pub batch_bytes: u64,
}

impl Default for CleanConfig {
    fn default() -> CleanConfig {
        CleanConfig {
            off_hours: None,
            every: None,
            // A hundred times what one of its requests takes (256 KiB on a disk, about 10 ms): what a client that comes back may find
            // before it is then at most a hundredth of the time in which it asked nothing. ML-8H shows what less costs.
            idle_after: Some(Span::from_secs(1)),
            when_idle: true,
            when_used_percent: 25,
            batch_bytes: 16 << 20,
        }
    }
}

/// A window that comes again every day.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OffHours {
    /// The beginning of a window, on the layer's clock.
    pub first: Time,
    /// Its length.
    pub lasts: Span,
}

/// From one window's beginning to the next.
pub const DAY: Span = Span::from_secs(24 * 3600);

impl OffHours {
    /// True if `now` is in a window.
    pub fn contains(&self, now: Time) -> bool {
        now >= self.first && now.since(self.first).as_nanos() % DAY.as_nanos() < self.lasts.as_nanos()
    }

    /// The beginning of the window that `now` is in, or of the last one.
    pub fn begun(&self, now: Time) -> Time {
        let days = now.since(self.first).as_nanos() / DAY.as_nanos();
        self.first + Span::from_nanos(days * DAY.as_nanos())
    }

    /// The beginning of the next window after `now`.
    pub fn next(&self, now: Time) -> Time {
        if now < self.first {
            return self.first;
        }
        self.begun(now) + DAY
    }
}

/// Capacitor-backed RAM that holds the MTL table (§III-E). It is used to recover faster and is never the only place of
/// anything: what it can't write out in its time, the records' headers still say.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Capacitor {
    /// Time for which the capacitor feeds RAM and device after the power is lost (100 to 400 ms).
    pub lasts: Span,
    /// Bytes that the device writes in a second meanwhile (the paper reckons with 100 MB).
    pub bytes_per_s: u64,
}

impl Capacitor {
    /// Bytes that can be written out.
    pub fn budget_bytes(&self) -> u64 {
        self.bytes_per_s / 1000 * (self.lasts.as_nanos() / 1_000_000)
    }
}

/// Mistakes that the crash tests must find, one at a time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Planted {
    /// A client's flush isn't passed on.
    FlushNotPassed,
    /// An image is named before it is durable, and before the writes to home addresses that it records are.
    ImageNotFlushed,
    /// A record's data may be anything.
    DataSumIgnored,
    /// A record may follow any other.
    ChainIgnored,
    /// That something newer is at home is never recorded.
    KillForgotten,
    /// That something newer is at home is recorded before it is durable there.
    KillTooEarly,
    /// After a recovery, sequence numbers are given again.
    SequenceReused,
    /// A FUA write is acknowledged though the record before it isn't durable.
    FuaNotFlushed,
    /// Records are acknowledged though nobody will look for them.
    NoteForgotten,
    /// Data that was superseded while it was read is checkpointed all the same.
    StaleWrittenHome,
    /// A client's write home doesn't wait for a checkpoint's.
    HomeUnordered,
    /// A log is reused before the image that empties it.
    ResetTooEarly,
    /// The rest of a cut extent is looked for at the extent's beginning.
    CutMisplaced,
    /// Records are acknowledged out of their order in the log.
    AckedOutOfOrder,
    /// A trim leaves the logged data valid.
    TrimForgotten,
    /// A log is reused while a client still reads from it.
    ReaderIgnored,
    /// The newer image's body isn't checked.
    ImageSumIgnored,
    /// A failure elsewhere on the device doesn't reach the layer: it continues to empty logs.
    LossUnheard,
    /// A newer image that the notes name but that is corrupt is taken for one that was cut off.
    OlderImageUsed,
    /// Logs are emptied before the notes name the image that empties them.
    ReusedBeforeNote,
    /// A note is written once, and the older one is used if it is corrupt.
    NoteOnce,
    /// After a power loss between the two copies of a note, the older one stays.
    OlderNoteLeft,
    /// An image is written once, and the older one is used if it is corrupt.
    ImageOnce,
    /// A recovery doesn't look for less than a witness names.
    WitnessIgnored,
    /// Nothing is written for durable records that no record follows.
    WitnessNeverWritten,
    /// A start takes all that it finds for durable.
    StartUnflushed,
    /// A log with a record that can't be read is used on.
    UnreadableUnsealed,
    /// Records don't say of which start they are.
    StartsAlike,
    /// A new record may complete what was left of a torn one at its place.
    TornRevived,
    /// The copies in a record that failed are killed before the writes are durable elsewhere.
    KilledBeforeReplaced,
    /// A record names what isn't durable yet.
    WitnessTooEarly,
    /// Behind a corrupt record of a log none is looked for.
    SearchForgotten,
    /// Behind a corrupt record of a log one is looked for only as far as a record of today's settings may be long.
    SearchByToday,
    /// An image doesn't say that a record was under way behind a log's end.
    BusyForgotten,
    /// Clients' reads from a log aren't verified.
    ReadUnchecked,
    /// A checkpoint doesn't verify the data that it reads from a log.
    CleanUnchecked,
    /// A loss whose ranges aren't known is reported for one start only.
    LossNotKept,
    /// Ranges known to be lost read as their older data.
    LossForgotten,
}

impl Planted {
    /// Those that show only when something becomes corrupt.
    pub const NEED_CORRUPTION: [Planted; 12] = [
        Planted::OlderImageUsed,
        Planted::NoteOnce,
        Planted::OlderNoteLeft,
        Planted::ImageOnce,
        Planted::WitnessIgnored,
        Planted::WitnessNeverWritten,
        Planted::SearchForgotten,
        Planted::ReadUnchecked,
        Planted::CleanUnchecked,
        Planted::LossForgotten,
        Planted::LossNotKept,
        Planted::UnreadableUnsealed,
    ];

    /// Two power losses, one right after the other, show them.
    pub const OF_STARTS: [Planted; 2] = [Planted::StartsAlike, Planted::TornRevived];

    /// Power losses among failing requests show it.
    pub const OF_ERRORS: Planted = Planted::KilledBeforeReplaced;

    /// The others: a power loss shows them, the last one after a kill.
    pub const ALL: [Planted; 21] = [
        Planted::FlushNotPassed,
        Planted::ImageNotFlushed,
        Planted::DataSumIgnored,
        Planted::ChainIgnored,
        Planted::KillForgotten,
        Planted::KillTooEarly,
        Planted::SequenceReused,
        Planted::FuaNotFlushed,
        Planted::NoteForgotten,
        Planted::StaleWrittenHome,
        Planted::HomeUnordered,
        Planted::ResetTooEarly,
        Planted::CutMisplaced,
        Planted::AckedOutOfOrder,
        Planted::TrimForgotten,
        Planted::ReaderIgnored,
        Planted::ImageSumIgnored,
        Planted::LossUnheard,
        Planted::ReusedBeforeNote,
        Planted::WitnessTooEarly,
        Planted::StartUnflushed,
    ];
}
