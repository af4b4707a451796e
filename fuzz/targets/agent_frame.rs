//! See `vm_monitor::fuzz::agent_frame`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| vm_monitor::fuzz::agent_frame(data));
