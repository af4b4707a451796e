//! A value that breaks a rule, with its place.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Longest value that a refusal repeats, in characters.
const MAX_SHOWN: usize = 64;

/// Why an object or an answer was refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal<Rule = &'static str> {
    /// Member at fault, as `votes.cpu`.
    pub path: String,
    /// Value of the member, cut to 64 characters.
    pub value: String,
    /// Rule that the value broke.
    pub rule: Rule,
}

impl Refusal {
    /// Refusal of `value` at `path`.
    #[must_use]
    pub fn of(path: impl Into<String>, value: impl fmt::Display, rule: &'static str) -> Self {
        let mut value: String = value.to_string();
        if let Some((end, _)) = value.char_indices().nth(MAX_SHOWN) {
            value.truncate(end);
            value.push('…');
        }
        Self {
            path: path.into(),
            value,
            rule,
        }
    }

    /// The same refusal of a member one level further down.
    #[must_use]
    pub fn below(mut self, parent: &str) -> Self {
        self.path = format!("{parent}.{}", self.path);
        self
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} is not {}", self.path, self.value, self.rule)
    }
}

impl std::error::Error for Refusal {}
