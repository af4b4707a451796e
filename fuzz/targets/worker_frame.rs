//! See `policy_contract::fuzz::worker_frame`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| policy_contract::fuzz::worker_frame(data));
