//! Versions and names as texts, and the two texts of a channel as a file server hands them out.

use semver::Version;

use crate::object::is_label;

/// Most bytes of either text that are read.
pub const CHANNEL_TEXT_BYTES: usize = 65;
/// Longest version, bytes.
const VERSION_BYTES: usize = 64;
/// Longest name of a channel, bytes.
const NAME_BYTES: usize = 32;

/// Checks a version of a release: `MAJOR.MINOR.PATCH`, perhaps with a pre-release.
///
/// # Errors
/// The rule that the text breaks.
pub fn check_version(text: &str) -> Result<semver::Version, &'static str> {
    const RULE: &str = "must be a semantic version without a leading v, as 1.2.3 or 1.2.3-rc.1";
    if text.len() > VERSION_BYTES {
        return Err("must be at most 64 bytes");
    }
    let version = semver::Version::parse(text).map_err(|_| RULE)?;
    if version.build.is_empty() {
        Ok(version)
    } else {
        Err("must not have a build part: leave out what follows the +")
    }
}

/// Reads the version that a channel names: one line, which may end with a newline.
///
/// # Errors
/// The rule that the text breaks.
pub fn channel_version(text: &[u8]) -> Result<Version, &'static str> {
    if text.len() > CHANNEL_TEXT_BYTES {
        return Err("must be at most 64 bytes and a newline");
    }
    let line = text.strip_suffix(b"\n").unwrap_or(text);
    let line = str::from_utf8(line).map_err(|_| "must be text in ASCII")?;
    check_version(line)
}

/// Whether a channel's version is urgent: `yes`, which may end with a newline. Every other text
/// says that it is not.
#[must_use]
pub fn channel_critical(text: &[u8]) -> bool {
    matches!(text, b"yes" | b"yes\n")
}

/// Checks the name of a channel, which is a part of file names.
///
/// # Errors
/// The rule that the name breaks.
pub fn check_channel_name(name: &str) -> Result<(), &'static str> {
    if is_label(name, NAME_BYTES) {
        Ok(())
    } else {
        Err("must be 1 to 32 lower-case letters, digits and inner hyphens, as stable")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Requirement: R01
    #[test]
    fn version_of_a_channel_is_one_strict_semver_line() {
        let long = format!("1.2.3-{}", "a".repeat(58));
        let too_long = format!("1.2.3-{}", "a".repeat(59));
        let sound: [&[u8]; 10] = [
            b"0.0.0",
            b"1.2.3",
            b"1.2.3\n",
            b"10.20.30",
            b"1.2.3-rc.1",
            b"1.2.3-0",
            b"1.2.3-a-b",
            b"1.2.3-0a",
            b"18446744073709551615.0.0",
            long.as_bytes(),
        ];
        for text in sound {
            let shown = String::from_utf8_lossy(text);
            assert!(channel_version(text).is_ok(), "{shown:?}");
        }
        let html = format!("<!doctype html>{}", "x".repeat(200));
        let mebibyte = vec![b'1'; 1 << 20];
        let bad: [&[u8]; 31] = [
            b"",
            b"\n",
            b"1",
            b"1.2",
            b"v1.2.3",
            b"V1.2.3",
            b"=1.2.3",
            b"^1.2.3",
            b"~1.2",
            b"1.2.x",
            b"*",
            b">=1.2.3",
            b"1.2.3.4",
            b"01.2.3",
            b"1.2.3-01",
            b"1.2.3-",
            b"1.2.3+x",
            b"1.2.3-a+b",
            b" 1.2.3",
            b"1.2.3 ",
            b"1.2.3\r\n",
            b"1.2.3\n\n",
            b"1.2.3\n1.2.4\n",
            b"1.2.3\0",
            b"\0",
            b"\xef\xbb\xbf1.2.3",
            b"1.2.3\xff",
            b"latest",
            too_long.as_bytes(),
            html.as_bytes(),
            &mebibyte,
        ];
        for text in bad {
            let head = String::from_utf8_lossy(&text[..text.len().min(20)]);
            assert!(channel_version(text).is_err(), "{head:?}");
        }
    }

    /// Requirement: R02
    #[test]
    fn channel_is_critical_by_yes_alone() {
        let rows: [(&[u8], bool); 20] = [
            (b"yes", true),
            (b"yes\n", true),
            (b"", false),
            (b"\n", false),
            (b"no", false),
            (b"no\n", false),
            (b"Yes", false),
            (b"YES", false),
            (b"y", false),
            (b"true", false),
            (b"1", false),
            (b" yes", false),
            (b"yes ", false),
            (b"yes\r\n", false),
            (b"yes\n\n", false),
            (b"yes\nyes", false),
            (b"yes\0", false),
            (b"yess", false),
            (b"\xef\xbb\xbfyes", false),
            (b"<html>yes</html>", false),
        ];
        for (text, is_critical) in rows {
            let shown = String::from_utf8_lossy(text);
            assert_eq!(channel_critical(text), is_critical, "{shown:?}");
        }
    }

    #[test]
    fn name_of_a_channel_is_safe_in_file_names() {
        let long = "a".repeat(33);
        for sound in ["stable", "a", "edge-2", "0", &long[..32]] {
            assert_eq!(check_channel_name(sound), Ok(()), "{sound}");
        }
        for bad in ["", "A", "a/b", "..", "a.b", "-a", "a-", "a*", "ä", &long] {
            assert!(check_channel_name(bad).is_err(), "{bad}");
        }
    }
}
