//! See `vm_monitor::fuzz::command_line`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| vm_monitor::fuzz::command_line(data));
