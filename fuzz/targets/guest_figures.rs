//! See `protocol::fuzz::guest_figures`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| protocol::fuzz::guest_figures(data));
