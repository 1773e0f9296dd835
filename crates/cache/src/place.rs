//! Names and places: which extent of which volume, where in which WEU.

/// The most WEUs.
pub const WEUS_MAX: u32 = 1 << 22;
/// The most slots of a WEU.
pub const SLOTS_MAX: u32 = 1 << 11;
/// Places in a WEU count in units of this many bytes.
pub const UNIT_BYTES: u32 = 64;
/// The largest WEU.
pub const WEU_BYTES_MAX: u32 = UNIT_BYTES << 16;

/// Numbers of WEUs and chunks have the number of their start above these bits.
pub(crate) const LIFE_SHIFT: u32 = 40;

/// An extent of a volume: the volume's slot in the cache and the extent's number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Key(pub(crate) u64);

impl Key {
    /// Extent `extent` (below 2^48) of the volume in slot `volume`.
    pub const fn new(volume: u16, extent: u64) -> Key {
        Key((volume as u64) << 48 | extent)
    }
    /// The volume's slot.
    pub const fn volume(self) -> u16 {
        (self.0 >> 48) as u16
    }
    /// The extent's number.
    pub const fn extent(self) -> u64 {
        self.0 & ((1 << 48) - 1)
    }
    /// True if `next` is the extent after it.
    pub const fn adjoins(self, next: Key) -> bool {
        self.volume() == next.volume() && self.extent() + 1 == next.extent()
    }
}

/// An extent's place: 22 bits of WEU, 16 of place and 12 of length in units, 11 of slot, 3 of flags.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Loc(u64);

impl Loc {
    const DUP: u64 = 1;
    const DIRTY: u64 = 2;

    /// `len_units` units from unit `at_unit` on of WEU `weu`, which its header lists as number `slot`.
    pub const fn new(weu: u32, at_unit: u32, len_units: u32, slot: u32) -> Loc {
        assert!(weu < WEUS_MAX && at_unit < 1 << 16 && len_units < 1 << 12 && slot < SLOTS_MAX);
        Loc((weu as u64) << 42 | (at_unit as u64) << 26 | (len_units as u64) << 14 | (slot as u64) << 3)
    }
    /// The same of what a header says, if it can be.
    pub(crate) fn checked(weu: u32, at_unit: u16, len_units: u16, slot: u32) -> Option<Loc> {
        (slot < SLOTS_MAX && len_units < 1 << 12).then(|| Loc::new(weu, u32::from(at_unit), u32::from(len_units), slot))
    }
    pub(crate) const fn of_bits(bits: u64) -> Loc {
        Loc(bits)
    }
    pub(crate) const fn bits(self) -> u64 {
        self.0
    }
    /// The WEU.
    pub const fn weu(self) -> u32 {
        (self.0 >> 42) as u32
    }
    /// Its offset in the WEU, in bytes.
    pub const fn at_bytes(self) -> u32 {
        ((self.0 >> 26) as u32 & 0xffff) * UNIT_BYTES
    }
    /// Its length in bytes: rounded up to a unit, header included.
    pub const fn len_bytes(self) -> u32 {
        ((self.0 >> 14) as u32 & 0xfff) * UNIT_BYTES
    }
    /// True if only its bytes are stored, as they are and without a head. Their checksum is elsewhere then.
    pub const fn is_bare(self, extent_bytes: u64) -> bool {
        self.len_bytes() as u64 == extent_bytes
    }
    /// Its number in the WEU's header.
    pub const fn slot(self) -> u32 {
        (self.0 >> 3) as u32 & (SLOTS_MAX - 1)
    }
    /// A duplicate: this slot's entry in the WEU's header names another key, or none. Another slot, or none, names this one.
    pub const fn is_dup(self) -> bool {
        self.0 & Loc::DUP != 0
    }
    /// Newer than what the slow device has.
    pub const fn is_dirty(self) -> bool {
        self.0 & Loc::DIRTY != 0
    }
    /// Its place, whatever the flags.
    pub const fn place(self) -> u64 {
        self.0 >> 3
    }
    /// The same place, as a duplicate or a base entry.
    #[must_use]
    pub const fn dup(self, dup: bool) -> Loc {
        Loc(self.0 & !Loc::DUP | (dup as u64 * Loc::DUP))
    }
    /// The same place, dirty or clean.
    #[must_use]
    pub const fn dirty(self, dirty: bool) -> Loc {
        Loc(self.0 & !Loc::DIRTY | (dirty as u64 * Loc::DIRTY))
    }
    /// True if both are the same place, whatever the flags.
    pub const fn same_place(self, other: Loc) -> bool {
        self.place() == other.place()
    }
}

/// A header's entry that is no longer true: its extent has another content, or is no longer cached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Superseded {
    /// The extent.
    pub key: Key,
    /// The place of the header's entry that names it.
    pub place: Loc,
    /// The WEU that has its bytes, which must stay until the entry is dead.
    pub bytes_in: u32,
}

/// A fingerprint's first 128 bits.
pub type Fingerprint = [u64; 2];

/// Well mixed bits.
pub(crate) const fn mix(x: u64) -> u64 {
    let x = (x ^ x >> 32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (x ^ x >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9)
}
