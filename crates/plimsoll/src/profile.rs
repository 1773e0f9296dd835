//! `plimsoll profile`.

use crate::alone::{is_blank, lock, options};
use crate::output::write_over;
use anyhow::{Context, Result, bail};
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use plimsoll_base::Span;
use plimsoll_device::{DeviceSpec, Disk, DiskOptions, FlashSpec};
use plimsoll_profile::{ModelTarget, disk_batches_of, flash_profile_of};
use plimsoll_sched::Profile;
use plimsoll_sched::batches::{BatchProfile, measure_disk_batches, measure_flash_batches};
use plimsoll_sched::measure::{MeasureOptions, Target, measure_disk};
use plimsoll_sched::profile::{DeviceId, Drift};
use plimsoll_store::{DeviceFile, Expect, Look, ROLE_MAIN};
use rustix::fs::OFlags;
use std::fs::File;
use std::io::IsTerminal;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Measure what a device's requests cost, for the predictors
#[derive(Args)]
#[command(after_help = "Example:\n  plimsoll profile hdd-160g-7200 --out disk.profile.toml\n  \
                        plimsoll profile /dev/sdb --out sdb.profile.toml\n  \
                        plimsoll profile /dev/sdb --check sdb.profile.toml")]
pub struct ProfileArgs {
    /// Modelled device, file or block device; only read, without --writes.
    device: String,
    /// File for the profile [default: standard output].
    #[arg(long, value_name = "FILE", conflicts_with = "check")]
    out: Option<PathBuf>,
    /// Compare the device with this profile instead: exit status 1 if it has drifted by more than 10 %.
    #[arg(long, value_name = "FILE")]
    check: Option<PathBuf>,
    /// Also measure writes. DESTROYS ALL DATA on a file or block device, which no node, mount or other program may use.
    #[arg(long)]
    writes: bool,
    /// Measure writes on a device that isn't blank.
    #[arg(long, requires = "writes")]
    force: bool,
    /// Tries of each distance.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(2..=1000))]
    tries: u32,
    /// Seed of the measured places.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print the comparison as JSON.
    #[arg(long, requires = "check")]
    json: bool,
}

/// Drift beyond which `--check` fails: a fresh measurement of an unchanged disk is within a third of it.
const DRIFT_MOST_PERCENT: f64 = 10.0;

/// A file or block device, asked past the page cache if it can be.
struct RealTarget {
    file: File,
    size_bytes: u64,
    buffer: Vec<u8>,
}

/// Direct I/O wants memory at multiples of this.
const ALIGN: usize = 4096;
const REQUEST_MAX: usize = 1 << 20;
/// Batches that are timed, some seconds' worth of a disk and of flash each.
const BATCHES: usize = 300;
/// Places that are read to see whether a device has data.
const SAMPLES: u64 = 64;

impl RealTarget {
    fn open(path: &Path, writes: bool) -> Result<RealTarget> {
        let open = |flags| options(path, writes, flags).open(path);
        let file = match open(OFlags::DIRECT) {
            Err(e) if e.kind() == std::io::ErrorKind::InvalidInput => {
                eprintln!("{}: its file system refuses direct I/O: the page cache is measured with it", path.display());
                open(OFlags::empty())
            }
            opened => opened,
        };
        let file = file.with_context(|| format!("{}: can't be opened", path.display()))?;
        if writes {
            lock(&file, path, true)?; // until it has been measured
        }
        let size_bytes = rustix::fs::seek(&file, rustix::fs::SeekFrom::End(0)).context("could not read its size")?;
        if size_bytes < 64 << 20 {
            bail!("{}: has {size_bytes} bytes; at least 64 MiB are needed to tell distances apart", path.display());
        }
        Ok(RealTarget { file, size_bytes: size_bytes / 4096 * 4096, buffer: vec![0x5a; REQUEST_MAX + ALIGN] })
    }
}

impl RealTarget {
    /// Warns on standard error of a device that a node uses, and of one that answers without reading.
    fn warn(&mut self, path: &Path) -> Result<()> {
        let expect = Expect { pool_uuid: None, device_uuid: None, role: ROLE_MAIN.into() };
        let path_text = path.display();
        // Anything else about it is of no concern here.
        if let Ok(Some(Look { used_by: Some(pid), .. })) = DeviceFile::look(path, &expect) {
            eprintln!(
                "plimsoll: {path_text}: process {pid} uses it: its requests are measured, too. Stop it, and measure an idle device"
            );
        }
        let from = self.buffer.as_ptr().align_offset(ALIGN);
        for n in 0..SAMPLES {
            let offset = self.size_bytes / SAMPLES * n / ALIGN as u64 * ALIGN as u64;
            let part = &mut self.buffer[from..from + ALIGN];
            self.file.read_exact_at(part, offset).with_context(|| format!("{path_text}: a request failed"))?;
            if part.iter().any(|b| *b != 0) {
                return Ok(());
            }
        }
        eprintln!(
            "plimsoll: {path_text}: {SAMPLES} places of it are zero: it may be a hole or blank, which is answered without a read. Fill it first"
        );
        Ok(())
    }
}

impl Target for RealTarget {
    type Error = std::io::Error;

    fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn one(&mut self, write: bool, offset: u64, len: u64) -> std::io::Result<Span> {
        let from = self.buffer.as_ptr().align_offset(ALIGN);
        let part = &mut self.buffer[from..from + len as usize];
        let began = Instant::now();
        if write {
            self.file.write_all_at(part, offset)?
        } else {
            self.file.read_exact_at(part, offset)?
        }
        Ok(began.elapsed().into())
    }

    /// Each from a thread of its own.
    fn together(&mut self, offsets: &[u64]) -> std::io::Result<Vec<usize>> {
        let file = &self.file;
        let started = std::sync::Barrier::new(offsets.len());
        let read = |&offset: &u64| {
            let mut buffer = vec![0; 2 * ALIGN];
            let from = buffer.as_ptr().align_offset(ALIGN);
            started.wait();
            file.read_exact_at(&mut buffer[from..from + ALIGN], offset).map(|()| Instant::now())
        };
        let read = &read;
        let ended: Vec<std::io::Result<Instant>> = std::thread::scope(|s| {
            let all: Vec<_> = offsets.iter().map(|o| s.spawn(move || read(o))).collect();
            all.into_iter().map(|t| t.join().expect("a read doesn't panic")).collect()
        });
        let mut order =
            ended.into_iter().enumerate().map(|(i, t)| t.map(|t| (t, i))).collect::<std::io::Result<Vec<_>>>()?;
        order.sort_unstable();
        Ok(order.into_iter().map(|(_, i)| i).collect())
    }

    /// Each from a thread of its own.
    fn batch(&mut self, durable: bool, requests: &[(bool, u64, u64)]) -> std::io::Result<Span> {
        let file = &self.file;
        let started = std::sync::Barrier::new(requests.len() + 1);
        let serve = |&(write, offset, len): &(bool, u64, u64)| -> std::io::Result<()> {
            let mut buffer = vec![0x5a; len as usize + ALIGN];
            let from = buffer.as_ptr().align_offset(ALIGN);
            let part = &mut buffer[from..from + len as usize];
            started.wait();
            match write {
                false => file.read_exact_at(part, offset),
                true if durable => file.write_all_at(part, offset).and_then(|()| file.sync_data()),
                true => file.write_all_at(part, offset),
            }
        };
        let serve = &serve;
        std::thread::scope(|s| {
            let all: Vec<_> = requests.iter().map(|r| s.spawn(move || serve(r))).collect();
            started.wait();
            let began = Instant::now();
            let ended: std::io::Result<()> = all.into_iter().try_for_each(|t| t.join().expect("it doesn't panic"));
            ended.map(|()| began.elapsed().into())
        })
    }

    fn rest(&mut self, time: Span) {
        std::thread::sleep(time.into());
    }
}

impl ProfileArgs {
    /// Runs the command; fails if the device has drifted.
    pub fn run(&self) -> Result<()> {
        let kept = match &self.check {
            None => None,
            Some(path) => {
                let text =
                    std::fs::read_to_string(path).with_context(|| format!("{}: cannot be read", path.display()))?;
                Some(Profile::parse(&path.display().to_string(), &text)?)
            }
        };
        let now = self.measure()?;
        if let (None, Some(disk)) = (&kept, &now.disk) {
            let group = disk.log_group_bytes() >> 20;
            eprintln!(
                "scattered logs on it, if any: group = \"{group}MiB\", log = \"{}MiB\" in [pool.logs]",
                group / 10
            );
        }
        match (kept, &self.out) {
            (Some(kept), _) => return self.compare(&kept, &now),
            (None, Some(path)) => {
                write_over(path, &now.to_toml())?;
                let m = &now.measured;
                eprintln!("{}: {} requests, {} s of the device's time", path.display(), m.requests, m.device_s);
            }
            (None, None) => print!("{}", now.to_toml()),
        }
        Ok(())
    }

    fn measure(&self) -> Result<Profile> {
        let bar = if std::io::stderr().is_terminal() { ProgressBar::new(1) } else { ProgressBar::hidden() };
        bar.set_style(ProgressStyle::with_template("{bar:40} {percent} % {eta}").expect("a constant template"));
        let mut progress = |step, steps| {
            bar.set_length(steps);
            bar.set_position(step);
        };
        let path = Path::new(&self.device);
        let is_model_file = path.extension().is_some_and(|e| e == "toml");
        if path.exists() && !is_model_file {
            let options = MeasureOptions { seed: self.seed, tries: self.tries, writes: self.writes };
            let mut target = RealTarget::open(path, self.writes)?;
            if self.writes && !self.force {
                let blank = File::open(path).and_then(|f| is_blank(&f));
                if !blank.with_context(|| format!("{}: read its ends", path.display()))? {
                    bail!("{}: it isn't blank; add --force to lose what is there", path.display());
                }
            }
            target.warn(path)?;
            let failed = || format!("{}: a request failed", self.device);
            let profile = measure_disk(&mut target, &self.device, options, &mut progress).with_context(failed)?;
            let disk = measure_disk_batches(&mut target, BATCHES, self.writes, self.seed).with_context(failed)?;
            let flash = measure_flash_batches(&mut target, BATCHES, self.writes, self.seed).with_context(failed)?;
            return Ok(Profile { batches: Some(BatchProfile { disk, flash }), ..profile });
        }
        if let Ok(spec) = FlashSpec::by_name(&self.device) {
            let profile = flash_profile_of(&spec, 1 << 30)?;
            let device = DeviceId { name: self.device.clone(), ..profile.device };
            return Ok(Profile { device, ..profile });
        }
        let spec = DeviceSpec::named(&self.device).context("it's no file and no model")?;
        let DeviceSpec::Disk(spec) = spec else {
            bail!("{}: only disks and flash drives are profiled, each by itself", self.device);
        };
        let disk = Disk::new(&spec, DiskOptions { seed: self.seed, mismatch: None })?;
        // A model has nothing to lose.
        let options = MeasureOptions { seed: self.seed, tries: self.tries, writes: true };
        let measured = measure_disk(&mut ModelTarget::new(disk.clone()), &self.device, options, &mut progress);
        let profile = measured.unwrap_or_else(|never| match never {});
        let batches = BatchProfile { disk: disk_batches_of(disk, self.seed), flash: None };
        Ok(Profile { batches: Some(batches), ..profile })
    }

    fn compare(&self, kept: &Profile, now: &Profile) -> Result<()> {
        let file = self.check.as_ref().expect("asked for").display().to_string();
        kept.check_device(&file, now.device.size_bytes)?;
        let Some(Drift { what, percent: drift }) = kept.drift(now) else {
            bail!("{file}: is the profile of another kind of device: measure it again with `plimsoll profile`");
        };
        let ok = drift.abs() <= DRIFT_MOST_PERCENT;
        if self.json {
            println!("{}", serde_json::json!({ "device": self.device, "of": what, "drift_percent": drift, "ok": ok }));
        } else {
            let direction = if drift < 0.0 { "less" } else { "more" };
            println!("{}: {what} take {:.1} % {direction} than {file} says", self.device, drift.abs());
        }
        if !ok {
            bail!("{}: has drifted: measure it again with --out", self.device);
        }
        Ok(())
    }
}
