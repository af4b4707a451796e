//! One mistake in a recipe.

use std::fmt;

/// One thing wrong with a recipe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Path of the field in the recipe, for example `guest.hostname`.
    pub at: String,
    /// What is wrong with it.
    pub problem: String,
    /// The rule, and so the fix.
    pub rule: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}: {}", self.at, self.problem, self.rule)
    }
}
