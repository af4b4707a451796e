//! The files by which daemon and scripts agree about a trial. Each is one line of words.

use std::fmt;

use protocol::parts::{PartSource, TOKEN_BYTES};
use serde::{Deserialize, Serialize};

/// One of the two folders for programs that were brought.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Slot {
    /// Written first, while the image's program runs.
    A,
    /// Written while the program of `a` runs.
    B,
}

impl Slot {
    /// All slots, in the order of their names.
    pub const ALL: [Self; 2] = [Self::A, Self::B];

    /// Name of the folder, and target of the link `current`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::A => "a",
            Self::B => "b",
        }
    }

    /// The slot of this name.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|slot| slot.as_str() == name)
    }

    /// The slot that a new program may overwrite while `current` runs.
    #[must_use]
    pub const fn idle(current: Option<Self>) -> Self {
        match current {
            Some(Self::A) => Self::B,
            Some(Self::B) | None => Self::A,
        }
    }
}

/// Origin of the program that the link `current` selects.
#[must_use]
pub const fn source(current: Option<Slot>) -> PartSource {
    match current {
        Some(Slot::A) => PartSource::A,
        Some(Slot::B) => PartSource::B,
        None => PartSource::Image,
    }
}

/// Whether `token` is one word of letters, digits, `.`, `_` and `-` that the scripts can read.
#[must_use]
pub fn is_token(token: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    (1..=TOKEN_BYTES).contains(&token.len()) && token.bytes().all(is_plain)
}

/// A trial in progress.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trial {
    /// Token of the order.
    pub token: String,
    /// Uptime of the guest at the trial's end, whole seconds.
    pub end_s: u64,
    /// Program to go back to. `None` is the image's.
    pub back: Option<Slot>,
}

impl Trial {
    /// Parses the file `trial`. `None` if a word is missing or malformed.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let mut words = text.split_ascii_whitespace();
        let token = words.next().filter(|word| is_token(word))?.to_owned();
        let end_s = words.next()?.parse().ok()?;
        let back = match words.next()? {
            "image" => None,
            name => Some(Slot::parse(name)?),
        };
        words
            .next()
            .is_none()
            .then_some(Self { token, end_s, back })
    }
}

impl fmt::Display for Trial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let back = self.back.map_or("image", Slot::as_str);
        writeln!(f, "{} {} {back}", self.token, self.end_s)
    }
}

/// Longest reason of a return, in characters. A script may have written more.
const REASON_CHARS: usize = 300;

/// Why the last program on trial was taken back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReturnNote {
    /// Token of the trial.
    pub token: String,
    /// The reason, one line.
    pub reason: String,
}

impl ReturnNote {
    /// Parses the file `note`. `None` if it names no token.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let line = text.lines().next()?;
        let (token, reason) = line.split_once(' ').unwrap_or((line, ""));
        let shown = reason.chars().filter(|c| !c.is_control());
        is_token(token).then(|| Self {
            token: token.to_owned(),
            reason: shown.take(REASON_CHARS).collect(),
        })
    }
}

impl fmt::Display for ReturnNote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} {}", self.token, self.reason)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trial_is_read_as_it_was_written() {
        for back in [None, Some(Slot::A), Some(Slot::B)] {
            let trial = Trial {
                token: "r3-1.x_y".into(),
                end_s: 812,
                back,
            };
            assert_eq!(Trial::parse(&trial.to_string()), Some(trial));
        }
    }

    #[test]
    fn malformed_trial_is_none() {
        for text in [
            "",
            "t",
            "t 1",
            "t x image",
            "t 1 c",
            "t 1 image x",
            "../x 1 a",
        ] {
            assert_eq!(Trial::parse(text), None, "{text:?}");
        }
    }

    #[test]
    fn token_is_a_word_of_bounded_length() {
        let longest = "t".repeat(TOKEN_BYTES);
        assert!(is_token("r12-1f") && is_token(&longest));
        for token in ["", "a b", "a\n", "a/b", "$(x)", &format!("{longest}t")] {
            assert!(!is_token(token), "{token:?}");
        }
    }
}
