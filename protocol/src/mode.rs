//! Which decisions the agent carries out, for the VMs of a namespace or for one VM.

use serde::{Deserialize, Serialize};

/// Label of a Namespace for all its VMs, and annotation of a single VM. The annotation wins. The
/// value is one of the texts of [`Mode::as_str`].
pub const KEY_MODE: &str = "autoscaling.neon.tech/mode";

/// Which changes the agent may make. It makes, records and shows decisions in every mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// The agent changes no VM. It reports the present size to scheduler and monitor.
    Observe,
    /// The agent grows VMs and never shrinks them.
    Grow,
    /// The agent grows and shrinks VMs. This is the default.
    #[default]
    Full,
}

impl Mode {
    /// Text of the mode in labels, annotations and settings.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Observe => "observe",
            Self::Grow => "grow",
            Self::Full => "full",
        }
    }

    /// The mode that `word` names. `None` for any other text.
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
