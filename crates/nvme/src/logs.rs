//! Log pages.

use crate::bytes::{set, set_text};
use crate::controller::{Role, Target};
use crate::identify::BYTES;
use crate::wire::{ADMIN_ENTRIES_MIN, ANA_GROUP, AnaState, NAMESPACE, admin_opcode as admin, fabrics, io_opcode as io};
use std::net::IpAddr;

pub(crate) const ERRORS: u8 = 1;
pub(crate) const HEALTH: u8 = 2;
pub(crate) const FIRMWARE: u8 = 3;
pub(crate) const CHANGED_NAMESPACES: u8 = 4;
pub(crate) const COMMANDS: u8 = 5;
pub(crate) const ANA: u8 = 0xc;
pub(crate) const DISCOVERY: u8 = 0x70;

/// Bytes of one subsystem in the discovery log page.
const RECORD_BYTES: usize = 1024;

/// An I/O controller's ANA state as its log page tells it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ana {
    pub state: AnaState,
    pub changes: u64,
}

/// A log page whole, if the controller has it.
pub(crate) fn page(role: &Role, log: u8, ana: Ana, groups_only: bool) -> Option<Vec<u8>> {
    match (log, role) {
        (DISCOVERY, Role::Discovery(targets)) => Some(discovery(targets)),
        (_, Role::Discovery(_)) => None,
        // No error is kept: what failed was answered.
        (ERRORS, _) => Some(vec![0; 64]),
        (HEALTH, _) => Some(health()),
        (FIRMWARE, _) => Some(firmware()),
        // Namespaces don't come and go.
        (CHANGED_NAMESPACES, _) => Some(vec![0; BYTES]),
        (COMMANDS, _) => Some(commands()),
        (ANA, _) => Some(ana_page(ana, groups_only)),
        _ => None,
    }
}

fn health() -> Vec<u8> {
    let mut b = vec![0; 512];
    set(&mut b, 1, &300u16.to_le_bytes()); // kelvin: nothing is measured
    b[3] = 100; // percent of spare space
    b[4] = 10;
    b
}

fn firmware() -> Vec<u8> {
    let mut b = vec![0; 512];
    b[0] = 1;
    set_text(&mut b, 8..16, env!("CARGO_PKG_VERSION"), b' ');
    b
}

/// Commands that are served. Bit 1: it changes blocks.
fn commands() -> Vec<u8> {
    let mut b = vec![0; BYTES];
    use admin::*;
    for opcode in [GET_LOG_PAGE, IDENTIFY, ABORT, SET_FEATURES, GET_FEATURES, ASYNC_EVENT, KEEP_ALIVE, fabrics::OPCODE]
    {
        b[usize::from(opcode) * 4] = 1;
    }
    for (opcode, effects) in
        [(io::FLUSH, 1), (io::READ, 1), (io::WRITE, 3), (io::WRITE_ZEROES, 3), (io::DATASET_MANAGEMENT, 3)]
    {
        b[1024 + usize::from(opcode) * 4] = effects;
    }
    b
}

fn ana_page(ana: Ana, groups_only: bool) -> Vec<u8> {
    let mut b = vec![0; 16 + 32 + if groups_only { 0 } else { 4 }];
    set(&mut b, 0, &ana.changes.to_le_bytes());
    b[8] = 1; // groups
    set(&mut b, 16, &ANA_GROUP.to_le_bytes());
    set(&mut b, 24, &ana.changes.to_le_bytes());
    b[32] = ana.state as u8;
    if !groups_only {
        b[20] = 1; // namespaces of the group
        set(&mut b, 48, &NAMESPACE.to_le_bytes());
    }
    b
}

fn discovery(targets: &[Target]) -> Vec<u8> {
    let mut b = vec![0; RECORD_BYTES * (1 + targets.len())];
    set(&mut b, 8, &(targets.len() as u64).to_le_bytes());
    for (record, target) in b[RECORD_BYTES..].chunks_mut(RECORD_BYTES).zip(targets) {
        write_record(record, target);
    }
    b
}

fn write_record(b: &mut [u8], Target { nqn, address, port_id }: &Target) {
    b[0] = 3; // TCP
    b[1] = if address.is_ipv4() { 1 } else { 2 };
    b[2] = 2; // a subsystem with namespaces
    set(b, 4, &port_id.to_le_bytes());
    set(b, 6, &0xffffu16.to_le_bytes()); // controllers are made at connect
    set(b, 8, &ADMIN_ENTRIES_MIN.to_le_bytes());
    set_text(b, 32..64, &address.port().to_string(), b' ');
    set_text(b, 256..512, nqn, 0);
    let host: IpAddr = address.ip();
    set_text(b, 512..768, &host.to_string(), b' ');
}
