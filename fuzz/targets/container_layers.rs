//! See `vm_images::container::fuzz::container_layers`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| vm_images::container::fuzz::container_layers(data));
