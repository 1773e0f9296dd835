//! Bounds of tracks: models and layers above a disk need them to place data near the head.

use super::Disk;

/// One track as a run of LBNs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Track {
    /// Its first LBN.
    pub first_lbn: u64,
    /// Its LBNs.
    pub sectors: u64,
    /// Its cylinder.
    pub cylinder: u32,
    /// Its surface, counted within its arm.
    pub head: u32,
}

impl Disk {
    /// Number of LBNs.
    pub fn lbns(&self) -> u64 {
        self.sectors
    }

    /// The track that holds `lbn`.
    ///
    /// # Panics
    /// If `lbn` lies beyond the end.
    pub fn track(&self, lbn: u64) -> Track {
        assert!(lbn < self.sectors, "LBN {lbn} lies beyond the disk");
        let base = lbn / self.arm_sectors * self.arm_sectors;
        let (first, end) = self.mech.track_bounds(lbn - base);
        let place = self.mech.layout.place(lbn - base);
        Track { first_lbn: base + first, sectors: end - first, cylinder: place.cylinder, head: place.head }
    }
}
