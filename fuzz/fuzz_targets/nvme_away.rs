#![no_main]
#[path = "../../crates/nvme/tests/fuzzing/away.rs"]
mod away;

libfuzzer_sys::fuzz_target!(|data: &[u8]| away::fuzz_one(data));
