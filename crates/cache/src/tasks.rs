//! Workers' tasks for the cache: fingerprints, packing, unpacking. Live they work on bytes; in simulation names stand for content.

use crate::config::{Codec, Hash, Speeds};
use crate::format::{EXTENT_HEAD_BYTES, ExtentHead, ExtentName, Packing};
use crate::index::{Fingerprint, UNIT_BYTES};
use plimsoll_base::{Buf, BufMut, Data, Rng, Span};
use plimsoll_stack::{Answer, Task};
use sha1::Digest;
use std::cell::RefCell;
use xxhash_rust::xxh3::xxh3_64;

fn time_for(bytes: u64, per_second: u64, speeds: &Speeds) -> Span {
    speeds.task + Span::from_nanos(bytes * 1_000_000_000 / per_second.max(1))
}

/// The bytes of `data`, if it has any.
pub(crate) fn bytes_of(data: &Data, len: u64) -> Option<Buf> {
    match data {
        Data::Bytes(b) => Some(b.clone()),
        Data::Zeroes | Data::Parts(_) => {
            if let Data::Parts(parts) = data
                && parts.iter().any(|(n, d)| bytes_of(d, *n).is_none())
            {
                return None;
            }
            let mut b = BufMut::zeroed(len as usize);
            data.copy_to(b.as_mut_slice());
            Some(b.freeze())
        }
        _ => None,
    }
}

/// All content names of `data`, if it is nothing else.
fn names_of(data: &Data, into: &mut Vec<u8>) -> bool {
    match data {
        Data::Content(names) => {
            names.iter().for_each(|n| into.extend(n.to_le_bytes()));
            true
        }
        Data::Parts(parts) => parts.iter().all(|(_, d)| names_of(d, into)),
        _ => false,
    }
}

/// Makes an extent's fingerprint: words 0 and 1, and in word 2 whether there is one.
pub struct MakeFingerprint {
    /// The extent.
    pub data: Data,
    /// Its length.
    pub len: u64,
    /// The hash function.
    pub hash: Hash,
    /// The deduplication domain and the cache's salt: equal contents of different domains have different fingerprints.
    pub key: [u8; 32],
    /// The modelled speeds.
    pub speeds: Speeds,
}

impl MakeFingerprint {
    fn digest(&self, bytes: &[u8]) -> Fingerprint {
        let mut first = [0; 16];
        match self.hash {
            Hash::Blake3 => first.copy_from_slice(&blake3::keyed_hash(&self.key, bytes).as_bytes()[..16]),
            Hash::Sha1 => {
                first.copy_from_slice(&sha1::Sha1::new().chain_update(self.key).chain_update(bytes).finalize()[..16]);
            }
        }
        let word = |at: usize| u64::from_le_bytes(first[at..at + 8].try_into().expect("eight bytes"));
        [word(0), word(8)]
    }
}

impl Task for MakeFingerprint {
    fn name(&self) -> &'static str {
        "fingerprint"
    }

    fn cost(&self) -> Span {
        time_for(self.len, self.speeds.hash, &self.speeds)
    }

    fn run(self: Box<Self>) -> Answer {
        let mut names = Vec::new();
        let fp = match bytes_of(&self.data, self.len) {
            Some(b) => Some(self.digest(b.as_slice())),
            None if names_of(&self.data, &mut names) => Some(self.digest(&names)),
            None => None,
        };
        let [a, b] = fp.unwrap_or_default();
        Answer { words: [a, b, u64::from(fp.is_some()), 0], data: self.data }
    }
}

/// Packs an extent. Words: the payload's bytes, its checksum, how it was packed.
pub struct Pack {
    /// The extent.
    pub data: Data,
    /// Its length.
    pub len: u64,
    /// The compression.
    pub codec: Codec,
    /// The modelled speeds.
    pub speeds: Speeds,
}

/// A content's compressibility, in thousandths: normal with mean 2 and variance 0.25, at least 1 (NI-M25).
fn ratio_milli(names: &[u8]) -> u64 {
    let ratio = 2.0 + 0.5 * Rng::new(xxh3_64(names), "compressibility").normal();
    (ratio.clamp(1.0, 4.0) * 1000.0) as u64
}

/// Length of an extent of this content after compression, in simulation.
pub fn modelled_payload_bytes(content: u128, extent_bytes: u64) -> u64 {
    modelled_bytes(&content.to_le_bytes(), extent_bytes)
}

fn modelled_bytes(names: &[u8], extent_bytes: u64) -> u64 {
    let packed = extent_bytes * 1000 / ratio_milli(names);
    if is_smaller(packed, extent_bytes) { packed } else { extent_bytes }
}

/// True if an extent takes at least a unit less when packed, its head included. Otherwise it is left as it is, bare.
fn is_smaller(packed: u64, extent_bytes: u64) -> bool {
    packed + EXTENT_HEAD_BYTES as u64 + u64::from(UNIT_BYTES) <= extent_bytes
}

impl Task for Pack {
    fn name(&self) -> &'static str {
        "pack"
    }

    fn cost(&self) -> Span {
        match self.codec {
            Codec::None => time_for(self.len, self.speeds.check, &self.speeds),
            _ => time_for(self.len, self.speeds.pack, &self.speeds),
        }
    }

    fn run(self: Box<Self>) -> Answer {
        let done =
            |data: Data, len: u64, sum: u64, packing: Packing| Answer { words: [len, sum, packing as u64, 0], data };
        let Some(bytes) = bytes_of(&self.data, self.len) else {
            let mut names = Vec::new();
            let known = names_of(&self.data, &mut names);
            let sum = if known { xxh3_64(&names) } else { 0 };
            let packed = if known && self.codec != Codec::None { modelled_bytes(&names, self.len) } else { self.len };
            let how = if packed < self.len { Packing::Modelled } else { Packing::Raw };
            return done(self.data, packed, sum, how);
        };
        let packed = match self.codec {
            Codec::None => None,
            Codec::Lz4 => Some((lz4_flex::block::compress(bytes.as_slice()), Packing::Lz4)),
            // Level 1; it can't fail with memory to be had, and raw is right if it does.
            Codec::Zstd => PACK_ZSTD.with_borrow_mut(|z| z.compress(bytes.as_slice())).ok().map(|b| (b, Packing::Zstd)),
        };
        match packed {
            Some((p, how)) if is_smaller(p.len() as u64, self.len) => {
                let sum = xxh3_64(&p);
                done(Data::Bytes(Buf::copy_of(&p)), p.len() as u64, sum, how)
            }
            _ => {
                let sum = xxh3_64(bytes.as_slice());
                done(Data::Bytes(bytes), self.len, sum, Packing::Raw)
            }
        }
    }
}

/// The expectation of an extent that was read back.
#[derive(Clone, Copy, Debug)]
pub enum Expected {
    /// It has a head before it.
    Head {
        /// Its name; a duplicate's bytes were written under another.
        name: Option<ExtentName>,
        /// Its WEU's number.
        sequence: u64,
    },
    /// It is bare, and this is the lower half of its checksum.
    Sum(u32),
}

/// Checks and unpacks an extent. Word 0: 1 if it is what it should be; then the data are what was wanted of it.
pub struct Unpack {
    /// The data read.
    pub data: Data,
    /// Its length in bytes.
    pub total: u64,
    /// The offset in it of the extent, or of its head.
    pub at: u64,
    /// The expectation of the extent.
    pub expected: Expected,
    /// The length of an extent.
    pub extent_bytes: u64,
    /// The wanted part of the extent: offset and length.
    pub wanted: (u64, u64),
    /// Checksums aren't compared (a planted mistake).
    pub trusting: bool,
    /// It is known to be compressed, or not; for the modelled cost.
    pub packed: bool,
    /// The modelled speeds.
    pub speeds: Speeds,
}

impl Unpack {
    fn extent(&self) -> Option<Data> {
        let (name, sequence) = match self.expected {
            Expected::Head { name, sequence } => (name, sequence),
            Expected::Sum(sum) => {
                let there = self.at + self.extent_bytes <= self.total;
                let data = self.data.part(self.total, self.at, self.extent_bytes);
                let (data, found) = summed(data, self.extent_bytes);
                return (there && (found as u32 == sum || self.trusting)).then_some(data);
            }
        };
        if self.at + EXTENT_HEAD_BYTES as u64 > self.total {
            return None;
        }
        let head: [u8; EXTENT_HEAD_BYTES] = {
            let d = self.data.part(self.total, self.at, EXTENT_HEAD_BYTES as u64);
            bytes_of(&d, EXTENT_HEAD_BYTES as u64)?.as_slice().try_into().ok()?
        };
        let head = ExtentHead::decode(&head, sequence)?;
        let from = self.at + EXTENT_HEAD_BYTES as u64;
        let len = u64::from(head.payload_bytes);
        if from + len > self.total || name.is_some_and(|n| n != head.name && !self.trusting) {
            return None;
        }
        unpack(self.data.part(self.total, from, len), &head, self.extent_bytes, self.trusting)
    }
}

/// Data in one piece, if they have bytes, and their checksum.
fn summed(data: Data, len: u64) -> (Data, u64) {
    if let Some(b) = bytes_of(&data, len) {
        let sum = xxh3_64(b.as_slice());
        return (Data::Bytes(b), sum);
    }
    let mut names = Vec::new();
    let sum = if names_of(&data, &mut names) { xxh3_64(&names) } else { 0 };
    (data, sum)
}

thread_local! {
    /// A worker's own: making one takes longer than an extent.
    static PACK_ZSTD: RefCell<zstd::bulk::Compressor<'static>> =
        RefCell::new(zstd::bulk::Compressor::new(1).expect("zstd has memory for a context"));
    static ZSTD: RefCell<zstd::bulk::Decompressor<'static>> =
        RefCell::new(zstd::bulk::Decompressor::new().expect("zstd has memory for a context"));
}

/// The extent that `payload` is, if it is what `head` says.
pub fn unpack(payload: Data, head: &ExtentHead, extent_bytes: u64, trusting: bool) -> Option<Data> {
    let len = u64::from(head.payload_bytes);
    let (payload, sum) = summed(payload, len);
    if sum != head.sum && !trusting {
        return None;
    }
    match (head.packing, payload) {
        (Packing::Raw, data) if len == extent_bytes => Some(data),
        (Packing::Modelled, Data::Bytes(_)) => None,
        (Packing::Modelled, data) => Some(data),
        (Packing::Lz4, Data::Bytes(b)) => {
            let mut out = BufMut::zeroed(extent_bytes as usize);
            let n = lz4_flex::block::decompress_into(b.as_slice(), out.as_mut_slice()).ok()?;
            (n as u64 == extent_bytes).then(|| Data::Bytes(out.freeze()))
        }
        (Packing::Zstd, Data::Bytes(b)) => {
            let mut out = BufMut::zeroed(extent_bytes as usize);
            let n = ZSTD.with_borrow_mut(|z| z.decompress_to_buffer(b.as_slice(), out.as_mut_slice())).ok()?;
            (n as u64 == extent_bytes).then(|| Data::Bytes(out.freeze()))
        }
        _ => None,
    }
}

impl Task for Unpack {
    fn name(&self) -> &'static str {
        "unpack"
    }

    fn cost(&self) -> Span {
        let per_second = if self.packed { self.speeds.unpack } else { self.speeds.check };
        time_for(self.extent_bytes, per_second, &self.speeds)
    }

    fn run(self: Box<Self>) -> Answer {
        match self.extent() {
            Some(data) => {
                let (from, len) = self.wanted;
                Answer { words: [1, 0, 0, 0], data: data.part(self.extent_bytes, from, len) }
            }
            None => Answer::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_base::VolumeKey;

    const LEN: u64 = 8192;

    fn name() -> ExtentName {
        ExtentName { volume: VolumeKey { id: 1, generation: 2 }, extent: 3 }
    }

    fn some_bytes(seed: u64, texture: u64) -> Data {
        let mut rng = Rng::new(seed, "bytes");
        let bytes: Vec<u8> = (0..LEN).map(|i| if i % texture == 0 { rng.below(256) as u8 } else { 7 }).collect();
        Data::Bytes(Buf::copy_of(&bytes))
    }

    fn packed(data: Data, codec: Codec) -> (Data, ExtentHead) {
        let a = Box::new(Pack { data, len: LEN, codec, speeds: Speeds::default() }).run();
        let packing = [Packing::Raw, Packing::Lz4, Packing::Zstd, Packing::Modelled][a.words[2] as usize];
        (a.data, ExtentHead { payload_bytes: a.words[0] as u32, packing, name: name(), sum: a.words[1] })
    }

    fn back(payload: Data, head: ExtentHead, expected: Expected) -> Answer {
        let mut parts = vec![(96, Data::Zeroes)];
        if matches!(expected, Expected::Head { .. }) {
            parts.push((32, Data::Bytes(Buf::copy_of(&head.encode(9)))));
        }
        parts.push((u64::from(head.payload_bytes), payload));
        let total = parts.iter().map(|p| p.0).sum();
        let (data, speeds) = (Data::Parts(parts.into()), Speeds::default());
        let (at, wanted) = (96, (4096, 4096));
        Box::new(Unpack { data, total, at, expected, extent_bytes: LEN, wanted, trusting: false, packed: true, speeds })
            .run()
    }

    #[test]
    fn what_is_packed_comes_back_whatever_the_codec() {
        let right = Expected::Head { name: Some(name()), sequence: 9 };
        let content = Data::Content(vec![5, 6].into());
        for data in [some_bytes(1, 1), some_bytes(2, 8), Data::Zeroes, content] {
            for codec in [Codec::None, Codec::Lz4, Codec::Zstd] {
                let (payload, head) = packed(data.clone(), codec);
                let bare = head.payload_bytes == LEN as u32;
                let a = back(payload, head, if bare { Expected::Sum(head.sum as u32) } else { right });
                assert_eq!(a.words[0], 1, "{codec:?}");
                assert!(bare || u64::from(head.payload_bytes + 32).next_multiple_of(64) < LEN);
                match (data.part(LEN, 4096, 4096), a.data) {
                    (Data::Content(a), Data::Content(b)) => assert_eq!((&a, &a[..]), (&b, &[6][..])),
                    (want, got) => assert_eq!(bytes_of(&want, 4096), bytes_of(&got, 4096)),
                }
            }
        }
        assert!(packed(some_bytes(1, 1), Codec::Lz4).1.packing == Packing::Raw, "noise is stored as it is");
        assert!(packed(some_bytes(1, 8), Codec::Lz4).1.payload_bytes < LEN as u32 / 2);
    }

    #[test]
    fn another_extent_an_older_weu_or_a_flipped_bit_is_not_believed() {
        let (payload, head) = packed(some_bytes(2, 8), Codec::Lz4);
        let ok = |e| back(payload.clone(), head, e).words[0];
        let at = |name, sequence| Expected::Head { name, sequence };
        assert_eq!(ok(at(None, 9)), 1);
        assert_eq!(ok(at(None, 8)), 0);
        let other = ExtentName { extent: 4, ..name() };
        assert_eq!(ok(at(Some(other), 9)), 0);
        let Data::Bytes(b) = &payload else { panic!("bytes") };
        let mut flipped = b.as_slice().to_vec();
        flipped[100] ^= 4;
        assert_eq!(back(Data::Bytes(Buf::copy_of(&flipped)), head, at(None, 9)).words[0], 0);
        // A bare one.
        let (payload, head) = packed(some_bytes(3, 1), Codec::Lz4);
        let ok = |payload: &Data, sum| back(payload.clone(), head, Expected::Sum(sum)).words[0];
        assert_eq!((ok(&payload, head.sum as u32), ok(&payload, head.sum as u32 ^ 1)), (1, 0));
        let Data::Bytes(b) = &payload else { panic!("bytes") };
        let mut flipped = b.as_slice().to_vec();
        flipped[LEN as usize - 1] ^= 1;
        assert_eq!(ok(&Data::Bytes(Buf::copy_of(&flipped)), head.sum as u32), 0);
    }

    #[test]
    fn fingerprints_differ_by_content_and_by_domain() {
        let fp = |data: Data, key: u8, hash| {
            let a = Box::new(MakeFingerprint { data, len: LEN, hash, key: [key; 32], speeds: Speeds::default() }).run();
            (a.words[2] == 1).then_some([a.words[0], a.words[1]])
        };
        for hash in [Hash::Blake3, Hash::Sha1] {
            let a = fp(some_bytes(1, 1), 0, hash);
            assert!(a.is_some() && a == fp(some_bytes(1, 1), 0, hash));
            assert_ne!(a, fp(some_bytes(2, 1), 0, hash));
            assert_ne!(a, fp(some_bytes(1, 1), 1, hash), "another tenant");
            let content = |n: u128| Data::Content(vec![n, 1].into());
            assert_ne!(fp(content(1), 0, hash), fp(content(2), 0, hash));
            assert_eq!(fp(Data::Absent, 0, hash), None);
        }
        assert_eq!(fp(Data::Zeroes, 0, Hash::Blake3), fp(Data::Bytes(Buf::copy_of(&[0; 8192])), 0, Hash::Blake3));
    }

    #[test]
    fn modelled_ratios_have_the_papers_mean_and_spread() {
        let ratios: Vec<f64> = (0..10_000u128).map(|n| ratio_milli(&n.to_le_bytes()) as f64 / 1000.0).collect();
        let mean = ratios.iter().sum::<f64>() / 1e4;
        let variance = ratios.iter().map(|r| (r - mean).powi(2)).sum::<f64>() / 1e4;
        assert!((1.97..2.05).contains(&mean) && (0.2..0.27).contains(&variance), "{mean} {variance}");
    }
}
