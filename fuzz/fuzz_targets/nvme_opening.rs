#![no_main]
#[path = "../../crates/nvme/tests/fuzzing/opening.rs"]
mod opening;

libfuzzer_sys::fuzz_target!(|data: &[u8]| opening::fuzz_one(data));
