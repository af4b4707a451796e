//! See `fleet_signatures::fuzz::image_bundle`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fleet_signatures::fuzz::image_bundle(data));
