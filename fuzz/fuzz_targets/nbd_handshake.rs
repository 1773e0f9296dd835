#![no_main]
#[path = "../../crates/nbd/tests/fuzzing/handshake.rs"]
mod handshake;

libfuzzer_sys::fuzz_target!(|data: &[u8]| handshake::fuzz_one(data));
