//! See `vm_monitor::fuzz::handshake`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| vm_monitor::fuzz::handshake(data));
