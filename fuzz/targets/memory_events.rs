//! See `vm_monitor::fuzz::memory_events`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| vm_monitor::fuzz::memory_events(data));
