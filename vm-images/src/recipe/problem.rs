//! A problem of a recipe.

use std::fmt;

/// One broken rule of a recipe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Path of the field in the recipe, for example `guest.hostname`.
    pub at: String,
    /// Description of the problem.
    pub problem: String,
    /// The broken rule, which names the fix.
    pub rule: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}: {}", self.at, self.problem, self.rule)
    }
}
