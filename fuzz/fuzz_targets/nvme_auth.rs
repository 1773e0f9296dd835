#![no_main]
#[path = "../../crates/nvme/tests/fuzzing/auth.rs"]
mod auth;

libfuzzer_sys::fuzz_target!(|data: &[u8]| auth::fuzz_one(data));
