//! See `apiserver::fuzz::api_body`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| apiserver::fuzz::api_body(data));
