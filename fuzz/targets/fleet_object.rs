//! See `protocol::fuzz::fleet_object`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| protocol::fuzz::fleet_object(data));
