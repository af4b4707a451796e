//! See `protocol::fuzz::journal_line`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| protocol::fuzz::journal_line(data));
