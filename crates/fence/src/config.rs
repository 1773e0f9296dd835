//! Configuration of a fence.

use crate::predict::{DiskPredictor, FlashPredictor, Predictor};
use plimsoll_base::{IoHead, Op, Span, TenantId, VolumeKey};
use serde::{Deserialize, Serialize};

/// The most slots: a rotation is looked through when a request is forecast.
pub const SLOTS_MAX: u32 = 64;
/// VirtualFence §4.6.3.2: the right trade-off for its devices.
pub const SLOT_DEFAULT: Span = Span::from_millis(20);
/// Longer slots would keep a request waiting for minutes.
pub const SLOT_MAX: Span = Span::from_secs(10);

/// A device that is fenced, by what is known of it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceKind {
    /// Predictor of batches on the device.
    pub predictor: Predictor,
    /// Requests sent together at most.
    pub batch_max: usize,
    /// Writes end on the media, not in a buffer: what is buffered would be written in somebody else's slot. A flush has nothing to do
    /// then, and waits for no slot.
    pub durable_writes: bool,
}

impl DeviceKind {
    /// A disk.
    pub fn disk(predictor: DiskPredictor) -> DeviceKind {
        DeviceKind { predictor: Predictor::Disk(predictor), batch_max: 32, durable_writes: true }
    }

    /// A flash drive; batches up to what its predictor is fitted with (VF-M13). It writes what it buffered beside what it reads.
    pub fn flash(predictor: FlashPredictor) -> DeviceKind {
        DeviceKind { predictor: Predictor::Flash(predictor), batch_max: 100, durable_writes: false }
    }
}

/// See the module's documentation.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FenceConfig {
    /// Slots in a rotation, 1 to [`SLOTS_MAX`].
    pub slots: u32,
    /// Length of a slot, up to [`SLOT_MAX`].
    pub slot: Span,
    /// The fenced devices, by face and port. The first is the scarce one: when its next request doesn't fit, the slot ends.
    pub devices: Vec<DeviceKind>,
    /// A turn's first request is sent although it's predicted to overrun, if it would fit a slot; debit pays for it. `false` is as
    /// published: it gathers credit first, for a whole rotation.
    pub first_anyway: bool,
    /// A disk's first batch of a turn is predicted as if a neighbour had had the arm, so that the same is sent whether there are
    /// neighbours or not. `false` is as published: by where the arm is.
    pub arm_away: bool,
    /// With `arm_away`: it also takes as long. If the arm's way back was spared, its time is waited for, so that a volume is as
    /// fast alone as beside others. `false` is as published.
    pub steady: bool,
    /// Volumes without slots share the slots without an owner, and idle time of the others (§4.7's hybrid). Without it
    /// their requests aren't held at all.
    pub hybrid: bool,
    /// Permitted lengthening of a volume's response times by lending its idle time, in thousandths; 0: none is lent.
    pub lend_permille: u64,
    /// A client's read whose own deadline has passed while it waited is answered Busy instead of being served.
    pub revoke_late: bool,
}

impl FenceConfig {
    /// `slots` slots of 20 ms before `devices`, no hybrid.
    pub fn new(slots: u32, devices: Vec<DeviceKind>) -> FenceConfig {
        FenceConfig {
            slots,
            slot: SLOT_DEFAULT,
            devices,
            first_anyway: true,
            arm_away: true,
            steady: true,
            hybrid: false,
            lend_permille: 10,
            revoke_late: true,
        }
    }

    /// True if volumes without slots may use time that a slot's owner doesn't need.
    pub fn lends(&self) -> bool {
        self.hybrid && self.lend_permille > 0
    }

    /// Checks that each setting is within its range.
    ///
    /// # Errors
    /// The setting that is wrong, and a value to write instead.
    pub fn check(&self) -> Result<(), String> {
        if !(1..=2).contains(&self.devices.len()) {
            return Err(format!("a fence stands before one or two devices, not {}", self.devices.len()));
        }
        if self.devices.iter().any(|d| d.batch_max == 0) {
            return Err("a batch has at least one request".into());
        }
        if self.lend_permille > 1000 {
            return Err(format!("lend_permille = {} is more than all", self.lend_permille));
        }
        check_slots(self.slots, self.slot, &self.devices, false)
    }

    /// Bytes of a piece of work that nobody waits for, so that its transfer takes a quarter of a slot: a power of two.
    pub fn piece_bytes(&self) -> u64 {
        let takes = |len: u64| {
            let head =
                IoHead::new(Op::WriteZeroes, VolumeKey::POOL, TenantId::default(), 0, len, plimsoll_base::Time::ZERO);
            self.devices[0].predictor.next(0, &head)
        };
        let fits = |len: &u64| takes(*len) <= self.slot.scale(1, 4);
        (12..=26).rev().map(|bits| 1 << bits).find(fits).unwrap_or(1 << 12)
    }
}

/// Checks that `slots` slots of this length are possible before these devices. A slot is no shorter than one request. With
/// `away` it is no shorter than a request from half of the disk away, as every turn begins with such a request. Without `away`
/// that request is served all the same, by gathering credit.
///
/// # Errors
/// Names the problem, and a value that would do.
pub fn check_slots(slots: u32, slot: Span, devices: &[DeviceKind], away: bool) -> Result<(), String> {
    if !(1..=SLOTS_MAX).contains(&slots) {
        return Err(format!("slots = {slots} is not between 1 and {SLOTS_MAX}"));
    }
    if slot > SLOT_MAX {
        return Err(format!("a slot of {slot} is longer than {SLOT_MAX}"));
    }
    let least = devices.iter().map(|d| d.predictor.least(away)).max().unwrap_or(Span::ZERO);
    if slot < least {
        let from = if away { " at the beginning of a turn" } else { "" };
        return Err(format!("a slot of {slot} is shorter than one request, which takes {least}{from}: make it longer"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disk() -> DeviceKind {
        DeviceKind::disk(DiskPredictor::typical(160_000_000_000))
    }

    /// As much as fits a quarter of a slot; not even a block where nothing does.
    #[test]
    fn pieces_fit_a_slot() {
        let of = |slot| FenceConfig { slot, ..FenceConfig::new(4, vec![disk()]) }.piece_bytes();
        assert_eq!(of(Span::from_millis(20)), 256 << 10);
        assert_eq!((of(Span::from_secs(10)), of(Span::from_millis(1))), (64 << 20, 4096));
    }

    #[test]
    fn what_cannot_be_is_refused_with_the_reason() {
        let ok = FenceConfig::new(4, vec![disk()]);
        assert_eq!(ok.check(), Ok(()));
        let bad = |change: &dyn Fn(&mut FenceConfig), needle: &str| {
            let mut c = ok.clone();
            change(&mut c);
            let why = c.check().unwrap_err();
            assert!(why.contains(needle), "{why}");
        };
        bad(&|c| c.slots = 0, "between 1 and 64");
        bad(&|c| c.slots = 65, "between 1 and 64");
        bad(&|c| c.slot = Span::from_millis(3), "shorter than one request");
        bad(&|c| c.slot = Span::from_secs(11), "longer than");
        bad(&|c| c.devices.clear(), "one or two devices");
        bad(&|c| c.devices[0].batch_max = 0, "at least one");
        bad(&|c| c.lend_permille = 1001, "more than all");
        // A typical disk's turn begins with a request that takes 14.8 ms, though one near the last takes 5.6.
        let ten = Span::from_millis(10);
        assert_eq!(check_slots(4, ten, &ok.devices, false), Ok(()));
        assert!(check_slots(4, ten, &ok.devices, true).unwrap_err().contains("at the beginning of a turn"));
        assert_eq!(check_slots(4, SLOT_DEFAULT, &ok.devices, true), Ok(()));
    }
}
