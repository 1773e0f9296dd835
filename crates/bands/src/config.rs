//! Settings of the layer's behaviour (the places of things are [`crate::Shape`]'s).

use plimsoll_base::Span;
use serde::{Deserialize, Serialize};

/// Settings of the layer's behaviour.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BandsConfig {
    /// Bytes of changes that wait in memory for their bands' copies; a single larger change is taken, too.
    pub buffer_bytes: u64,
    /// Bytes of one request of a copy: a client that comes waits for one of them at most.
    pub io_bytes: u64,
    /// Bytes of a band that are read before they are written: bounds memory, and saves seeks.
    pub run_bytes: u64,
    /// A copy waits for clients' requests, but not longer than this between two of its own.
    pub patience: Span,
    /// The same while no client waits for the copy, but only the layer above, which empties its logs.
    pub copy_patience: Span,
    /// And such a copy goes on only when clients have asked nothing for this long, or after that patience.
    pub quiet: Span,
    /// A zone is reset before it's written: needed where the drive keeps zones' rules. A device without would write a zone of zeroes instead.
    pub resets: bool,
    /// A mistake planted by a test that looks whether it is found.
    #[serde(skip)]
    pub planted: Option<Planted>,
}

impl Default for BandsConfig {
    fn default() -> BandsConfig {
        BandsConfig {
            buffer_bytes: 64 << 20,
            io_bytes: 1 << 20,
            run_bytes: 32 << 20,
            // A band of 32 MiB has 64 requests: under load its copy then takes 3 s.
            patience: Span::from_millis(50),
            // Then clients wait for one request in a hundred of the time; a band takes two minutes.
            copy_patience: Span::from_secs(2),
            // Twelve times the mean gap of a load that keeps a disk half busy.
            quiet: Span::from_millis(200),
            resets: true,
            planted: None,
        }
    }
}

/// Mistakes that the crash tests must find, one at a time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Planted {
    /// A flush doesn't wait for the bands' copies.
    FlushNotAwaited,
    /// A flush isn't passed on once the bands are copied.
    FlushNotPassed,
    /// A durable write to a band is acknowledged in the buffer.
    FuaBuffered,
    /// The map names a zone before its data are durable.
    MapBeforeData,
    /// A start doesn't check the map's checksum.
    SumIgnored,
    /// A band is written over itself.
    InPlace,
    /// The old zone is spare as soon as the copy begins.
    SourceFreedEarly,
    /// A zone is reset while a client reads it.
    ReaderIgnored,
    /// Changes during a copy are dropped with those that it holds.
    NewerDropped,
    /// Reads don't look for the changes that a copy holds.
    FrozenUnread,
    /// The second copy of the map is never written.
    MapOnce,
    /// A start takes the older of two good maps.
    OlderMapTaken,
    /// After a power loss between the map's two copies, the older one stays.
    OlderMapLeft,
    /// A start takes the map that it finds for durable.
    StartUnflushed,
    /// A trim leaves older data readable.
    TrimForgotten,
    /// A zone isn't reset before it's written.
    ResetForgotten,
    /// The flush of copies doesn't wait for them.
    CopiesNotAwaited,
    /// Changes of clients wait for the flush of copies only.
    ClientTakenForCopy,
}

impl Planted {
    /// Those that show only below a layer that moves copies of data that it has elsewhere.
    pub const OF_COPIES: [Planted; 2] = [Planted::CopiesNotAwaited, Planted::ClientTakenForCopy];

    /// The others.
    pub const ALL: [Planted; 16] = [
        Planted::FlushNotAwaited,
        Planted::FlushNotPassed,
        Planted::FuaBuffered,
        Planted::MapBeforeData,
        Planted::SumIgnored,
        Planted::InPlace,
        Planted::SourceFreedEarly,
        Planted::ReaderIgnored,
        Planted::NewerDropped,
        Planted::FrozenUnread,
        Planted::MapOnce,
        Planted::OlderMapTaken,
        Planted::OlderMapLeft,
        Planted::StartUnflushed,
        Planted::TrimForgotten,
        Planted::ResetForgotten,
    ];
}
