//! See `protocol::fuzz::policy_object`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| protocol::fuzz::policy_object(data));
