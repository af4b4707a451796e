//! See `neonvm_guestd::fuzz::render_unit`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| neonvm_guestd::fuzz::render_unit(data));
