//! Making a file system.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::commit::Journal;
use crate::disk::{BLOCK, Disk, Write};
use crate::error::{Error, Result, device};
use crate::format::{INODES_PER_BLOCK, Inode, Mode, Super, VERSION};
use crate::fs::{Fs, Options, ROOT, S_IFDIR, Stamp, Summary};
use crate::geometry::Geometry;

/// Parameters of a new file system.
#[derive(Clone, Copy, Debug)]
pub struct Format {
    /// Identity, drawn by the caller.
    pub fs_id: u64,
    /// Seed of the hashes of directories' names, drawn by the caller. A listing tells it to users: it is to say nothing of the identity.
    pub hash_seed: u64,
    /// Journaling mode.
    pub mode: Mode,
    /// Blocks of a block group (GroupSize): 64 to 32,512.
    pub group_blocks: u64,
    /// Blocks of each group's log (LogSize), in manylogs mode.
    pub log_blocks: u64,
    /// Blocks of the single journal, in the other modes.
    pub journal_blocks: u64,
    /// Inodes of a group, a multiple of 8.
    pub inodes_per_group: u64,
    /// Longest run of blocks that goes to a log (LoggedWriteSize).
    pub logged_write_blocks: u64,
}

impl Format {
    /// Manylogs §III-B: logs of 10 MB in groups of 100 MB, writes up to 32 KiB in logs; the same share of space for a journal, at
    /// most 128 MiB (as ext4's). The seed is the identity: whoever has users draws another one.
    pub fn new(fs_id: u64, mode: Mode, blocks: u64) -> Format {
        let group_blocks = (100 << 20) / BLOCK as u64;
        let group_blocks = group_blocks.min(blocks / 4).max(128);
        Format {
            fs_id,
            hash_seed: fs_id,
            mode,
            group_blocks,
            log_blocks: group_blocks / 10,
            journal_blocks: ((128 << 20) / BLOCK as u64).min(blocks / 10).max(16),
            inodes_per_group: (group_blocks / 8 / INODES_PER_BLOCK).max(1) * INODES_PER_BLOCK,
            logged_write_blocks: 8,
        }
    }
}

/// Makes an empty file system. ALL DATA on the device is lost.
///
/// # Errors
/// If the device is too small for the format, or fails.
pub fn mkfs(disk: Arc<dyn Disk>, format: Format, now: Stamp) -> Result<()> {
    let scattered = format.mode == Mode::Manylogs;
    let sb = Super {
        version: VERSION,
        fs_id: format.fs_id,
        hash_seed: format.hash_seed,
        generation: 0,
        mode: format.mode,
        blocks: disk.blocks(),
        group_blocks: format.group_blocks,
        inodes_per_group: format.inodes_per_group,
        log_blocks: if scattered { format.log_blocks } else { 0 },
        journal_blocks: if scattered { 0 } else { format.journal_blocks },
        logged_write_blocks: format.logged_write_blocks,
        epoch: 1,
        checkpoint_seq: 0,
        durable_seq: 0,
        epochs: Vec::new(),
    };
    let geo = Geometry::new(&sb).map_err(|e| match e {
        Error::Corrupt(what) => {
            Error::Device(format!("a device of {} blocks can't have this format: {what}", sb.blocks))
        }
        e => e,
    })?;
    let write = |block, data: &[u8]| disk.write(&[Write::new(block, data)]).map_err(|e| device("writing", block, e));
    // No old file system is found while this one is made.
    write(0, &[0; BLOCK])?;
    write(geo.second_super(), &[0; BLOCK])?;
    for (start, _) in geo.logs() {
        write(start, &[0; BLOCK])?;
    }
    let summary = |g| {
        let data = if geo.is_usable(g) { geo.data(g) } else { return Summary::default() };
        Summary {
            free_blocks: (data.end - data.start) as u32,
            free_inodes: geo.inodes_per_group as u32,
            dirs: 0,
            flags: 0,
        }
    };
    let groups: Vec<Summary> = (0..geo.groups).map(summary).collect();
    let mut fs = Fs {
        free_blocks: groups.iter().map(|g| u64::from(g.free_blocks)).sum(),
        disk: disk.clone(),
        mode: format.mode,
        options: Options::default(),
        now,
        cache: BTreeMap::new(),
        dirty_blocks: Default::default(),
        nodes: BTreeMap::new(),
        groups_dirty: (0..geo.groups).collect(),
        groups,
        geo,
        sb,
        pinned: BTreeMap::new(),
        pinned_blocks: 0,
        reserved: 0,
        dirty_pages: 0,
        spare: Vec::new(),
        tree_need: 0,
        changed_max: 0,
        must_write: Default::default(),
        journal: Journal::new(Vec::new(), BTreeMap::new(), 0),
        head: 0,
        failed: None,
        names: BTreeMap::new(),
        known: BTreeMap::new(),
        orphans: Default::default(),
        unreadable: Default::default(),
    };
    for i in 0..fs.geo.summary_blocks() {
        fs.new_block(1 + i, crate::format::Kind::Groups);
    }
    // The root and the directory of files without a name: inodes 1 and 2.
    for permissions in [0o755, 0o700] {
        let inode = Inode { mode: S_IFDIR | permissions, nlink: 2, times: [now; 4], parent: ROOT, ..Inode::default() };
        let ino = fs.allocate_inode(ROOT, inode)?;
        fs.store_node(ino)?;
    }
    fs.store_groups()?;
    for block in std::mem::take(&mut fs.dirty_blocks) {
        let data = fs.sealed(block);
        write(block, &data)?;
    }
    disk.flush().map_err(|e| device("flushing", 0, e))?;
    fs.write_super()
}
