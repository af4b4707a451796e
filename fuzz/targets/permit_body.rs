//! See `protocol::fuzz::permit_body`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| protocol::fuzz::permit_body(data));
