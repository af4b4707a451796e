//! Checks programs that go into a guest. They must run there with any libraries, so they are
//! static.

use std::fs;
use std::io;
use std::path::Path;

use crate::error::BuildError;

/// Largest accepted program: ten times the budget of the largest.
const BINARY_BYTES: u64 = 64 << 20;

/// Program header type of the path of a dynamic loader.
const PT_INTERP: u32 = 3;
/// x86-64 in an ELF header.
const EM_X86_64: u16 = 62;

/// Reads a statically linked x86-64 program. Refuses any other file.
pub(crate) fn read_static(path: &Path) -> Result<Vec<u8>, BuildError> {
    let wrong = |rule| BuildError::Binary {
        path: path.to_owned(),
        rule,
    };
    let length = match fs::metadata(path) {
        Ok(meta) => meta.len(),
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            return Err(wrong("is missing: build the guest programs first"));
        }
        Err(source) => {
            return Err(BuildError::Io {
                action: "read",
                path: path.to_owned(),
                source,
            });
        }
    };
    if length > BINARY_BYTES {
        return Err(wrong(
            "is larger than 64 MiB: build it with the guest profile",
        ));
    }
    let bytes = fs::read(path).map_err(|source| BuildError::Io {
        action: "read",
        path: path.to_owned(),
        source,
    })?;
    check(&bytes).map_err(wrong)?;
    Ok(bytes)
}

fn check(bytes: &[u8]) -> Result<(), &'static str> {
    const NO_ELF: &str = "is not a 64-bit x86 program: build it for x86_64-unknown-linux-gnu";
    const CUT: &str = "is cut short: build it again";
    let header = bytes.get(..64).ok_or(NO_ELF)?;
    // 64-bit, little-endian, current version.
    if !header.starts_with(b"\x7fELF\x02\x01\x01") || le16(header, 18) != EM_X86_64 {
        return Err(NO_ELF);
    }
    let table = le64(header, 32);
    let (size, count) = (usize::from(le16(header, 54)), usize::from(le16(header, 56)));
    if size < 56 {
        return Err(NO_ELF);
    }
    let table = usize::try_from(table).map_err(|_| CUT)?;
    for number in 0..count {
        let at = table.checked_add(number * size).ok_or(CUT)?;
        let kind = bytes.get(at..at.saturating_add(4)).ok_or(CUT)?;
        if u32::from_le_bytes([kind[0], kind[1], kind[2], kind[3]]) == PT_INTERP {
            return Err("needs a dynamic loader: build it with -C target-feature=+crt-static");
        }
    }
    Ok(())
}

fn le16(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn le64(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0u8; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn elf(kinds: &[u32]) -> Vec<u8> {
        let mut bytes = vec![0u8; 64 + 56 * kinds.len()];
        bytes[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
        bytes[18] = 62;
        bytes[32] = 64;
        bytes[54] = 56;
        bytes[56] = u8::try_from(kinds.len()).unwrap();
        for (number, kind) in kinds.iter().enumerate() {
            bytes[64 + 56 * number..][..4].copy_from_slice(&kind.to_le_bytes());
        }
        bytes
    }

    /// Requirement: N46
    #[test]
    fn only_static_x86_64_programs_go_in() {
        assert_eq!(check(&elf(&[1, 1, 2])), Ok(()));
        assert!(
            check(&elf(&[1, PT_INTERP]))
                .unwrap_err()
                .contains("crt-static")
        );
        assert!(
            check(b"#!/bin/sh\n")
                .unwrap_err()
                .contains("not a 64-bit x86")
        );
        let mut arm = elf(&[1]);
        arm[18] = 183;
        assert!(check(&arm).is_err());
        let whole = elf(&[1, 1]);
        assert!(
            check(&whole[..whole.len() - 56])
                .unwrap_err()
                .contains("cut short")
        );
    }

    proptest::proptest! {
        /// Requirement: N46
        #[test]
        fn no_bytes_make_the_check_panic(
            mut bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..200),
            is_elf in proptest::bool::ANY,
        ) {
            if is_elf && bytes.len() > 20 {
                bytes[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
                bytes[18..20].copy_from_slice(&62u16.to_le_bytes());
            }
            let _ = check(&bytes);
        }
    }

    /// Requirement: N46
    #[test]
    fn a_missing_program_is_named() {
        let error = read_static(Path::new("/nonexistent/neonvmd"))
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("/nonexistent/neonvmd") && error.contains("missing"),
            "{error}"
        );
    }
}
