//! See `vm_monitor::fuzz::monitor_frame`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| vm_monitor::fuzz::monitor_frame(data));
