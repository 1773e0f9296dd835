#![no_main]
#[path = "../../crates/nvme/tests/fuzzing/controller.rs"]
mod controller;

libfuzzer_sys::fuzz_target!(|data: &[u8]| controller::fuzz_one(data));
