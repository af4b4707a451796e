//! See `peers_mesh::fuzz::peers_datagram`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| peers_mesh::fuzz::peers_datagram(data));
