//! See `protocol::fuzz::runner_control`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| protocol::fuzz::runner_control(data));
