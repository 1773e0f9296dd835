#![no_main]
use plimsoll_lab::fuzzing::as_format;
use plimsoll_lab::trace::Format;

libfuzzer_sys::fuzz_target!(|data: &[u8]| as_format(Format::Tencent, data));
