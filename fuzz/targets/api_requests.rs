//! See `neonvm_apiserver::fuzz::api_requests`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| neonvm_apiserver::fuzz::api_requests(data));
