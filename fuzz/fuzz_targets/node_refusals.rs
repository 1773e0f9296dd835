#![no_main]
#[path = "../../crates/node/tests/fuzzing/refusals.rs"]
#[allow(dead_code, reason = "the tests use all of it")]
mod fuzzing;

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzzing::fuzz_one(data));
