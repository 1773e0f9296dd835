//! Numbers and encodings of MySQL's protocol.

/// Capabilities.
pub mod caps {
    /// Set by MySQL; without it MariaDB's own capabilities are in use.
    pub const MYSQL: u32 = 0x1;
    pub const CONNECT_WITH_DB: u32 = 0x8;
    pub const COMPRESS: u32 = 0x20;
    pub const SSL: u32 = 0x800;
    pub const SECURE_CONNECTION: u32 = 0x8000;
    pub const PLUGIN_AUTH_LENENC: u32 = 0x20_0000;
    pub const DEPRECATE_EOF: u32 = 0x100_0000;
    pub const ZSTD: u32 = 0x400_0000;
    pub const QUERY_ATTRIBUTES: u32 = 0x800_0000;
}

/// MariaDB's own.
pub mod extended {
    pub const CACHE_METADATA: u32 = 0x10;
}

/// Status flags.
pub mod status {
    pub const IN_TRANS: u16 = 0x1;
    pub const MORE_RESULTS: u16 = 0x8;
    pub const CURSOR: u16 = 0x40;
}

/// Commands.
pub mod com {
    pub const QUIT: u8 = 0x01;
    pub const QUERY: u8 = 0x03;
    pub const FIELD_LIST: u8 = 0x04;
    pub const STATISTICS: u8 = 0x09;
    pub const CHANGE_USER: u8 = 0x11;
    pub const PREPARE: u8 = 0x16;
    pub const EXECUTE: u8 = 0x17;
    pub const LONG_DATA: u8 = 0x18;
    pub const CLOSE: u8 = 0x19;
    pub const FETCH: u8 = 0x1c;
    pub const RESET_CONNECTION: u8 = 0x1f;
    pub const BULK_EXECUTE: u8 = 0xfa;
}

/// The victim of a deadlock: its transaction is rolled back.
pub const ERR_DEADLOCK: u16 = 1213;
/// MariaDB's progress report, which is no error.
pub const ERR_PROGRESS: u16 = 0xffff;

/// Text up to a NUL, and what follows it.
pub fn until_nul(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = text.iter().position(|&b| b == 0)?;
    Some((&text[..end], &text[end + 1..]))
}

/// A length-encoded integer and what follows.
pub fn lenenc(b: &[u8]) -> Option<(u64, &[u8])> {
    let (&first, rest) = b.split_first()?;
    let n = match first {
        0..=0xfa => return Some((u64::from(first), rest)),
        0xfc => 2,
        0xfd => 3,
        0xfe => 8,
        _ => return None,
    };
    let value = rest.get(..n)?.iter().rev().fold(0, |v, b| v << 8 | u64::from(*b));
    Some((value, &rest[n..]))
}

/// The status flags of an OK packet (also of one that begins with 0xfe).
pub fn ok_status(head: &[u8]) -> Option<u16> {
    let (_, rest) = lenenc(head.get(1..)?)?;
    let (_, rest) = lenenc(rest)?;
    Some(u16::from_le_bytes(*rest.first_chunk()?))
}

/// The status flags of an EOF packet.
pub fn eof_status(head: &[u8]) -> Option<u16> {
    Some(u16::from_le_bytes([*head.get(3)?, *head.get(4)?]))
}
