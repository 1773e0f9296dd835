#![no_main]
#[path = "../../crates/nvme/tests/fuzzing/queue.rs"]
mod queue;

libfuzzer_sys::fuzz_target!(|data: &[u8]| queue::fuzz_one(data));
