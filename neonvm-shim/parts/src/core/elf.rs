//! Whether a file is a program that can run in this guest: a static ELF of its kind of machine.

/// Most bytes of a file that [`check`] needs.
pub const HEAD_BYTES: usize = 64 << 10;

const IDENT: [u8; 7] = [0x7f, b'E', b'L', b'F', 2, 1, 1];
const PROGRAM_HEADER_BYTES: usize = 56;
const ET_EXEC: u16 = 2;
const ET_DYN: u16 = 3;
const PT_INTERP: u32 = 3;

/// ELF number of the machine that this was compiled for.
pub const MACHINE: u16 = if cfg!(target_arch = "aarch64") {
    183
} else {
    62
};

/// Checks the beginning of a file, of at most [`HEAD_BYTES`].
///
/// # Errors
/// The reason, for the sender.
pub fn check(head: &[u8], machine: u16) -> Result<(), &'static str> {
    if head.is_empty() {
        return Err("the program is empty");
    }
    if head.starts_with(b"#!") {
        return Err("the program is a script: send a static ELF program");
    }
    if !head.starts_with(&IDENT) {
        return Err("the program is not a 64-bit little-endian ELF file");
    }
    let truncated = "the program's ELF headers are truncated";
    if half(head, 18).ok_or(truncated)? != machine {
        return Err("the program is for another kind of machine");
    }
    if !matches!(half(head, 16), Some(ET_EXEC | ET_DYN)) {
        return Err("the ELF file is not a program");
    }
    let start = word64(head, 32).and_then(|at| usize::try_from(at).ok());
    let start = start.ok_or(truncated)?;
    let size = half(head, 54).map(usize::from).ok_or(truncated)?;
    let count = half(head, 56).map(usize::from).ok_or(truncated)?;
    if size != PROGRAM_HEADER_BYTES || count == 0 {
        return Err("the program's ELF headers are malformed");
    }
    for number in 0..count {
        let at = start.checked_add(number * size).ok_or(truncated)?;
        let header = head.get(at..).and_then(|rest| rest.get(..size));
        if word32(header.ok_or(truncated)?, 0) == Some(PT_INTERP) {
            return Err("the program is linked dynamically: send a static one");
        }
    }
    Ok(())
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn word32(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn word64(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Headers of a program with one segment of this type.
    fn program(machine: u16, kind: u16, segment: u32) -> Vec<u8> {
        let mut head = vec![0; 64 + PROGRAM_HEADER_BYTES];
        head[..IDENT.len()].copy_from_slice(&IDENT);
        head[16..18].copy_from_slice(&kind.to_le_bytes());
        head[18..20].copy_from_slice(&machine.to_le_bytes());
        head[32] = 64;
        head[54] = 56;
        head[56] = 1;
        head[64..68].copy_from_slice(&segment.to_le_bytes());
        head
    }

    #[test]
    fn static_program_of_this_machine_is_accepted() {
        assert_eq!(check(&program(62, ET_EXEC, 1), 62), Ok(()));
        assert_eq!(
            check(&program(183, ET_DYN, 2), 183),
            Ok(()),
            "position independent"
        );
    }

    #[test]
    fn program_that_cannot_run_here_is_refused() {
        let good = program(62, ET_EXEC, 1);
        for (head, reason) in [
            (Vec::new(), "empty"),
            (b"#!/bin/sh\n".to_vec(), "script"),
            (vec![0; 200], "not a 64-bit"),
            (program(40, ET_EXEC, 1), "another kind of machine"),
            (program(62, 1, 1), "not a program"),
            (program(62, ET_DYN, PT_INTERP), "dynamically"),
            (good[..70].to_vec(), "truncated"),
            (good[..19].to_vec(), "truncated"),
        ] {
            let error = check(&head, 62).expect_err(reason);
            assert!(error.contains(reason), "{error}");
        }
    }
}
