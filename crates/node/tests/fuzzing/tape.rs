//! A tape of any bytes is read to its end or refused with a line: also called by `fuzz/`.

use plimsoll_node::engine::tape::TapeReader;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::path::Path;

/// Reads `data` as a tape; if its first byte is odd, as what is in its frames, whose checksums are right.
///
/// # Panics
/// If an error isn't one line, or more is read than is there.
pub fn fuzz_one(data: &[u8]) {
    let Some((&how, rest)) = data.split_first() else { return };
    let mut tape = Vec::new();
    if how & 1 == 0 {
        tape.extend(rest);
    } else {
        tape.extend(b"PLIMTAPE");
        tape.extend(u32::from(5 - (how >> 1 & 1)).to_le_bytes());
        // The first piece is the header, unless the given bytes are all entries.
        let header = [&[5], &b"0.1.0"[..], &[0], &[1], b"p", &[2], b"{}", &[0]].concat();
        let header = (how & 4 == 0).then_some(&header[..]);
        let pieces = header.into_iter().chain(rest.split(|b| *b == 0xfe));
        (0..).zip(pieces).for_each(|(number, piece)| frame(&mut tape, number, piece));
    }
    let memory = rustix::fs::memfd_create("tape", rustix::fs::MemfdFlags::CLOEXEC).expect("memory");
    let mut file = std::fs::File::from(memory);
    file.write_all(&tape).expect("written");
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let mut reader = match TapeReader::open(Path::new(&path)) {
        Ok(reader) => reader,
        Err(e) => return assert!(!e.to_string().contains('\n'), "{e}"),
    };
    let _ = plimsoll_node::plan::recorded(&reader.header);
    reader.header.offers();
    loop {
        match reader.next_frame() {
            Ok(Some(_)) => assert!(reader.position() <= tape.len() as u64),
            Ok(None) => break,
            Err(e) => return assert!(!e.to_string().contains('\n'), "{e}"),
        }
    }
}

fn frame(tape: &mut Vec<u8>, number: u64, bytes: &[u8]) {
    tape.extend((bytes.len() as u32).to_le_bytes());
    let mut sum = crc32fast::Hasher::new();
    sum.update(&number.to_le_bytes());
    sum.update(bytes);
    tape.extend(sum.finalize().to_le_bytes());
    tape.extend(bytes);
}
