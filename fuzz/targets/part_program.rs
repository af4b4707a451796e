//! See `neonvm_parts::fuzz::part_program`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| neonvm_parts::fuzz::part_program(data));
