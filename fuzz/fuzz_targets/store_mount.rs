#![no_main]
#[path = "../../crates/store/tests/fuzzing/mod.rs"]
#[allow(dead_code, reason = "each target uses a part")]
mod fuzzing;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    // redb panics on some corrupt bytes, which the store catches; what it doesn't catch still ends the fuzzer.
    std::panic::set_hook(Box::new(|_| {}));
    fuzzing::mount(data);
});
