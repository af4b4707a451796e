//! See `vm_monitor::fuzz::control_order`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| vm_monitor::fuzz::control_order(data));
