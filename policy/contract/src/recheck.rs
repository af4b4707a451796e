//! Which questions a policy is asked a second time, and what the second answer must be.
//!
//! The checksum of the question chooses, so a reader of the journal knows the chosen ones. A second
//! answer that differs stands in the journal as the fault of the question.

use protocol::policy::Fault;

use crate::answer::{Answer, Want};
use crate::input::{Input, Old};

/// One question of so many is asked again with the policy loaded again.
const TWICE_IN: u32 = 256;
/// One question of so many is asked again with its answer as `old`.
const FIXPOINT_IN: u32 = 64;

/// How a question is asked again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recheck {
    /// The same question, after the policy is loaded again.
    Twice,
    /// The question with the answer as `old`.
    Fixpoint,
}

impl Recheck {
    /// The check of a question with this checksum.
    #[must_use]
    pub const fn of(checksum: u32) -> Option<Self> {
        if checksum.is_multiple_of(TWICE_IN) {
            Some(Self::Twice)
        } else if checksum % FIXPOINT_IN == 1 {
            Some(Self::Fixpoint)
        } else {
            None
        }
    }

    /// The second question, after `answer` to the first.
    #[must_use]
    pub fn question(self, first: Input, answer: &Answer) -> Input {
        match self {
            Self::Twice => first,
            Self::Fixpoint => Input {
                old: Some(Old::of(answer)),
                ..first
            },
        }
    }

    /// Fault of a policy whose second answer differs.
    #[must_use]
    pub const fn fault(self) -> Fault {
        match self {
            Self::Twice => Fault::Nondeterministic,
            Self::Fixpoint => Fault::NotFixpoint,
        }
    }
}

impl Old {
    /// An answer as the `old` of a question at the same time.
    #[must_use]
    pub fn of(answer: &Answer) -> Self {
        Self {
            cu: match answer.want {
                Want::Units(units) => Some(units),
                Want::Hold => None,
            },
            reason: answer.reason.as_str().to_owned(),
            age_s: 0.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_question_in_256_and_one_in_64_are_asked_again() {
        let chosen = |check| (0..65_536).filter(move |n| Recheck::of(*n) == Some(check));
        assert_eq!(chosen(Recheck::Twice).count(), 256);
        assert_eq!(chosen(Recheck::Fixpoint).count(), 1024);
    }

    #[test]
    fn second_question_has_the_answer_as_old_or_is_the_same() {
        let value = serde_json::json!({"cu": 3, "reason": "memory"});
        let answer = Answer::read(&value).expect("an answer");
        let first = Input::sample();
        let again = Recheck::Twice.question(first.clone(), &answer);
        assert_eq!(again.checksum(), first.checksum());
        let old = Recheck::Fixpoint.question(first, &answer).old;
        let expected = Old {
            cu: Some(3),
            reason: "memory".into(),
            age_s: 0.0,
        };
        assert_eq!(old, Some(expected));
    }
}
