//! See `vm_monitor::fuzz::memory_stat`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| vm_monitor::fuzz::memory_stat(data));
