//! See `neonvm_files::fuzz::guest_files`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| neonvm_files::fuzz::guest_files(data));
