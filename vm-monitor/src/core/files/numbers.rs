//! Numbers in files of one name and number a line, such as `memory.stat` and `/proc/meminfo`.

use protocol::units::Bytes;

/// The numbers after some keys at the start of a line: `key 12`, `key: 12 kB`. The first number of
/// a key counts. Lines after the last number that is wanted are not looked at, for these files have
/// some fifty of them and are read for each answer.
pub(super) fn numbers_of<const N: usize>(text: &[u8], keys: [&str; N]) -> [Option<u64>; N] {
    let mut found = [None; N];
    for line in text.split(|byte| *byte == b'\n') {
        for (slot, key) in found.iter_mut().zip(keys) {
            if slot.is_none() {
                *slot = number_after(line, key);
            }
        }
        if found.iter().all(Option::is_some) {
            break;
        }
    }
    found
}

fn number_after(line: &[u8], key: &str) -> Option<u64> {
    let rest = line.strip_prefix(key.as_bytes())?;
    let rest = rest.strip_prefix(b":").unwrap_or(rest);
    // Without a blank after it, the key is only the beginning of another one.
    let digits = rest.strip_prefix(b" ")?.trim_ascii_start();
    let end = digits.iter().position(|byte| !byte.is_ascii_digit());
    let digits = &digits[..end.unwrap_or(digits.len())];
    std::str::from_utf8(digits).ok()?.parse().ok()
}

pub(super) const fn bytes_of_kib(kib: u64) -> Bytes {
    Bytes(kib.saturating_mul(1024))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_number_of_a_key_counts_wherever_its_line_is() {
        let text = b"b: none\na 1\nab 9\nb: 2 kB\na 3\nb 4\n";
        assert_eq!(numbers_of(text, ["a", "b"]), [Some(1), Some(2)]);
        assert_eq!(numbers_of(text, ["b", "a"]), [Some(2), Some(1)]);
        assert_eq!(numbers_of(text, ["c", "ab"]), [None, Some(9)]);
        assert_eq!(numbers_of(b"", ["a"]), [None]);
    }
}
