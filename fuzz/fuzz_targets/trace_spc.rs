#![no_main]
use plimsoll_trace::fuzz::as_format;
use plimsoll_trace::Format;

libfuzzer_sys::fuzz_target!(|data: &[u8]| as_format(Format::Spc, data));
