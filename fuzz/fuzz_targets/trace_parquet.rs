#![no_main]
use plimsoll_trace::fuzz::{as_format, outlive_decoder_panics};
use plimsoll_trace::Format;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    outlive_decoder_panics();
    as_format(Format::Parquet, data);
});
