#![no_main]
#[path = "../../crates/store/tests/fuzzing/mod.rs"]
#[allow(dead_code, reason = "each target uses a part")]
mod fuzzing;

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzzing::superblock(data));
