//! The notice that a guest shows at logins before it moves to another runner. Only figures go over
//! the wire: its words are fixed here, so nobody on the way can put a text before people.

use serde::{Deserialize, Serialize};

use crate::time::WallTime;

/// Route of the guest's daemon: `PUT` shows a notice, `DELETE` takes it away.
pub const ROUTE: &str = "/v1/notice";
/// The same at the guest's runner.
pub const RUNNER_ROUTE: &str = "/v1/guest/notice";
/// Longest time for which a notice is shown without being renewed, seconds.
pub const MOST_SECONDS: u32 = 4 * 3600;
/// Longest body of a request, bytes.
pub const MOST_BYTES: usize = 512;
/// Longest version, bytes.
const MOST_VERSION: usize = 64;

/// A move that is about to begin.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MoveNotice {
    /// Version of the new runner: 1 to 64 letters, digits, `.`, `-` and `+`.
    pub version: String,
    /// When the move was decided.
    pub since: WallTime,
    /// Time after which the guest takes the notice away by itself, 1 to [`MOST_SECONDS`].
    pub valid_seconds: u32,
}

impl MoveNotice {
    /// Reads the body of a request.
    ///
    /// # Errors
    /// The member and its rule, for the answer.
    pub fn parse(body: &[u8]) -> Result<Self, String> {
        let notice: Self = serde_json::from_slice(body)
            .map_err(|error| format!("the body must be version, since, valid_seconds: {error}"))?;
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-+".contains(&byte);
        let version = notice.version.as_bytes();
        if !(1..=MOST_VERSION).contains(&version.len()) || !version.iter().copied().all(is_plain) {
            return Err("version must be 1 to 64 letters, digits, '.', '-' and '+'".to_owned());
        }
        if !(1..=MOST_SECONDS).contains(&notice.valid_seconds) {
            return Err(format!("valid_seconds must be 1 to {MOST_SECONDS}"));
        }
        Ok(notice)
    }

    /// What people read.
    #[must_use]
    pub fn text(&self) -> String {
        let Self { version, since, .. } = self;
        format!(
            "This machine is about to move to a new runner, version {version}, as decided at {since}.\n\
             Its programs run on. Connections from outside end when it moves.\n"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(version: &str, seconds: u32) -> Vec<u8> {
        let notice = MoveNotice {
            version: version.to_owned(),
            since: WallTime(1_700_000_000_000_000),
            valid_seconds: seconds,
        };
        serde_json::to_vec(&notice).expect("JSON")
    }

    /// Requirement: R44
    #[test]
    fn notice_has_fixed_words_and_no_text_of_the_wire() {
        let notice = MoveNotice::parse(&body("1.2.3-rc.1+x", MOST_SECONDS)).expect("sound");
        let text = notice.text();
        assert_eq!(text.lines().count(), 2);
        for part in ["version 1.2.3-rc.1+x,", "2023-11-14T22:13:20Z"] {
            assert!(text.contains(part), "{text}");
        }
        let long = "1".repeat(65);
        for bad in [
            "",
            "1 2",
            "1\n2",
            "\u{1b}[31m",
            "1.0;reboot",
            "1\u{e4}",
            &long,
        ] {
            let refused = MoveNotice::parse(&body(bad, 60)).expect_err(bad);
            assert!(refused.contains("version must be"), "{refused}");
        }
        for bad in [0, MOST_SECONDS + 1] {
            let refused = MoveNotice::parse(&body("1.0.0", bad)).expect_err("a bound");
            assert!(refused.contains("valid_seconds"), "{refused}");
        }
        for bad in [
            &b""[..],
            b"[]",
            br#"{"version": "1.0.0", "since": "now", "valid_seconds": 1}"#,
            br#"{"version": "1.0.0", "since": "2026-01-01T00:00:00Z", "valid_seconds": 1, "text": "x"}"#,
        ] {
            let refused = MoveNotice::parse(bad).expect_err("malformed");
            assert!(refused.contains("the body must be"), "{refused}");
        }
    }
}
