//! How much of what the agent decides it may also do, for VMs of a namespace or for one VM.

use serde::{Deserialize, Serialize};

/// Label of a Namespace, for its VMs; annotation of a VM, for itself alone, which wins. One of
/// [`Mode`]'s words.
pub const KEY_MODE: &str = "autoscaling.neon.tech/mode";

/// What may be done of what is decided. Decisions are made, recorded and shown in every mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// Nothing is changed. Scheduler and monitor are told what the VM has.
    Observe,
    /// VMs grow and never shrink.
    Grow,
    /// All of it. What was before there were modes.
    #[default]
    Full,
}

impl Mode {
    /// Its word in labels, annotations and settings.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Observe => "observe",
            Self::Grow => "grow",
            Self::Full => "full",
        }
    }

    /// The mode of a word.
    #[must_use]
    pub fn of(word: &str) -> Option<Self> {
        [Self::Observe, Self::Grow, Self::Full]
            .into_iter()
            .find(|mode| mode.as_str() == word)
    }
}

#[cfg(test)]
mod tests {
    use super::Mode;

    #[test]
    fn every_mode_is_found_by_its_word_alone() {
        for mode in [Mode::Observe, Mode::Grow, Mode::Full] {
            assert_eq!(Mode::of(mode.as_str()), Some(mode));
            let text = serde_json::to_string(&mode).expect("a word");
            assert_eq!(text, format!("\"{}\"", mode.as_str()));
        }
        assert_eq!((Mode::of("Full"), Mode::of("")), (None, None));
    }
}
