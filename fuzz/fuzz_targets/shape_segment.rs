#![no_main]
#[path = "../../crates/shape/tests/fuzzing/segment.rs"]
mod fuzzing;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    // Panics of the gate are caught, as by the shim; what isn't caught still ends the fuzzer.
    std::panic::set_hook(Box::new(|_| {}));
    fuzzing::fuzz_one(data);
});
