//! See `protocol::fuzz::journal_block`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| protocol::fuzz::journal_block(data));
