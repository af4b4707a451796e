//! See `vm_monitor::fuzz::zone_file`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| vm_monitor::fuzz::zone_file(data));
