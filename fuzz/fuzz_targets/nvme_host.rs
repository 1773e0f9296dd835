#![no_main]
#[path = "../../crates/nvme/tests/fuzzing/host.rs"]
mod host;

libfuzzer_sys::fuzz_target!(|data: &[u8]| host::fuzz_one(data));
