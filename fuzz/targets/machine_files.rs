//! See `vm_monitor::fuzz::machine_files`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| vm_monitor::fuzz::machine_files(data));
