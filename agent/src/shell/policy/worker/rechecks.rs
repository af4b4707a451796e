//! The second questions: an answer that [`Recheck`] chooses ends its question only after the policy
//! has given it again.

use policy_contract::Recheck;

use super::super::{End, Question};

/// What follows the answer to a question.
pub(super) enum Next {
    /// The question ends.
    End(Box<Question>, End),
    /// The policy is asked again, in the second case after it is loaded again.
    Again(Box<Question>),
    LoadAndAgain(Box<Question>),
}

/// What follows `end` as the answer to `question`.
pub(super) fn next(mut question: Box<Question>, end: End) -> Next {
    match (question.first.take(), end) {
        (None, End::Answer(answer)) => match Recheck::of(question.checksum) {
            None => Next::End(question, End::Answer(answer)),
            Some(check) => {
                *question.input = check.question(question.input.as_ref().clone(), &answer);
                question.first = Some((check, answer));
                match check {
                    Recheck::Twice => Next::LoadAndAgain(question),
                    Recheck::Fixpoint => Next::Again(question),
                }
            }
        },
        (None, end) => Next::End(question, end),
        (Some((_, first)), End::Answer(second)) if first == second => {
            Next::End(question, End::Answer(first))
        }
        (Some((check, first)), end) => {
            let then = match end {
                End::Answer(second) => second.to_value().to_string(),
                End::Fault(fault, text) | End::Aside(fault, text) => {
                    format!("{}: {text}", fault.word())
                }
                End::Lost => "nothing".to_owned(),
            };
            let text = format!("answers {}, and asked again {then}", first.to_value());
            Next::End(question, End::Fault(check.fault(), text))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use policy_contract::{Answer, Fault, Input, Spec};
    use protocol::policy::Limits;
    use serde_json::json;

    use super::*;
    use crate::shell::policy::known::Policy;
    use crate::shell::policy::request::Replies;

    fn question(checksum: u32) -> Box<Question> {
        let spec = Spec::of_source("return 1");
        Box::new(Question {
            generation: 1,
            n: 1,
            vm: 1,
            at: 1.0,
            policy: Arc::new(Policy::of("a", spec, Limits::default())),
            input: Box::new(Input::sample()),
            checksum,
            first: None,
            reply: Replies::default(),
        })
    }

    fn answer(cu: u32) -> End {
        let value = json!({"cu": cu, "reason": "x"});
        End::Answer(Box::new(Answer::read(&value).expect("an answer")))
    }

    /// Ends of questions with the answers `first` and `second`.
    fn end_of(checksum: u32, first: End, second: End) -> End {
        match next(question(checksum), first) {
            Next::End(_, end) => end,
            Next::Again(again) | Next::LoadAndAgain(again) => match next(again, second) {
                Next::End(_, end) => end,
                _ => panic!("a third question"),
            },
        }
    }

    /// Requirement: V01, V04
    #[test]
    fn v04_second_answer_decides_whether_the_first_one_counts() {
        const PLAIN: u32 = 2;
        let checks = [(256, Fault::Nondeterministic), (65, Fault::NotFixpoint)];
        for (checksum, fault) in checks {
            let same = end_of(checksum, answer(3), answer(3));
            assert!(matches!(same, End::Answer(_)), "{same:?}");
            let failed = End::Fault(Fault::Steps, String::new());
            for second in [answer(4), failed] {
                let other = end_of(checksum, answer(3), second);
                assert!(
                    matches!(other, End::Fault(of, _) if of == fault),
                    "{other:?}"
                );
            }
        }
        let plain = end_of(PLAIN, answer(3), answer(4));
        assert!(matches!(plain, End::Answer(_)), "{plain:?}");
        let failed = End::Fault(Fault::Steps, String::new());
        let failed = end_of(256, failed, answer(4));
        assert!(matches!(failed, End::Fault(Fault::Steps, _)), "{failed:?}");
    }

    #[test]
    fn second_question_is_the_same_or_has_the_answer_as_old() {
        let Next::LoadAndAgain(twice) = next(question(256), answer(3)) else {
            panic!("it is asked of the policy loaded again");
        };
        assert_eq!(*twice.input, Input::sample());
        let Next::Again(fixpoint) = next(question(1), answer(3)) else {
            panic!("it is asked again");
        };
        let old = fixpoint.input.old.as_ref();
        assert_eq!(old.and_then(|old| old.cu), Some(3));
    }
}
