//! Reads DiskSim-4 parameter sets (`.diskspecs`, `.model`, `.seek`), so that a drive that somebody has extracted
//! can be used as it is.
//!
//! The format is that of the DiskSim 4.0 reference manual: a `disksim_disk` block (controller, buffer, bus) that
//! names a `dm_disk` block (layout `dm_layout_g1`, mechanics `dm_mech_g1`), which names a seek curve. Keys that
//! have no counterpart in [`DiskSpec`] are listed in `IGNORED` with the reason; a key that is in neither list is an error.

mod text;

use std::path::Path;

use crate::disk::{
    Buffer, Bus, Discipline, DiskSpec, Geometry, Mapping, Mechanics, Overheads, Queue, ReadAhead, SeekCurve, Sparing,
    WriteDisconnect, Zone,
};
use text::{Block, Data, Value};

pub use text::DiskspecError;

/// The texts of a parameter set, each with the name that errors give it.
#[derive(Clone, Copy, Debug)]
pub struct Texts<'a> {
    /// `.diskspecs`
    pub specs: (&'a str, &'a str),
    /// `.model`
    pub model: (&'a str, &'a str),
    /// `.seek`; not needed if the model has a seek formula.
    pub seek: Option<(&'a str, &'a str)>,
}

/// Reads `NAME.diskspecs` and the files it names from the same directory. `model` replaces the model file that
/// it names (published sets are not always consistent).
pub fn load(specs: &Path, model: Option<&Path>) -> Result<DiskSpec, DiskspecError> {
    let dir = specs.parent().unwrap_or(Path::new("."));
    let read = |path: &Path| {
        let file = path.display().to_string();
        let text = std::fs::read_to_string(path).map_err(|e| DiskspecError {
            file: file.clone(),
            line: 0,
            what: format!("can't be read: {e}"),
        })?;
        Ok((file, text))
    };
    let (specs_name, specs_text) = read(specs)?;
    let model_path = match model {
        Some(path) => path.to_path_buf(),
        None => dir.join(model_file(&specs_name, &specs_text)?),
    };
    let (model_name, model_text) = read(&model_path)?;
    let seek = seek_file(&model_name, &model_text)?.map(|name| read(&dir.join(name))).transpose()?;
    parse(Texts {
        specs: (&specs_name, &specs_text),
        model: (&model_name, &model_text),
        seek: seek.as_ref().map(|(n, t)| (n.as_str(), t.as_str())),
    })
}

/// The model file that a `.diskspecs` text names.
pub fn model_file(file: &str, text: &str) -> Result<String, DiskspecError> {
    let disk = Reader::first(file, text, "disksim_disk")?;
    let words = disk.words("Model")?;
    let name = words.strip_prefix("source ");
    name.map(str::to_string)
        .ok_or_else(|| disk.wrong("Model", "`source FILE`, as the model stands in a file of its own"))
}

/// The seek file that a `.model` text names, if it needs one.
pub fn seek_file(file: &str, text: &str) -> Result<Option<String>, DiskspecError> {
    let model = Reader::first(file, text, "dm_disk")?;
    let mech = model.block("Mechanical Model", "dm_mech_g1")?;
    match mech.words("Seek type")? {
        "extracted" => mech.words("Full seek curve").map(|w| Some(w.to_string())),
        _ => Ok(None),
    }
}

/// Builds a specification from the texts of a parameter set.
pub fn parse(texts: Texts<'_>) -> Result<DiskSpec, DiskspecError> {
    let disk = Reader::first(texts.specs.0, texts.specs.1, "disksim_disk")?;
    disk.refuse_unknown(DISK_KEYS, IGNORED)?;
    let model = Reader::first(texts.model.0, texts.model.1, "dm_disk")?;
    model.refuse_unknown(&["Number of data surfaces", "Number of cylinders", "Block count"], MODEL_BLOCKS)?;
    let spec = DiskSpec {
        name: disk.block.name.trim_end_matches("_validate").to_string(),
        source: vec![format!("DiskSim parameter files {} and {}", base_name(texts.specs.0), base_name(texts.model.0))],
        assumed: Vec::new(),
        geometry: geometry(&model)?,
        mechanics: mechanics(&model, &disk, texts.seek)?,
        bus: {
            let us = disk.number("Bulk sector transfer time")? * 1000.0;
            Bus { read_us_per_sector: us, write_us_per_sector: us }
        },
        overheads: overheads(&disk)?,
        buffer: buffer(&disk)?,
        queue: queue(&disk)?,
    };
    spec.check().map_err(|e| disk.error(disk.block.line, e.to_string()))?;
    Ok(spec)
}

fn base_name(file: &str) -> &str {
    Path::new(file).file_name().and_then(|n| n.to_str()).unwrap_or(file)
}

fn geometry(model: &Reader<'_>) -> Result<Geometry, DiskspecError> {
    let layout = model.block("Layout Model", "dm_layout_g1")?;
    layout.refuse_unknown(
        &["LBN-to-PBN mapping scheme", "Sparing scheme used", "Rangesize for sparing", "Zones", "Skew units"],
        &[],
    )?;
    let mapping = match layout.whole("LBN-to-PBN mapping scheme")? {
        0 => Mapping::Cylinder,
        1 => Mapping::Serpentine,
        2 => Mapping::SerpentineEven,
        _ => return Err(layout.wrong("LBN-to-PBN mapping scheme", "0, 1 or 2")),
    };
    let sparing = match layout.whole("Sparing scheme used")? {
        0 => Sparing::None,
        1 => Sparing::TracksPerZone,
        2 => Sparing::SectorsPerCylinder,
        3 => Sparing::SectorsPerTrack,
        7 => Sparing::EndOfDisk,
        8 => Sparing::SectorsPerRange,
        9 => Sparing::SectorsPerZone,
        _ => return Err(layout.wrong("Sparing scheme used", "0, 1, 2, 3, 7, 8 or 9; the others aren't modelled")),
    };
    let units = layout.words("Skew units").unwrap_or("sectors");
    let Data::List(zones) = &layout.get("Zones")?.data else {
        return Err(layout.wrong("Zones", "a list of zones"));
    };
    let zones: Vec<Zone> = zones.iter().map(|z| zone(&layout, z, units)).collect::<Result<_, _>>()?;
    // One of the published sets counts a cylinder too few.
    let used = zones.iter().map(|z| z.last_cylinder.saturating_add(1)).max().unwrap_or(0);
    Ok(Geometry {
        sector_bytes: 512,
        surfaces: model.small("Number of data surfaces")?,
        cylinders: model.small("Number of cylinders")?.max(used),
        mapping,
        sparing,
        sparing_range_cylinders: layout.small("Rangesize for sparing")?,
        zones,
    })
}

fn zone(layout: &Reader<'_>, value: &Value, units: &str) -> Result<Zone, DiskspecError> {
    let Data::Block(block) = &value.data else {
        return Err(layout.error(value.line, "expected a zone `dm_layout_g1_zone { … }`"));
    };
    let z = Reader { file: layout.file, block: block.clone() };
    z.refuse_unknown(ZONE_KEYS, &[])?;
    let sectors_per_track = z.small("Blocks per track")?;
    let scale = match z.words("Skew units").unwrap_or(units) {
        "sectors" => 1.0,
        "revolutions" => f64::from(sectors_per_track),
        _ => return Err(z.wrong("Skew units", "sectors or revolutions")),
    };
    let mut slips = z.numbers("slips")?;
    slips.sort_unstable();
    slips.dedup();
    Ok(Zone {
        first_cylinder: z.small("First cylinder number")?,
        last_cylinder: z.small("Last cylinder number")?,
        sectors_per_track,
        offset_sectors: z.number("Offset of first block")? * scale,
        front_sectors: z.whole("Empty space at zone front")?,
        track_skew_sectors: Some(z.number_or("Skew for track switch", 0.0)? * scale),
        cylinder_skew_sectors: Some(z.number_or("Skew for cylinder switch", 0.0)? * scale),
        spares: z.whole("Number of spares")?,
        slips,
    })
}

fn mechanics(
    model: &Reader<'_>,
    disk: &Reader<'_>,
    seek_text: Option<(&str, &str)>,
) -> Result<Mechanics, DiskspecError> {
    let m = model.block("Mechanical Model", "dm_mech_g1")?;
    m.refuse_unknown(MECH_KEYS, &[("Percent error in rpms", ""), ("Constant seek time", "")])?;
    if m.words("Access time type")? != "trackSwitchPlusRotation" {
        return Err(m.wrong("Access time type", "trackSwitchPlusRotation: the others have no mechanics"));
    }
    let three_points = || -> Result<SeekCurve, DiskspecError> {
        Ok(SeekCurve::ThreePoint {
            single_ms: m.number("Single cylinder seek time")?,
            average_ms: m.number("Average seek time")?,
            full_ms: m.number("Full strobe seek time")?,
        })
    };
    let (seek, write_seek) = match m.words("Seek type")? {
        "extracted" => {
            let (file, text) =
                seek_text.ok_or_else(|| m.wrong("Seek type", "given with the text of its seek curve"))?;
            seek_tables(file, text)?
        }
        "curve" => (three_points()?, None),
        "hpl" => (hpl(&m, false)?, None),
        "hplplus10" => (hpl(&m, true)?, None),
        _ => return Err(m.wrong("Seek type", "extracted, curve, hpl or hplplus10")),
    };
    Ok(Mechanics {
        rpm: m.number("Rotation speed (in rpms)")?,
        seek,
        write_seek,
        head_switch_ms: m.number("Head switch time")?,
        write_settle_ms: m.number("Add. write settling delay")?,
        actuators: 1,
        zero_latency_reads: disk.whole("Immediate buffer read")? > 0,
        zero_latency_writes: disk.whole("Immediate buffer write")? > 0,
    })
}

fn hpl(m: &Reader<'_>, first_ten: bool) -> Result<SeekCurve, DiskspecError> {
    let v = m.decimals("HPL seek equation values")?;
    let &[boundary, short_ms, short_root_ms, long_ms, long_slope_ms, single] = v.as_slice() else {
        return Err(m.wrong("HPL seek equation values", "six numbers"));
    };
    let first_ms = if first_ten { m.decimals("First ten seek times")? } else { Vec::new() };
    Ok(SeekCurve::Hpl {
        boundary: boundary as u32,
        short_ms,
        short_root_ms,
        long_ms,
        long_slope_ms,
        single_ms: (single >= 0.0).then_some(single),
        first_ms,
    })
}

/// Lines `distance, ms[, deviation[, write ms]]` after an optional heading with their number.
fn seek_tables(file: &str, text: &str) -> Result<(SeekCurve, Option<SeekCurve>), DiskspecError> {
    let mut announced = None;
    let (mut reads, mut writes) = (Vec::new(), Vec::new());
    for (i, line) in text.lines().enumerate() {
        let error = |what: String| DiskspecError { file: file.into(), line: i + 1, what };
        let line = line.split('#').next().unwrap_or("").trim();
        if let Some(n) = line.strip_prefix("Seek distances measured:") {
            announced = Some(n.trim().parse::<usize>().map_err(|_| error(format!("`{}` is no number", n.trim())))?);
            continue;
        }
        if line.is_empty() {
            continue;
        }
        let fields: Vec<f64> = line
            .split(',')
            .map(|w| w.trim().parse().map_err(|_| error(format!("`{}` is no number", w.trim()))))
            .collect::<Result<_, _>>()?;
        let (&distance, Some(&ms)) = (&fields[0], fields.get(1)) else {
            return Err(error("expected `distance, milliseconds`".into()));
        };
        if !(1.0..16_777_216.0).contains(&distance) || reads.last().is_some_and(|p: &(u32, f64)| p.0 >= distance as u32)
        {
            return Err(error(format!("distance {distance} must be positive and larger than the one before")));
        }
        reads.push((distance as u32, ms));
        writes.extend(fields.get(3).map(|&w| (distance as u32, w)));
    }
    if announced.is_some_and(|n| n != reads.len()) || reads.is_empty() {
        let what = format!("announces {} distances and has {}", announced.unwrap_or(0), reads.len());
        return Err(DiskspecError { file: file.into(), line: 1, what });
    }
    let write_curve = (writes.len() == reads.len()).then_some(SeekCurve::Table { points: writes });
    Ok((SeekCurve::Table { points: reads }, write_curve))
}

fn overheads(disk: &Reader<'_>) -> Result<Overheads, DiskspecError> {
    let scale = disk.number("Time scale for overheads")?;
    let each = disk.number("Per-request overhead time")?;
    let command = |key| disk.number(key).map(|ms| (ms + each) * scale);
    let ms = |key| disk.number(key).map(|ms| ms * scale);
    let write_disconnect = if disk.whole("Extra write disconnect")? == 1 {
        Some(WriteDisconnect {
            command_ms: command("Extradisc command overhead")?,
            disconnect_ms: ms("Extradisc disconnect overhead")?,
            away_ms: ms("Extradisc inter-disconnect delay")?,
            seek_delay_ms: ms("Extradisc seek delta")?,
            minimum_seek_ms: ms("Minimum seek delay")?,
        })
    } else {
        None
    };
    Ok(Overheads {
        read_hit_after_read_ms: command("Read hit over. after read")?,
        read_hit_after_write_ms: command("Read hit over. after write")?,
        read_miss_after_read_ms: command("Read miss over. after read")?,
        read_miss_after_write_ms: command("Read miss over. after write")?,
        write_hit_after_read_ms: command("Write hit over. after read")?,
        write_hit_after_write_ms: command("Write hit over. after write")?,
        write_miss_after_read_ms: command("Write miss over. after read")?,
        write_miss_after_write_ms: command("Write miss over. after write")?,
        data_preparation_ms: ms("Data preparation overhead")?,
        reselect_ms: ms("First reselect overhead")?,
        write_reselect_ms: ms("Other reselect overhead")?,
        read_completion_ms: ms("Read completion overhead")?,
        write_completion_ms: ms("Write completion overhead")?,
        write_disconnect,
    })
}

fn buffer(disk: &Reader<'_>) -> Result<Buffer, DiskspecError> {
    let by_request = disk.flag("Set watermark by reqsize")?;
    Ok(Buffer {
        segments: disk.small("Number of buffer segments")?,
        segment_sectors: disk.small("Segment size (in blks)")?,
        write_segments: disk.small("Maximum number of write segments")?,
        separate_write_segment: disk.flag("Use separate write segment")?,
        read_ahead: match disk.whole("Buffer continuous read")? {
            0 => ReadAhead::None,
            1 => ReadAhead::Track,
            2 => ReadAhead::Cylinder,
            3 => ReadAhead::Segment,
            4 => ReadAhead::NextTrack,
            _ => return Err(disk.wrong("Buffer continuous read", "0 to 4")),
        },
        read_ahead_max_sectors: disk.small("Maximum read-ahead (blks)")?,
        read_ahead_over_requested: disk.number("Read-ahead over requested")? != 0.0,
        read_ahead_after_hit: disk.flag("Read-ahead on idle hit")?,
        keep_passing_sectors: disk.flag("Read any free blocks")?,
        read_watermark: if by_request { disk.number("High (read) water mark")? } else { 0.0 },
        write_cache_level: disk.small("Fast write level")? as u8,
        write_prebuffering: disk.flag("Allow write prebuffering")?,
        destage_before_reads: true,
        hits_pass_arm: disk.flag("Allow sneaky full read hits")?,
        read_hits_on_writes: disk.flag("Allow read hits on write data")?,
        preseek: disk.whole("Preseeking level")? == 2,
    })
}

fn queue(disk: &Reader<'_>) -> Result<Queue, DiskspecError> {
    let q = disk.block("Scheduler", "disksim_ioqueue")?;
    // The reordering policies differ in what they know and how they age; ours know everything and don't age.
    let discipline = match q.whole("Scheduling policy")? {
        1 => Discipline::Fifo,
        4 | 7 => Discipline::Sstf,
        8..=16 | 20 | 21 => Discipline::Sptf,
        _ => return Err(q.wrong("Scheduling policy", "1 (FCFS), 4 or 7 (SSTF), 8 to 16, 20 or 21 (SPTF and kin)")),
    };
    Ok(Queue { depth: disk.small("Max queue length")?, discipline, age_max_ms: 0.0 })
}

const DISK_KEYS: &[&str] = &[
    "Model",
    "Scheduler",
    "Bulk sector transfer time",
    "Time scale for overheads",
    "Per-request overhead time",
    "Extra write disconnect",
    "Extradisc command overhead",
    "Extradisc disconnect overhead",
    "Extradisc inter-disconnect delay",
    "Extradisc seek delta",
    "Minimum seek delay",
    "Read hit over. after read",
    "Read hit over. after write",
    "Read miss over. after read",
    "Read miss over. after write",
    "Write hit over. after read",
    "Write hit over. after write",
    "Write miss over. after read",
    "Write miss over. after write",
    "Data preparation overhead",
    "First reselect overhead",
    "Other reselect overhead",
    "Read completion overhead",
    "Write completion overhead",
    "Number of buffer segments",
    "Segment size (in blks)",
    "Maximum number of write segments",
    "Use separate write segment",
    "Buffer continuous read",
    "Maximum read-ahead (blks)",
    "Read-ahead over requested",
    "Read-ahead on idle hit",
    "Read any free blocks",
    "Set watermark by reqsize",
    "High (read) water mark",
    "Fast write level",
    "Allow write prebuffering",
    "Allow sneaky full read hits",
    "Allow read hits on write data",
    "Preseeking level",
    "Max queue length",
    "Immediate buffer read",
    "Immediate buffer write",
];

/// Keys that we read past, and why that is harmless or what it costs.
const IGNORED: &[(&str, &str)] = &[
    ("Low (write) water mark", "matters to writes that are larger than a segment"),
    ("Print stats", "output of DiskSim"),
    ("Avg sectors per cylinder", "a hint for host schedulers"),
    ("Calc sector by sector", "has no effect in DiskSim either"),
    ("Hold bus entire read xfer", "matters to other devices of the bus"),
    ("Hold bus entire write xfer", "matters to other devices of the bus"),
    ("Never disconnect", "matters to other devices of the bus"),
    ("Allow almost read hits", "we always ride on running read-ahead"),
    ("Allow sneaky partial read hits", "we let full hits pass only"),
    ("Allow sneaky intermediate read hits", "we let full hits pass only"),
    ("Minimum read-ahead (blks)", "read-ahead always yields at once; all published files say 0"),
    ("Enable caching in buffer", "a buffer without caching is one without read-ahead and segments"),
    ("Immed transfer partial hit", "all published files say 1, as we do"),
    ("Combine seq writes", "all published files say 1, as we do"),
    ("Stop prefetch in sector", "read-ahead stops within a sector's time"),
    ("Disconnect write if seek", "matters to other devices of the bus"),
    ("Write hit stop prefetch", "all published files say 1, as we do"),
    ("Read directly to buffer", "one sector's time at most"),
    ("Read disconnect afterread", "in parallel with the media"),
    ("Read disconnect afterwrite", "in parallel with the media"),
    ("Write disconnect overhead", "in parallel with the media"),
    ("Extradisc 2nd disconnect overhead", "in parallel with the media"),
];

const MODEL_BLOCKS: &[(&str, &str)] = &[("Layout Model", ""), ("Mechanical Model", "")];

const ZONE_KEYS: &[&str] = &[
    "First cylinder number",
    "Last cylinder number",
    "Blocks per track",
    "Offset of first block",
    "Skew units",
    "Empty space at zone front",
    "Skew for track switch",
    "Skew for cylinder switch",
    "Number of spares",
    "slips",
    // Remapped sectors are served where they would have been: some dozens in millions.
    "defects",
];

const MECH_KEYS: &[&str] = &[
    "Access time type",
    "Seek type",
    "Single cylinder seek time",
    "Average seek time",
    "Full strobe seek time",
    "Full seek curve",
    "Add. write settling delay",
    "HPL seek equation values",
    "First ten seek times",
    "Head switch time",
    "Rotation speed (in rpms)",
];

/// A block with typed access to its entries.
struct Reader<'a> {
    file: &'a str,
    block: Block,
}

impl<'a> Reader<'a> {
    fn first(file: &'a str, text: &str, kind: &str) -> Result<Reader<'a>, DiskspecError> {
        let block = text::parse(file, text)?.into_iter().find(|b| b.kind == kind);
        let what = format!("has no `{kind}` block");
        block.map(|block| Reader { file, block }).ok_or(DiskspecError { file: file.into(), line: 0, what })
    }

    fn error(&self, line: usize, what: impl Into<String>) -> DiskspecError {
        DiskspecError { file: self.file.into(), line, what: what.into() }
    }

    fn wrong(&self, key: &str, wanted: &str) -> DiskspecError {
        let line = self.get(key).map_or(self.block.line, |v| v.line);
        self.error(line, format!("`{key}` must be {wanted}"))
    }

    fn refuse_unknown(&self, known: &[&str], ignored: &[(&str, &str)]) -> Result<(), DiskspecError> {
        for (key, value) in &self.block.entries {
            if !known.contains(&key.as_str()) && !ignored.iter().any(|i| i.0 == key) {
                return Err(self.error(value.line, format!("unknown key `{key}` in `{}`", self.block.kind)));
            }
        }
        Ok(())
    }

    fn get(&self, key: &str) -> Result<&Value, DiskspecError> {
        let found = self.block.entries.iter().find(|(k, _)| k == key);
        found.map(|(_, v)| v).ok_or_else(|| self.error(self.block.line, format!("`{}` lacks `{key}`", self.block.kind)))
    }

    fn words(&self, key: &str) -> Result<&str, DiskspecError> {
        match &self.get(key)?.data {
            Data::Words(w) => Ok(w),
            _ => Err(self.wrong(key, "a word or number")),
        }
    }

    fn block(&self, key: &str, kind: &str) -> Result<Reader<'a>, DiskspecError> {
        match &self.get(key)?.data {
            Data::Block(b) if b.kind == kind => Ok(Reader { file: self.file, block: b.clone() }),
            _ => Err(self.wrong(key, &format!("a block `{kind} {{ … }}`"))),
        }
    }

    fn number(&self, key: &str) -> Result<f64, DiskspecError> {
        let value = self.words(key)?.parse::<f64>();
        value.ok().filter(|v| v.is_finite()).ok_or_else(|| self.wrong(key, "a number"))
    }

    fn number_or(&self, key: &str, default: f64) -> Result<f64, DiskspecError> {
        if self.block.entries.iter().any(|(k, _)| k == key) { self.number(key) } else { Ok(default) }
    }

    /// A whole number; `63.000000` is one, too.
    fn whole(&self, key: &str) -> Result<u64, DiskspecError> {
        let v = self.number(key)?;
        if v.fract() == 0.0 && (0.0..9e15).contains(&v) {
            Ok(v as u64)
        } else {
            Err(self.wrong(key, "a whole number, not negative"))
        }
    }

    fn small(&self, key: &str) -> Result<u32, DiskspecError> {
        u32::try_from(self.whole(key)?).map_err(|_| self.wrong(key, "below 2^32"))
    }

    fn flag(&self, key: &str) -> Result<bool, DiskspecError> {
        self.whole(key).map(|v| v != 0)
    }

    fn decimals(&self, key: &str) -> Result<Vec<f64>, DiskspecError> {
        let Data::List(items) = &self.get(key)?.data else {
            return Err(self.wrong(key, "a list of numbers"));
        };
        let number = |v: &Value| match &v.data {
            Data::Words(w) => w.parse::<f64>().ok().filter(|v| v.is_finite()),
            _ => None,
        };
        items.iter().map(|v| number(v).ok_or_else(|| self.error(v.line, "expected a number"))).collect()
    }

    fn numbers(&self, key: &str) -> Result<Vec<u64>, DiskspecError> {
        let all = self.decimals(key)?;
        let whole = |v: f64| (v.fract() == 0.0 && (0.0..9e15).contains(&v)).then_some(v as u64);
        all.into_iter().map(|v| whole(v).ok_or_else(|| self.wrong(key, "a list of whole numbers"))).collect()
    }
}
