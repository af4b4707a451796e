//! See `policy_contract::fuzz::policy_pack`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| policy_contract::fuzz::policy_pack(data));
