//! Shares of the WEUs. Where space is shared, all of it is one part. Otherwise each volume has a part of its own, and the parts together
//! are never more than the whole. So a part that may grow always finds a free WEU, or another part that must shrink.

/// The least WEUs of a part that takes writes: two are open, for dirty and for clean extents, one is leaving, one is free.
pub const WEUS_MIN: u32 = 4;

/// Each part's share of `left`: its wish if there is enough for all. Otherwise at least [`WEUS_MIN`], the first parts first, and a
/// share of the rest in proportion to its wish beyond that.
pub(crate) fn shares(wants: &[(u16, u32)], mut left: u32) -> Vec<(u16, u32)> {
    let all: u64 = wants.iter().map(|w| u64::from(w.1)).sum();
    if all <= u64::from(left) {
        return wants.to_vec();
    }
    let mut shares: Vec<(u16, u32)> = Vec::with_capacity(wants.len());
    let mut more = 0;
    for (part, want) in wants {
        let least = if *want > 0 && left >= WEUS_MIN { WEUS_MIN } else { 0 };
        left -= least;
        more += if least > 0 { u64::from(want - least) } else { 0 };
        shares.push((*part, least));
    }
    for ((_, share), (_, want)) in shares.iter_mut().zip(wants).filter(|(s, _)| s.1 > 0) {
        *share += (u64::from(want - WEUS_MIN) * u64::from(left) / more.max(1)) as u32;
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_never_more_than_there_is_and_never_too_small_to_work() {
        let of = |wants: &[u32], left| -> Vec<u32> {
            let wants: Vec<(u16, u32)> = (0..).zip(wants.iter().copied()).collect();
            shares(&wants, left).into_iter().map(|s| s.1).collect()
        };
        assert_eq!(of(&[8, 0, 20], 30), [8, 0, 20]);
        assert_eq!(of(&[24, 24, 0, 4], 24), [10, 10, 0, 4]);
        assert_eq!(of(&[100, 100, 100], 10), [5, 5, 0], "the last of them has none");
        for n in 1..40u32 {
            let wants = vec![64; n as usize];
            let got = of(&wants, 64);
            assert!(got.iter().sum::<u32>() <= 64 && got.iter().all(|g| *g == 0 || *g >= WEUS_MIN), "{got:?}");
            assert_eq!(got.iter().filter(|g| **g > 0).count() as u32, n.min(16));
        }
    }
}
