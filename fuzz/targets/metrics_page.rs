//! See `protocol::fuzz::metrics_page`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| protocol::fuzz::metrics_page(data));
