//! See `vm_monitor::fuzz::pressure_file`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| vm_monitor::fuzz::pressure_file(data));
