//! See `vm_images::container::fuzz::container_archive`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| vm_images::container::fuzz::container_archive(data));
