#![no_main]
#[allow(dead_code)] // it takes its own part of what tests have in common
#[path = "../../crates/logs/tests/common/mod.rs"]
mod common;
#[path = "../../crates/logs/tests/fuzzing/mount.rs"]
mod mount;

libfuzzer_sys::fuzz_target!(|data: &[u8]| mount::fuzz_one(data));
