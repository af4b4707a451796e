//! See `apiserver::fuzz::api_requests`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| apiserver::fuzz::api_requests(data));
