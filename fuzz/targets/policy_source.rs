//! See `policy_engine::fuzz::policy_source`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| policy_engine::fuzz::policy_source(data));
