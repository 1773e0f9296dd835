//! Identify's data structures.

use crate::bytes::{set, set_text};
use crate::controller::{Role, Subsystem};
use crate::wire::{
    ANA_GROUP, CAPSULE_DATA_BYTES_MAX, COMMAND_BYTES, COMPLETION_BYTES, DEALLOCATE_BLOCKS_MAX, DISCOVERY_NQN, MDTS,
    NAMESPACE, QUEUE_ENTRIES_MAX,
};

pub(crate) const BYTES: usize = 4096;
/// The version of the base specification that controllers follow: 1.4.
pub(crate) const VERSION: u32 = 0x0001_0400;
/// Asynchronous event requests at once, from 0.
pub(crate) const EVENT_LIMIT: u8 = 3;
/// Asynchronous events of ANA changes, among those that a host may enable.
pub(crate) const ANA_EVENTS: u32 = 1 << 11;

/// A controller (CNS 1).
pub(crate) fn controller(role: &Role, id: u16) -> [u8; BYTES] {
    let mut b = [0; BYTES];
    let (serial, nqn) = match role {
        Role::Discovery(_) => ("discovery", DISCOVERY_NQN),
        Role::Io(subsystem) => (subsystem.serial.as_str(), subsystem.nqn.as_str()),
    };
    set_text(&mut b, 4..24, serial, b' ');
    set_text(&mut b, 24..64, "Plimsoll", b' ');
    set_text(&mut b, 64..72, env!("CARGO_PKG_VERSION"), b' ');
    b[77] = MDTS;
    set(&mut b, 78, &id.to_le_bytes());
    set(&mut b, 80, &VERSION.to_le_bytes());
    set(&mut b, 96, &1u32.to_le_bytes()); // hosts have identifiers of 128 bits
    b[259] = EVENT_LIMIT;
    b[261] = 0b100; // log pages are read from any offset
    set(&mut b, 320, &10u16.to_le_bytes()); // keep-alive is counted in seconds
    set(&mut b, 514, &QUEUE_ENTRIES_MAX.to_le_bytes());
    set(&mut b, 536, &0x0030_0001u32.to_le_bytes()); // SGLs, offsets in capsules, data over the transport
    set_text(&mut b, 768..1024, nqn, 0);
    match role {
        Role::Discovery(_) => b[111] = 2,
        Role::Io(_) => io_controller(&mut b),
    }
    b
}

fn io_controller(b: &mut [u8; BYTES]) {
    b[76] = 0b1010; // other controllers, perhaps of other nodes; ANA
    set(b, 92, &ANA_EVENTS.to_le_bytes());
    b[111] = 1;
    b[258] = 3; // Abort: commands at once, from 0
    b[261] |= 0b10; // the log page of supported commands
    set(b, 266, &343u16.to_le_bytes()); // temperatures that warn, in kelvin
    set(b, 268, &353u16.to_le_bytes());
    b[342] = 10; // seconds of an ANA change at most
    b[343] = 0b100_0111; // optimized, non-optimized and inaccessible; a namespace stays in its group
    set(b, 344, &ANA_GROUP.to_le_bytes());
    set(b, 348, &1u32.to_le_bytes());
    b[512] = 0x66; // entries of 2^6 bytes
    b[513] = 0x44; // and of 2^4
    set(b, 516, &NAMESPACE.to_le_bytes());
    set(b, 520, &0b1100u16.to_le_bytes()); // Dataset Management, Write Zeroes
    b[525] = 0b111; // a volatile write cache; a Flush may name all namespaces
    set(b, 540, &1u32.to_le_bytes());
    let capsule = (COMMAND_BYTES as u32 + CAPSULE_DATA_BYTES_MAX) / 16;
    set(b, 1792, &capsule.to_le_bytes());
    set(b, 1796, &(COMPLETION_BYTES as u32 / 16).to_le_bytes());
    b[1803] = 1; // one SGL descriptor
}

/// The namespace (CNS 0).
pub(crate) fn namespace(subsystem: &Subsystem) -> [u8; BYTES] {
    let mut b = [0; BYTES];
    for at in [0, 8, 16] {
        set(&mut b, at, &subsystem.namespace.blocks.to_le_bytes());
    }
    b[24] = 1 << 4; // the preferred sizes below
    b[30] = 1; // several controllers may have it
    b[33] = 0b1001; // deallocated blocks are zeroes; Write Zeroes may deallocate
    for at in [64, 66, 68, 70] {
        set(&mut b, at, &7u16.to_le_bytes()); // 8 blocks, from 0
    }
    set(&mut b, 92, &ANA_GROUP.to_le_bytes());
    b[99] = u8::from(subsystem.namespace.read_only);
    set(&mut b, 104, &subsystem.uuid);
    b[130] = 9; // blocks of 2^9 bytes
    b
}

/// Namespaces above a number (CNS 2).
pub(crate) fn active_namespaces(above: u32) -> [u8; BYTES] {
    let mut b = [0; BYTES];
    if above < NAMESPACE {
        set(&mut b, 0, &NAMESPACE.to_le_bytes());
    }
    b
}

/// Names of the namespace (CNS 3).
pub(crate) fn descriptors(subsystem: &Subsystem) -> [u8; BYTES] {
    let mut b = [0; BYTES];
    for (at, kind) in [(0, 2), (20, 3)] {
        b[at] = kind; // NGUID, then UUID
        b[at + 1] = 16;
        set(&mut b, at + 4, &subsystem.uuid);
    }
    b
}

/// Limits of the NVM command set (CNS 6).
pub(crate) fn command_set_limits() -> [u8; BYTES] {
    let mut b = [0; BYTES];
    b[3] = 1; // ranges of a Dataset Management
    set(&mut b, 4, &DEALLOCATE_BLOCKS_MAX.to_le_bytes());
    set(&mut b, 8, &u64::from(DEALLOCATE_BLOCKS_MAX).to_le_bytes());
    b
}
