//! See `protocol::fuzz::release_texts`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| protocol::fuzz::release_texts(data));
