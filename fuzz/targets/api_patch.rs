//! See `neonvm_apiserver::fuzz::api_patch`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| neonvm_apiserver::fuzz::api_patch(data));
