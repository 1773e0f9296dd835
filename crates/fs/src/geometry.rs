//! The layout of the device, computed from the superblock.
//!
//! ```text
//! block 0   1 .. g      g+1 ..        groups                                              last block
//! super   | summaries | journal?  | bitmap bitmap inodes … data … log? | … | … log?  | super
//! ```

use crate::error::{Error, Result};
use crate::format::{BITS, GROUPS_PER_BLOCK, INODES_PER_BLOCK, Super};

/// The layout.
#[derive(Clone, Debug)]
pub(crate) struct Geometry {
    pub blocks: u64,
    /// The first group's start.
    base: u64,
    pub groups: u64,
    group_blocks: u64,
    pub inodes_per_group: u64,
    log_blocks: u64,
    pub journal_blocks: u64,
}

/// Largest device: 2^40 blocks, 4 PiB.
const BLOCKS_MAX: u64 = 1 << 40;
/// Most groups: a summary of each is in memory.
const GROUPS_MAX: u64 = 1 << 20;

impl Geometry {
    /// Checks the numbers of a superblock.
    pub fn new(sb: &Super) -> Result<Geometry> {
        let bad = |what: &str| Err(Error::Corrupt(format!("superblock: {what}")));
        if sb.blocks < 64 || sb.blocks > BLOCKS_MAX {
            return bad("number of blocks");
        }
        if sb.group_blocks < 64 || sb.group_blocks > BITS {
            return bad("blocks of a group");
        }
        if sb.inodes_per_group < 8
            || sb.inodes_per_group > BITS
            || !sb.inodes_per_group.is_multiple_of(INODES_PER_BLOCK)
        {
            return bad("inodes of a group");
        }
        let summary_blocks = sb.blocks.div_ceil(sb.group_blocks).div_ceil(GROUPS_PER_BLOCK);
        if sb.journal_blocks >= sb.blocks / 2 || sb.log_blocks >= sb.group_blocks / 2 {
            return bad("size of the journal");
        }
        if (sb.journal_blocks == 0) == (sb.log_blocks == 0) {
            return bad("needs a journal or logs");
        }
        let base = 1 + summary_blocks + sb.journal_blocks;
        if base + 64 > sb.blocks {
            return bad("no room for a group");
        }
        let groups = (sb.blocks - 1 - base).div_ceil(sb.group_blocks);
        if groups > GROUPS_MAX {
            return bad("too many groups");
        }
        let g = Geometry {
            blocks: sb.blocks,
            base,
            groups,
            group_blocks: sb.group_blocks,
            inodes_per_group: sb.inodes_per_group,
            log_blocks: sb.log_blocks,
            journal_blocks: sb.journal_blocks,
        };
        if !g.is_usable(0) {
            return bad("the first group has no room for data");
        }
        Ok(g)
    }

    pub fn second_super(&self) -> u64 {
        self.blocks - 1
    }

    /// Blocks that hold the groups' summaries, from block 1 on.
    pub fn summary_blocks(&self) -> u64 {
        self.groups.div_ceil(GROUPS_PER_BLOCK)
    }

    /// The first block of a group: its bitmap of blocks.
    pub fn first(&self, group: u64) -> u64 {
        self.base + group * self.group_blocks
    }

    /// The end of a group, without the second superblock.
    pub fn end(&self, group: u64) -> u64 {
        self.first(group + 1).min(self.blocks - 1)
    }

    fn table_blocks(&self) -> u64 {
        self.inodes_per_group / INODES_PER_BLOCK
    }

    /// True if the group has data blocks and inodes.
    pub fn is_usable(&self, group: u64) -> bool {
        self.first(group) + 2 + self.table_blocks() + self.log_blocks + 8 <= self.end(group)
    }

    pub fn block_bitmap(&self, group: u64) -> u64 {
        self.first(group)
    }

    pub fn inode_bitmap(&self, group: u64) -> u64 {
        self.first(group) + 1
    }

    /// Data blocks of a group.
    pub fn data(&self, group: u64) -> std::ops::Range<u64> {
        self.first(group) + 2 + self.table_blocks()..self.end(group) - self.log_blocks
    }

    /// True if all `len` blocks from `start` on are data blocks of one group.
    pub fn is_data(&self, start: u64, len: u64) -> bool {
        let Some(end) = start.checked_add(len) else { return false };
        if start < self.base || end > self.blocks || len == 0 {
            return false;
        }
        // A run doesn't pass the end of a group: metadata of the next one is between.
        let group = (start - self.base) / self.group_blocks;
        group < self.groups && self.is_usable(group) && self.data(group).start <= start && end <= self.data(group).end
    }

    /// True if a record may have the block: it is no superblock and of no log.
    pub fn may_be_logged(&self, block: u64) -> bool {
        if block < self.base || block >= self.blocks {
            return (1..=self.summary_blocks()).contains(&block);
        }
        let group = (block - self.base) / self.group_blocks;
        group < self.groups && self.is_usable(group) && block < self.data(group).end
    }

    pub fn group_of(&self, block: u64) -> u64 {
        (block.saturating_sub(self.base) / self.group_blocks).min(self.groups - 1)
    }

    /// The logs, by address: first block and number of blocks.
    pub fn logs(&self) -> Vec<(u64, u64)> {
        if self.journal_blocks > 0 {
            return vec![(self.base - self.journal_blocks, self.journal_blocks)];
        }
        let log = |g| (self.end(g) - self.log_blocks, self.log_blocks);
        (0..self.groups).filter(|&g| self.is_usable(g)).map(log).collect()
    }

    /// The group and the index in it of an inode; none if there is no such inode.
    pub fn inode_place(&self, ino: u64) -> Option<(u64, u64)> {
        let index = ino.checked_sub(1)?;
        let group = index / self.inodes_per_group;
        (group < self.groups && self.is_usable(group)).then_some((group, index % self.inodes_per_group))
    }

    /// The block of an inode and its index in the block.
    pub fn inode_block(&self, group: u64, index: u64) -> (u64, usize) {
        (self.first(group) + 2 + index / INODES_PER_BLOCK, (index % INODES_PER_BLOCK) as usize)
    }

    pub fn ino(&self, group: u64, index: u64) -> u64 {
        group * self.inodes_per_group + index + 1
    }
}
