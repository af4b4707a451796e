//! See `protocol::fuzz::set_object`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| protocol::fuzz::set_object(data));
