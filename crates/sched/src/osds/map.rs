//! The cluster's map as the layer gets it, and the view of an OSD from outside.

use plimsoll_stack::Message;
use serde::{Deserialize, Serialize};

/// An image's objects, and the OSDs that have them.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct OsdMap {
    /// Epoch of the cluster's map that this is of.
    pub epoch: u64,
    /// Prefix of the objects' names.
    pub prefix: String,
    /// Bytes of an object, at least 1.
    pub object_bytes: u64,
    /// Beginning of the device in the image, bytes.
    pub start: u64,
    /// OSDs of each placement group as places in `osds`, the primary first. The number of groups is the pool's `pg_num`.
    pub acting: Vec<Vec<u16>>,
    /// The OSDs.
    pub osds: Vec<OsdPlace>,
}

/// An OSD and the way to it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct OsdPlace {
    /// Its number in the cluster.
    pub number: u32,
    /// Its CRUSH host.
    pub host: String,
    /// The handle that reads from its bucket; `None`: reads can't be steered there.
    pub port: Option<u8>,
}

impl OsdMap {
    /// Checks that places are within bounds.
    pub fn is_sound(&self) -> bool {
        let known = |place: &u16| usize::from(*place) < self.osds.len();
        let groups = self.acting.iter().all(|a| !a.is_empty() && a.iter().all(known));
        self.object_bytes > 0
            && !self.acting.is_empty()
            && groups
            && self.prefix.len() <= super::place::PREFIX_BYTES_MAX
    }
}

/// Messages for the layer.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum OsdsControl {
    /// The cluster's map, when it is first known and whenever it changes.
    Map(OsdMap),
    /// Reason why reads aren't steered, or that they are. The ports of the map decide; this is for people.
    Unsteered(Option<String>),
    /// The cluster's map has this epoch now, and is the same for the image.
    Epoch(u64),
}

impl Message for OsdsControl {
    const LAYER: &'static str = "osds";
}

/// An OSD as it is shown.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OsdView {
    /// Its number.
    pub number: u32,
    /// Its CRUSH host.
    pub host: String,
    /// Forecast of a read of 4 KiB there now, in nanoseconds.
    pub forecast_ns: u64,
    /// Reads that it was sent.
    pub reads: u64,
    /// Of those, reads that stalled: longer than the limit of their time.
    pub late: u64,
    /// Reads whose primary it is that went to a replica, before or after they stalled.
    pub steered: u64,
    /// Reads whose primary it is that were refused.
    pub refused: u64,
    /// Reads that were to be steered and stayed, since a replica would have sent their object back: it was written lately.
    pub fresh: u64,
    /// True after a read of this daemon has stalled or failed, until enough later ones were answered in time.
    pub stands_out: bool,
}
