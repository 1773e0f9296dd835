//! A flash drive as it is written down: every figure with its unit in its key, unknown keys refused.

use plimsoll_base::Rng;
use serde::{Deserialize, Serialize};

use crate::disk::{Mismatch, SpecError};

/// Everything about one kind of flash drive.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct FlashSpec {
    /// Name in reports.
    pub name: String,
    /// Sources of the figures.
    pub source: Vec<String>,
    /// Figures that no source gives, and the assumptions in their place.
    #[serde(default)]
    pub assumed: Vec<String>,
    /// Numbers of all parts.
    pub geometry: FlashGeometry,
    /// Times of array and channel operations.
    pub timing: FlashTiming,
    /// Mapping of logical pages.
    pub ftl: FtlSpec,
    /// The controller and the link to the host.
    pub interface: Interface,
    /// The write buffer; without it a write completes when its pages are programmed.
    #[serde(default)]
    pub buffer: WriteBuffer,
}

/// Numbers of all parts.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct FlashGeometry {
    /// Channels, each a bus that its chips share.
    pub channels: u32,
    /// Chips on each channel.
    pub chips_per_channel: u32,
    /// Dies in each chip; dies work independently.
    #[serde(default = "one")]
    pub dies_per_chip: u32,
    /// Planes of each die.
    #[serde(default = "one")]
    pub planes_per_die: u32,
    /// True if planes work independently of each other; otherwise a die does one thing at a time.
    #[serde(default)]
    pub independent_planes: bool,
    /// Blocks of each plane.
    pub blocks_per_plane: u32,
    /// Pages of each block.
    pub pages_per_block: u32,
    /// Bytes of a page, which is also the unit of mapping: a power of two from 512.
    pub page_bytes: u32,
}

fn one() -> u32 {
    1
}

/// Times of array and channel operations.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct FlashTiming {
    /// The array to the page register.
    pub read_us: f64,
    /// The page register to the array, for each class of page.
    pub program_us: Vec<f64>,
    /// Classes of a block's pages in order, as runs: digits that index `program_us` from 1, and how often they
    /// are repeated. Empty: all pages are of class 1.
    #[serde(default)]
    pub program_pattern: Vec<(String, u32)>,
    /// One block.
    pub erase_us: f64,
    /// One page over the channel to the controller.
    pub read_transfer_us: f64,
    /// One page over the channel to the chip.
    pub write_transfer_us: f64,
    /// Pages that garbage collection moves stay inside the chip; otherwise they cross the channel twice.
    #[serde(default)]
    pub copy_back: bool,
    /// Reads pass waiting programs and erases, this many in a row at most; 0 for first come, first served.
    #[serde(default)]
    pub reads_first_max: u32,
}

/// Mapping of logical pages.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum FtlSpec {
    /// Every page is mapped; victims have the fewest valid pages.
    Page(PageFtlSpec),
    /// Blocks are mapped, and a few log blocks by page (FAST).
    Hybrid(HybridFtlSpec),
}

/// The page-mapped translation layer.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct PageFtlSpec {
    /// Spare capacity as a share of the logical one: 0.07 for 7 %.
    pub over_provision: f64,
    /// Collection begins in a unit that has this many free blocks or fewer.
    #[serde(default = "gc_start")]
    pub gc_start_free_blocks: u32,
    /// With this many or fewer a write waits until a whole victim is collected. At least 1.
    #[serde(default = "gc_urgent")]
    pub gc_urgent_free_blocks: u32,
    /// Pages moved before each write, and in one go while idle, once collection has begun; 0 for whole victims.
    #[serde(default)]
    pub gc_step_pages: u32,
    /// If true, a step moves pages or erases, so that no write waits for both. A step moves more pages where the usual number
    /// wouldn't keep up with writes, so that no write waits for a whole victim.
    #[serde(default)]
    pub gc_paced: bool,
    /// Moved pages go to blocks of their own.
    #[serde(default = "yes")]
    pub gc_stream: bool,
    /// Pages written twice within twice the logical capacity's writes go to blocks of their own.
    #[serde(default)]
    pub hot_cold: bool,
    /// Static wear levelling: when two blocks of a unit differ by more erases, the least worn is moved. 0 for none.
    #[serde(default)]
    pub wear_gap_erases: u32,
}

fn gc_start() -> u32 {
    4
}
fn gc_urgent() -> u32 {
    1
}
fn yes() -> bool {
    true
}

/// The block-mapped translation layer with log blocks (NI-M24).
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct HybridFtlSpec {
    /// Spare capacity as a share of the logical one.
    pub over_provision: f64,
    /// Share of all blocks that are log blocks.
    pub log_share: f64,
    /// Log blocks of each unit that take sequential runs; the others take everything else.
    pub sequential_log_blocks: u32,
}

/// The controller and the link to the host.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Interface {
    /// Controller time of each command, one command after the other.
    pub command_us: f64,
    /// The link's payload rate in each direction, 10^6 bytes a second; 0 for no limit.
    pub link_mb_per_s: f64,
    /// Both directions at once; otherwise they share the link.
    #[serde(default)]
    pub duplex: bool,
    /// Commands the drive accepts at once.
    pub queue_depth: u32,
}

/// The write buffer in the controller's memory.
#[derive(Clone, Debug, PartialEq, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct WriteBuffer {
    /// Its size in pages; 0 for none.
    pub pages: u32,
    /// It survives loss of power, so flush and FUA needn't wait for the flash.
    pub power_protected: bool,
}

/// Name and text of each embedded profile.
const PROFILES: [(&str, &str); 5] = [
    ("mittos-openchannel", include_str!("../../profiles/flash/mittos-openchannel.toml")),
    ("mittos-openchannel-code", include_str!("../../profiles/flash/mittos-openchannel-code.toml")),
    ("nitro-mlc", include_str!("../../profiles/flash/nitro-mlc.toml")),
    ("vf-sata-60g", include_str!("../../profiles/flash/vf-sata-60g.toml")),
    ("nvme-modern", include_str!("../../profiles/flash/nvme-modern.toml")),
];

impl FlashSpec {
    /// Names of the embedded profiles.
    pub fn names() -> impl Iterator<Item = &'static str> {
        PROFILES.iter().map(|p| p.0)
    }

    /// The embedded profile called `name`; the error lists those there are.
    pub fn by_name(name: &str) -> Result<FlashSpec, SpecError> {
        let Some((_, text)) = PROFILES.iter().find(|p| p.0 == name) else {
            let known: Vec<_> = FlashSpec::names().collect();
            return Err(SpecError::new("profile", format!("`{name}` is unknown; there are {}", known.join(", "))));
        };
        FlashSpec::from_toml(text)
    }

    /// Reads a specification in TOML; the error names line and key.
    pub fn from_toml(text: &str) -> Result<FlashSpec, SpecError> {
        let spec: FlashSpec =
            toml::from_str(text).map_err(|e| SpecError::new("flash profile", e.to_string().trim_end().to_string()))?;
        spec.check()?;
        Ok(spec)
    }

    /// The specification as a profile.
    pub fn to_toml(&self) -> String {
        toml::to_string(self).expect("a specification is tables, numbers and strings")
    }

    /// Units that work independently: dies, or planes where they do.
    pub fn units(&self) -> u32 {
        let g = &self.geometry;
        let planes = if g.independent_planes { g.planes_per_die } else { 1 };
        g.channels * g.chips_per_channel * g.dies_per_chip * planes
    }

    /// Blocks of each unit.
    pub fn blocks_per_unit(&self) -> u32 {
        let g = &self.geometry;
        if g.independent_planes { g.blocks_per_plane } else { g.blocks_per_plane * g.planes_per_die }
    }

    /// Logical pages of each unit: what over-provisioning (and log blocks) leave.
    pub fn logical_pages_per_unit(&self) -> u32 {
        let blocks = self.blocks_per_unit();
        let per_block = self.geometry.pages_per_block;
        match &self.ftl {
            FtlSpec::Page(p) => (f64::from(blocks) * f64::from(per_block) / (1.0 + p.over_provision)) as u32,
            FtlSpec::Hybrid(h) => {
                let data = blocks - h.log_blocks(blocks);
                (f64::from(data) / (1.0 + h.over_provision)) as u32 * per_block
            }
        }
    }

    /// The same drive with a logical capacity of about `bytes` (or what the translation layer needs to work), for
    /// simulations whose memory must stay small. Channels and chips stay. Blocks become fewer; where fewer than 256
    /// would be left in a unit they become smaller instead, as a spare share of a few blocks is no longer that share.
    /// An erase still takes as long, so erases of such small blocks weigh too much.
    pub fn scaled_to(&self, bytes: u64) -> FlashSpec {
        const BLOCKS_MIN: u64 = 256;
        let full = u64::from(self.units()) * u64::from(self.logical_pages_per_unit()) * self.page_bytes();
        let mut s = self.clone();
        if full <= bytes {
            return s;
        }
        let per_block = u64::from(self.geometry.pages_per_block);
        let pages = u64::from(self.blocks_per_unit()) * per_block;
        let wanted = (u128::from(pages) * u128::from(bytes) / u128::from(full)) as u64;
        let smaller = (wanted / BLOCKS_MIN).clamp(per_block.min(16), per_block);
        if smaller < per_block {
            s.geometry.pages_per_block = smaller as u32;
            let classes = &self.page_classes()[..smaller as usize];
            s.timing.program_pattern = vec![(classes.iter().map(|c| char::from(b'1' + c)).collect(), 1)];
        }
        let blocks_per_plane = u64::from(self.geometry.blocks_per_plane);
        s.geometry.blocks_per_plane = (blocks_per_plane * wanted * per_block / smaller / pages).max(1) as u32;
        while s.check().is_err() && s.geometry.blocks_per_plane < self.geometry.blocks_per_plane {
            s.geometry.blocks_per_plane += 1;
        }
        s
    }

    /// Bytes of a page.
    pub fn page_bytes(&self) -> u64 {
        u64::from(self.geometry.page_bytes)
    }

    /// The class of each page of a block, from 0.
    pub fn page_classes(&self) -> Vec<u8> {
        let t = &self.timing;
        if t.program_pattern.is_empty() {
            return vec![0; self.geometry.pages_per_block as usize];
        }
        let run = |(digits, times): &(String, u32)| digits.repeat(*times as usize).into_bytes();
        t.program_pattern.iter().flat_map(run).map(|d| d.wrapping_sub(b'1')).collect()
    }

    /// Refuses what no drive can be; the error names the key.
    pub fn check(&self) -> Result<(), SpecError> {
        let g = &self.geometry;
        for (key, n, most) in [
            ("channels", g.channels, 256),
            ("chips_per_channel", g.chips_per_channel, 256),
            ("dies_per_chip", g.dies_per_chip, 64),
            ("planes_per_die", g.planes_per_die, 64),
            ("blocks_per_plane", g.blocks_per_plane, 1 << 24),
            ("pages_per_block", g.pages_per_block, 1 << 16),
            ("page_bytes", g.page_bytes, 1 << 20),
        ] {
            in_range(&format!("geometry.{key}"), f64::from(n), 1.0, f64::from(most))?;
        }
        if !g.page_bytes.is_power_of_two() || g.page_bytes < 512 {
            return Err(SpecError::new("geometry.page_bytes", "must be a power of two from 512"));
        }
        let units = u64::from(g.channels * g.chips_per_channel) * u64::from(g.dies_per_chip * g.planes_per_die);
        in_range("geometry (units)", units as f64, 1.0, 65_536.0)?;
        let pages = units as f64 * f64::from(g.blocks_per_plane) * f64::from(g.pages_per_block);
        // Page numbers are kept in 32 bits, one of them meaning "none".
        in_range("geometry (pages of the drive)", pages, 1.0, f64::from(u32::MAX) - 1.0)?;
        self.check_timing()?;
        self.check_ftl()?;
        let i = &self.interface;
        in_range("interface.command_us", i.command_us, 0.0, 1e6)?;
        in_range("interface.link_mb_per_s", i.link_mb_per_s, 0.0, 1e6)?;
        in_range("interface.queue_depth", f64::from(i.queue_depth), 1.0, 65_536.0)?;
        in_range("buffer.pages", f64::from(self.buffer.pages), 0.0, f64::from(1 << 24))
    }

    fn check_timing(&self) -> Result<(), SpecError> {
        let t = &self.timing;
        for (key, us) in [
            ("read_us", t.read_us),
            ("erase_us", t.erase_us),
            ("read_transfer_us", t.read_transfer_us),
            ("write_transfer_us", t.write_transfer_us),
        ] {
            in_range(&format!("timing.{key}"), us, 0.0, 1e6)?;
        }
        in_range("timing.program_us (entries)", t.program_us.len() as f64, 1.0, 9.0)?;
        for &us in &t.program_us {
            in_range("timing.program_us", us, 0.0, 1e6)?;
        }
        // Counted before it is written out, so that a huge repeat count costs nothing.
        let listed: u64 = t.program_pattern.iter().map(|(d, n)| d.len() as u64 * u64::from(*n)).sum();
        let pages = u64::from(self.geometry.pages_per_block);
        if !t.program_pattern.is_empty() && listed != pages {
            let what = format!("lists {listed} pages, but a block has {pages}");
            return Err(SpecError::new("timing.program_pattern", what));
        }
        match self.page_classes().iter().position(|&c| usize::from(c) >= t.program_us.len()) {
            Some(page) => {
                let what = format!("page {page} is of none of the {} classes in program_us", t.program_us.len());
                Err(SpecError::new("timing.program_pattern", what))
            }
            None => Ok(()),
        }
    }

    fn check_ftl(&self) -> Result<(), SpecError> {
        let blocks = self.blocks_per_unit();
        match &self.ftl {
            FtlSpec::Page(p) => {
                in_range("ftl.over_provision", p.over_provision, 0.0, 10.0)?;
                in_range("ftl.gc_urgent_free_blocks", f64::from(p.gc_urgent_free_blocks), 1.0, 1e6)?;
                let (urgent, start) = (f64::from(p.gc_urgent_free_blocks), f64::from(p.gc_start_free_blocks));
                in_range("ftl.gc_start_free_blocks", start, urgent, 1e6)?;
                let used = self.logical_pages_per_unit().div_ceil(self.geometry.pages_per_block);
                // Open blocks, those kept free, the one that a victim needs, and one in which garbage can be.
                let need = p.streams() + p.gc_urgent_free_blocks + 2;
                if blocks < used + need {
                    let what = format!(
                        "leaves {} spare blocks of a unit's {blocks}, but {need} are needed to collect garbage",
                        blocks.saturating_sub(used)
                    );
                    return Err(SpecError::new("ftl.over_provision", what));
                }
                Ok(())
            }
            FtlSpec::Hybrid(h) => {
                in_range("ftl.over_provision", h.over_provision, 0.0, 10.0)?;
                in_range("ftl.log_share", h.log_share, 0.0, 0.9)?;
                let log = h.log_blocks(blocks);
                in_range("ftl.sequential_log_blocks", f64::from(h.sequential_log_blocks), 1.0, f64::from(blocks))?;
                if log < h.sequential_log_blocks + 1 {
                    let what = format!("gives a unit {log} log blocks; it needs one more than sequential_log_blocks");
                    return Err(SpecError::new("ftl.log_share", what));
                }
                let data = self.logical_pages_per_unit() / self.geometry.pages_per_block;
                if data == 0 || blocks < data + log + 1 {
                    let what = "leaves no free block to merge into, or no data block";
                    return Err(SpecError::new("ftl.over_provision", what));
                }
                Ok(())
            }
        }
    }

    /// The altered specification: array reads, each class of programs, erases, transfers and controller time, each
    /// with a factor of its own, and the page classes moved along by a page. Geometry stays.
    pub fn mismatched(&self, m: Mismatch) -> Result<FlashSpec, SpecError> {
        in_range("mismatch.spread", m.spread, 0.0, 0.5)?;
        let draw = |part: &str| 1.0 + m.spread * (2.0 * Rng::new(m.seed, part).unit() - 1.0);
        let mut s = self.clone();
        let t = &mut s.timing;
        t.read_us *= draw("flash read");
        for (i, us) in t.program_us.iter_mut().enumerate() {
            *us *= draw(&format!("flash program {i}"));
        }
        t.erase_us *= draw("flash erase");
        let channel = draw("flash channel");
        t.read_transfer_us *= channel;
        t.write_transfer_us *= channel;
        s.interface.command_us *= draw("flash controller");
        if m.spread > 0.0 && t.program_us.len() > 1 {
            let mut classes = self.page_classes();
            classes.rotate_right(1);
            let digits = classes.iter().map(|c| char::from(b'1' + c)).collect();
            t.program_pattern = vec![(digits, 1)];
        }
        Ok(s)
    }
}

impl PageFtlSpec {
    /// Blocks of a unit that are open for writing.
    pub(crate) fn streams(&self) -> u32 {
        1 + u32::from(self.hot_cold) + u32::from(self.gc_stream)
    }
}

impl HybridFtlSpec {
    /// Log blocks of a unit with `blocks` blocks.
    pub(crate) fn log_blocks(&self, blocks: u32) -> u32 {
        (f64::from(blocks) * self.log_share).round() as u32
    }
}

pub(crate) fn in_range(key: &str, value: f64, lo: f64, hi: f64) -> Result<(), SpecError> {
    if (lo..=hi).contains(&value) {
        Ok(())
    } else {
        Err(SpecError::new(key, format!("is {value}; it must lie between {lo} and {hi}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn embedded_profiles_are_valid_and_survive_a_round_trip() {
        for name in FlashSpec::names() {
            let spec = FlashSpec::by_name(name).unwrap_or_else(|e| panic!("{name}: {e}"));
            assert_eq!(FlashSpec::from_toml(&spec.to_toml()), Ok(spec), "{name}");
        }
        assert!(FlashSpec::by_name("floppy").unwrap_err().to_string().contains("mittos-openchannel"));
    }

    /// MT-M15: 512 entries a block. MT-A3: the text's "#0-6, #7, #8-9, then 1122" in one profile, the published
    /// code's upper pages in the other; both end in 2112.
    #[test]
    fn page_tables_are_those_of_paper_and_code() {
        let paper = FlashSpec::by_name("mittos-openchannel").expect("embedded").page_classes();
        let code = FlashSpec::by_name("mittos-openchannel-code").expect("embedded").page_classes();
        let upper = |c: &[u8], pages: std::ops::Range<usize>| pages.filter(|&p| c[p] == 1).collect::<Vec<_>>();
        assert_eq!((paper.len(), code.len()), (512, 512));
        assert_eq!(upper(&paper, 0..18), [7, 12, 13, 16, 17]);
        assert_eq!(upper(&code, 0..18), [6, 9, 12, 13, 16, 17]);
        for c in [&paper, &code] {
            assert_eq!(upper(c, 500..512), [500, 501, 504, 505, 508, 511]);
        }
    }

    #[test]
    fn what_cannot_be_is_refused_with_its_key() {
        let good = FlashSpec::by_name("nitro-mlc").expect("embedded");
        let refused = |change: &dyn Fn(&mut FlashSpec)| {
            let mut s = good.clone();
            change(&mut s);
            s.check().expect_err("refused").key().to_string()
        };
        assert_eq!(refused(&|s| s.geometry.channels = 0), "geometry.channels");
        assert_eq!(refused(&|s| s.geometry.page_bytes = 3000), "geometry.page_bytes");
        assert_eq!(refused(&|s| s.geometry.blocks_per_plane = 1 << 24), "geometry (pages of the drive)");
        assert_eq!(refused(&|s| s.timing.program_pattern = vec![("12".into(), u32::MAX)]), "timing.program_pattern");
        assert_eq!(refused(&|s| s.timing.program_pattern = vec![("19".into(), 128)]), "timing.program_pattern");
        let page = |over_provision| PageFtlSpec {
            over_provision,
            gc_start_free_blocks: 4,
            gc_urgent_free_blocks: 1,
            gc_step_pages: 0,
            gc_paced: false,
            gc_stream: true,
            hot_cold: false,
            wear_gap_erases: 0,
        };
        assert_eq!(refused(&|s| s.ftl = FtlSpec::Page(page(0.001))), "ftl.over_provision");
        let text = good.to_toml().replace("read_us", "read_hours");
        assert!(FlashSpec::from_toml(&text).unwrap_err().to_string().contains("read_hours"));
    }

    #[test]
    fn a_mismatched_drive_differs_in_every_time_and_repeats() {
        let spec = FlashSpec::by_name("mittos-openchannel").expect("embedded");
        let m = Mismatch { seed: 5, spread: 0.2 };
        let a = spec.mismatched(m).expect("valid");
        assert_eq!(a, spec.mismatched(m).expect("valid"));
        assert_eq!(a.geometry, spec.geometry);
        for (x, y) in [
            (a.timing.read_us, spec.timing.read_us),
            (a.timing.program_us[0], spec.timing.program_us[0]),
            (a.timing.program_us[1], spec.timing.program_us[1]),
            (a.timing.erase_us, spec.timing.erase_us),
            (a.timing.read_transfer_us, spec.timing.read_transfer_us),
        ] {
            assert!(x != y && (x / y - 1.0).abs() <= 0.2, "{x} against {y}");
        }
        assert_ne!(a.page_classes(), spec.page_classes());
        a.check().expect("still a drive");
    }

    #[test]
    fn scaling_keeps_the_structure() {
        let spec = FlashSpec::by_name("mittos-openchannel").expect("embedded");
        for gib in [512, 128, 16] {
            let s = spec.scaled_to(gib << 30);
            s.check().expect("valid");
            let bytes = u64::from(s.units()) * u64::from(s.logical_pages_per_unit()) * s.page_bytes();
            assert!((bytes as f64 / (gib << 30) as f64 - 1.0).abs() < 0.02, "{gib}: {bytes}");
            assert_eq!((s.units(), s.blocks_per_unit() >= 256), (spec.units(), true));
            assert_eq!(s.page_classes(), spec.page_classes()[..s.geometry.pages_per_block as usize]);
        }
        assert_eq!(spec.scaled_to(512 << 30).geometry.pages_per_block, 512);
        spec.scaled_to(1 << 20).check().expect("valid");
    }
}
