#![no_main]
#[path = "../../crates/nbd/tests/fuzzing/transmission.rs"]
mod transmission;

libfuzzer_sys::fuzz_target!(|data: &[u8]| transmission::fuzz_one(data));
