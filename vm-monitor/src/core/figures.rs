//! Sizes as people read them.

use std::fmt;

use protocol::units::Bytes;

/// Bytes as MiB with one decimal, for people.
pub(super) struct Mib(pub(super) Bytes);

impl fmt::Display for Mib {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tenths = (u128::from(self.0.0) * 10 + (1 << 19)) >> 20;
        match tenths % 10 {
            0 => write!(f, "{} MiB", tenths / 10),
            tenth => write!(f, "{}.{tenth} MiB", tenths / 10),
        }
    }
}

/// `from 3 MiB to 2 MiB`, or `to 2 MiB` where nothing was before.
pub(super) fn change(f: &mut fmt::Formatter<'_>, was: Option<Bytes>, now: Bytes) -> fmt::Result {
    if let Some(was) = was {
        write!(f, "from {} ", Mib(was))?;
    }
    write!(f, "to {}", Mib(now))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn size_is_written_in_mib_with_one_decimal() {
        for (bytes, text) in [
            (Bytes(0), "0 MiB"),
            (Bytes(823_551_590), "785.4 MiB"),
            (Bytes::mib(170), "170 MiB"),
            (Bytes((1 << 20) - 1), "1 MiB"),
        ] {
            assert_eq!(Mib(bytes).to_string(), text);
        }
    }
}
