//! Paths of pages.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

/// Bytes of a path's segment that are percent-encoded.
const SEGMENT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.');

/// A path of encoded segments.
pub(super) fn path_of(segments: &[&str]) -> String {
    let encoded = segments
        .iter()
        .map(|segment| format!("/{}", utf8_percent_encode(segment, SEGMENT)));
    encoded.collect()
}

/// Whether a path leads to a page of this server.
pub(super) fn is_own(path: &str) -> bool {
    let is_plain = path
        .bytes()
        .all(|byte| byte.is_ascii_graphic() && byte != b'\\');
    path.starts_with('/') && !path.starts_with("//") && is_plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_paths_of_this_server_are_own() {
        for (path, expected) in [
            ("/vms?q=pg&page=2", true),
            ("//example.org/", false),
            ("/\\example.org", false),
            ("https://example.org/", false),
            ("/a\r\nset-cookie: x", false),
            ("", false),
        ] {
            assert_eq!(is_own(path), expected, "{path:?}");
        }
    }
}
