#![no_main]
use plimsoll_trace::fuzz::{detected, outlive_decoder_panics};

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    outlive_decoder_panics();
    detected(data);
});
