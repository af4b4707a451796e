//! Why a policy has no valid answer.

use serde::{Deserialize, Serialize};

/// Why a question has no valid answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fault {
    /// The source does not compile, or the call ended in an error of the program.
    Syntax,
    /// The call took more steps than its budget.
    Steps,
    /// The call took more memory than its budget.
    Memory,
    /// The answer broke a rule of the contract.
    Output,
    /// Its own answer as `old` changed the answer.
    NotFixpoint,
    /// A second process gave another answer to the same question.
    Nondeterministic,
    /// No answer came in time. The agent killed the worker.
    Late,
    /// The worker ended while the question was open.
    WorkerDied,
}

impl Fault {
    /// All faults, in the order of their declaration.
    pub const ALL: [Self; 8] = [
        Self::Syntax,
        Self::Steps,
        Self::Memory,
        Self::Output,
        Self::NotFixpoint,
        Self::Nondeterministic,
        Self::Late,
        Self::WorkerDied,
    ];

    /// Name of the fault in records, metrics and frames.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Syntax => "syntax",
            Self::Steps => "steps",
            Self::Memory => "memory",
            Self::Output => "output",
            Self::NotFixpoint => "not_fixpoint",
            Self::Nondeterministic => "nondeterministic",
            Self::Late => "late",
            Self::WorkerDied => "worker_died",
        }
    }

    /// The fault that `word` names. `None` for any other text.
    #[must_use]
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|fault| fault.word() == word)
    }
}

#[cfg(test)]
mod tests {
    use super::Fault;

    #[test]
    fn every_fault_is_found_by_its_word() {
        for fault in Fault::ALL {
            assert_eq!(Fault::from_word(fault.word()), Some(fault));
            let text = serde_json::to_value(fault).expect("a word");
            assert_eq!(text, fault.word());
        }
        assert_eq!(Fault::from_word("Late"), None);
    }
}
