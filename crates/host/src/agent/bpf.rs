//! The BPF programs: loaded, their maps, attached.

use aya::maps::{MapData, RingBuf};
use aya::programs::{BtfTracePoint, ProgramError};
use aya::{Btf, Ebpf, EbpfError};
use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

/// The loader reads numbers of eight bytes from it.
#[repr(C, align(8))]
pub(super) struct Aligned<T: ?Sized>(pub(super) T);
static HOST: &Aligned<[u8]> = &Aligned(*include_bytes!("../../bpf/host.bpf.o"));
/// `bpf/host.bpf.c`, compiled by `bpf/build.sh`.
pub(super) static OBJECT: &[u8] = &HOST.0;

/// Programs by name, with the tracepoint of each. A request's later steps are seen before its earlier ones: counts stop at zero, so that
/// requests of before do no harm.
pub(super) const ATTACHED: [(&str, &str); 5] = [
    ("complete", "block_rq_complete"),
    ("requeue", "block_rq_requeue"),
    ("merge", "block_rq_merge"),
    ("issue", "block_rq_issue"),
    ("insert", "block_rq_insert"),
];

const BTF: &str = "/sys/kernel/btf/vmlinux";
/// Numbers of capabilities.
const CAPABILITIES: [(&str, u32); 2] = [("CAP_PERFMON", 38), ("CAP_BPF", 39)];

/// Reasons for which the agent can't start, with remedies.
#[derive(Debug)]
pub enum StartError {
    /// The kernel has no type information.
    NoBtf(io::Error),
    /// The process may not load BPF programs: the capabilities that it lacks.
    NotAllowed(Vec<&'static str>),
    /// The kernel hasn't this tracepoint, or it's another than we know.
    NoTracepoint(&'static str, String),
    /// The kernel refuses the programs.
    Refused(String),
    /// Their maps can't be shared.
    Maps(io::Error),
    /// There is no such disk.
    NoDisk(String),
    /// It's an NVMe disk with several paths.
    ManyPaths(String),
}

impl StartError {
    /// The reason for which there is no disk to watch of this name.
    pub fn no_disk(name: &str) -> StartError {
        if crate::disk::has_paths(name) { StartError::ManyPaths(name.into()) } else { StartError::NoDisk(name.into()) }
    }
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StartError::NoBtf(e) => write!(
                f,
                "{BTF}: {e}: host mode needs a kernel with CONFIG_DEBUG_INFO_BTF (Debian's have it since 11); reads go on without deadlines"
            ),
            StartError::NotAllowed(missing) => write!(
                f,
                "loading BPF programs: not permitted: {} missing; start the agent as root, or by its unit plimsoll-host.service",
                if missing.is_empty() {
                    "a security module's or the sysctl's permission is".into()
                } else {
                    format!("{} {}", missing.join(" and "), if missing.len() > 1 { "are" } else { "is" })
                }
            ),
            StartError::NoTracepoint(name, why) => write!(
                f,
                "tracepoint {name}: {why}: host mode needs Linux 5.17 or later with CONFIG_BLK_DEV_IO_TRACE or CONFIG_TRACEPOINTS"
            ),
            StartError::Refused(why) => write!(f, "the kernel refuses the BPF programs: {why}"),
            StartError::Maps(e) => write!(f, "sharing the state of the disks: {e}"),
            StartError::NoDisk(name) => write!(
                f,
                "{name}: no disk with a queue of requests; `ls /sys/block` lists the disks (mappers and RAIDs are watched by their members)"
            ),
            StartError::ManyPaths(name) => write!(
                f,
                "{name}: an NVMe disk with several paths can't be watched: its requests are queued on hidden disks; nvme_core.multipath=N in the kernel's command line makes a disk of each path"
            ),
        }
    }
}
impl std::error::Error for StartError {}

/// Loaded programs; they detach when it's dropped, or the process ends in whatever way.
pub struct Programs {
    ebpf: Ebpf,
}

impl Programs {
    /// Loads an object's programs for their tracepoints.
    pub fn load(object: &[u8], attached: &[(&'static str, &'static str)]) -> Result<Programs, StartError> {
        let btf = match std::fs::read(BTF) {
            Ok(_) => Btf::from_sys_fs().map_err(|e| StartError::Refused(e.to_string()))?,
            Err(e) => return Err(StartError::NoBtf(e)),
        };
        let mut ebpf = Ebpf::load(object).map_err(refused)?;
        for &(program, tracepoint) in attached {
            let found = ebpf
                .program_mut(program)
                .ok_or_else(|| StartError::Refused(format!("{program} isn't in the object")))?;
            let found: &mut BtfTracePoint =
                found.try_into().map_err(|e: ProgramError| StartError::Refused(e.to_string()))?;
            found.load(tracepoint, &btf).map_err(|e| match e {
                ProgramError::Btf(e) => StartError::NoTracepoint(tracepoint, e.to_string()),
                e => not_loaded(program, e),
            })?;
        }
        Ok(Programs { ebpf })
    }

    /// The programs run from now on.
    pub fn attach(&mut self, attached: &[(&'static str, &'static str)]) -> io::Result<()> {
        for &(program, tracepoint) in attached {
            let found = self.ebpf.program_mut(program).expect("it was loaded");
            let found: &mut BtfTracePoint = found.try_into().expect("it was loaded as one");
            found.attach().map_err(|e| io::Error::other(format!("tracepoint {tracepoint}: {e}")))?;
        }
        Ok(())
    }

    /// A ring of events.
    pub fn take_ring(&mut self, name: &str) -> io::Result<RingBuf<MapData>> {
        let map = self.ebpf.take_map(name).ok_or_else(|| io::Error::other(format!("the object has no ring {name}")))?;
        RingBuf::try_from(map).map_err(io::Error::other)
    }

    /// A map.
    pub fn map(&self, name: &str) -> io::Result<BorrowedFd<'_>> {
        match self.ebpf.map(name) {
            Some(aya::maps::Map::Array(data)) => Ok(data.fd().as_fd()),
            _ => Err(io::Error::other(format!("the object has no array {name}"))),
        }
    }
}

fn refused(e: EbpfError) -> StartError {
    match is_permission(&e) {
        true => StartError::NotAllowed(missing_capabilities()),
        false => StartError::Refused(chain(&e)),
    }
}

fn not_loaded(program: &str, e: ProgramError) -> StartError {
    match is_permission(&e) {
        true => StartError::NotAllowed(missing_capabilities()),
        false => StartError::Refused(format!("{program}: {}", chain(&e))),
    }
}

/// True if a cause of this error is a missing permission.
fn is_permission(e: &(dyn std::error::Error + 'static)) -> bool {
    let mut at = Some(e);
    while let Some(e) = at {
        if e.downcast_ref::<io::Error>().is_some_and(|e| e.kind() == io::ErrorKind::PermissionDenied) {
            return !missing_capabilities().is_empty() || e.to_string().contains("os error 1");
        }
        at = e.source();
    }
    false
}

fn chain(e: &(dyn std::error::Error + 'static)) -> String {
    let mut words = e.to_string();
    let mut at = e.source();
    while let Some(e) = at {
        words = format!("{words}: {e}");
        at = e.source();
    }
    words
}

/// The capabilities that the process needs and hasn't. Root's CAP_SYS_ADMIN has both.
fn missing_capabilities() -> Vec<&'static str> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|l| l.strip_prefix("CapEff:"));
    let effective = effective.and_then(|l| u64::from_str_radix(l.trim(), 16).ok()).unwrap_or(0);
    const SYS_ADMIN: u64 = 1 << 21;
    CAPABILITIES.into_iter().filter(|(_, bit)| effective & (SYS_ADMIN | 1 << bit) == 0).map(|(name, _)| name).collect()
}

/// Only programs write to the map from now on.
pub(super) fn freeze(map: BorrowedFd) -> io::Result<()> {
    const BPF_MAP_FREEZE: libc::c_int = 22;
    // The kernel takes a prefix of its union; the map's descriptor comes first.
    let attributes: [u32; 4] = [map.as_raw_fd() as u32, 0, 0, 0];
    // SAFETY: the kernel reads the given number of bytes from `attributes`, and writes nothing.
    let result = unsafe { libc::syscall(libc::SYS_bpf, BPF_MAP_FREEZE, attributes.as_ptr(), size_of_val(&attributes)) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
