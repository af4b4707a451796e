//! See `neonvm_runner::fuzz::dhcp_packet`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| neonvm_runner::fuzz::dhcp_packet(data));
