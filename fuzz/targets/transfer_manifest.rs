//! See `neonvm_runner::fuzz::transfer_manifest`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| neonvm_runner::fuzz::transfer_manifest(data));
