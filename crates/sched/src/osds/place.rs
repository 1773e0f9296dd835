//! The place of an address of an RBD image in its cluster: object, placement group, acting set.

use super::map::OsdMap;

/// Ceph's hash of an object's name (`ceph_str_hash_rjenkins`: Bob Jenkins's mix over words of twelve bytes).
pub fn hash(name: &[u8]) -> u32 {
    const GOLDEN: u32 = 0x9e37_79b9;
    let word = |b: &[u8]| u32::from_le_bytes([b[0], b[1], b[2], b[3]]);
    let (mut a, mut b, mut c) = (GOLDEN, GOLDEN, 0u32);
    let mut chunks = name.chunks_exact(12);
    for chunk in &mut chunks {
        a = a.wrapping_add(word(&chunk[..4]));
        b = b.wrapping_add(word(&chunk[4..8]));
        c = c.wrapping_add(word(&chunk[8..]));
        (a, b, c) = mix(a, b, c);
    }
    // The length is in the last word's lowest byte.
    c = c.wrapping_add(name.len() as u32);
    for (at, byte) in chunks.remainder().iter().enumerate() {
        let byte = u32::from(*byte);
        match at {
            0..4 => a = a.wrapping_add(byte << (8 * at)),
            4..8 => b = b.wrapping_add(byte << (8 * (at - 4))),
            _ => c = c.wrapping_add(byte << (8 * (at - 7))),
        }
    }
    mix(a, b, c).2
}

fn mix(mut a: u32, mut b: u32, mut c: u32) -> (u32, u32, u32) {
    a = a.wrapping_sub(b).wrapping_sub(c) ^ (c >> 13);
    b = b.wrapping_sub(c).wrapping_sub(a) ^ (a << 8);
    c = c.wrapping_sub(a).wrapping_sub(b) ^ (b >> 13);
    a = a.wrapping_sub(b).wrapping_sub(c) ^ (c >> 12);
    b = b.wrapping_sub(c).wrapping_sub(a) ^ (a << 16);
    c = c.wrapping_sub(a).wrapping_sub(b) ^ (b >> 5);
    a = a.wrapping_sub(b).wrapping_sub(c) ^ (c >> 3);
    b = b.wrapping_sub(c).wrapping_sub(a) ^ (a << 10);
    c = c.wrapping_sub(a).wrapping_sub(b) ^ (b >> 15);
    (a, b, c)
}

/// The placement group of a hash among `pg_num` (`ceph_stable_mod`): while the number grows, few objects move.
pub fn stable_mod(hash: u32, pg_num: u32) -> u32 {
    let mask = pg_num.next_power_of_two() - 1;
    let whole = hash & mask;
    if whole < pg_num { whole } else { hash & (mask >> 1) }
}

/// Longest prefix of objects' names that is understood.
pub const PREFIX_BYTES_MAX: usize = 96;

impl OsdMap {
    /// The object that has the device's byte at `offset`.
    pub fn object(&self, offset: u64) -> u64 {
        (self.start + offset) / self.object_bytes
    }

    /// The placement group of an object.
    pub fn pg(&self, object: u64) -> usize {
        let mut name = [0u8; PREFIX_BYTES_MAX + 17];
        let prefix = self.prefix.as_bytes();
        let len = prefix.len().min(PREFIX_BYTES_MAX);
        name[..len].copy_from_slice(&prefix[..len]);
        name[len] = b'.';
        for digit in 0..16 {
            name[len + 1 + digit] = b"0123456789abcdef"[(object >> (60 - 4 * digit)) as usize & 15];
        }
        stable_mod(hash(&name[..len + 17]), self.acting.len() as u32) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As `ceph osd map` and `ceph_str_hash` say: names of every length around a word of twelve bytes.
    #[test]
    fn hashes_are_cephs() {
        for (name, known) in [
            ("foo", 0x7fc1_f406),
            ("a", 0x29ee_c818),
            ("abc", 0x251e_4793),
            ("abcdefghijk", 0xe52b_8e4c),
            ("abcdefghijkl", 0x0b1b_3ea5),
            ("abcdefghijklm", 0x3122_b031),
            ("rbd_data.1027d1c1fd9b.0000000000000007", 0xe833_d6b8),
            ("rbd_data.1027d1c1fd9b.00000000000000ff", 0x5b00_6a9a),
        ] {
            assert_eq!(hash(name.as_bytes()), known, "{name}");
        }
    }

    #[test]
    fn a_group_that_is_split_keeps_half_of_its_objects() {
        for h in 0..4096u32 {
            let (few, many) = (stable_mod(h, 12), stable_mod(h, 16));
            assert!(few < 12 && many < 16);
            assert!(many == few || many == few + 8, "{h}: {few} {many}");
        }
    }
}
