//! Questions and answers of either scope.

use policy_contract::frames::{FromWorker, ToWorker};
use policy_contract::sets::SetAnswer;
use policy_contract::{Answer, History, Input, Old, Refusal, Seconds, SetInput};
use policy_engine::{Engine, Evaluation, Failed};
use serde_json::Value;

/// A question about a VM or about sets.
#[derive(Debug, Clone, PartialEq)]
pub enum AnyInput {
    /// About a VM.
    Vm(Box<Input>),
    /// About the sets of a namespace.
    Set(Box<SetInput>),
}

/// An answer about a VM or about sets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AnyAnswer {
    /// About a VM.
    Vm(Answer),
    /// About the sets of a namespace.
    Set(SetAnswer),
}

impl AnyInput {
    /// Asks a loaded policy.
    ///
    /// # Errors
    /// As of [`Engine::ask`].
    pub fn ask(
        &self,
        engine: &Engine,
        past: &History,
        now: Seconds,
    ) -> Result<Evaluation<AnyAnswer>, Failed> {
        match self {
            Self::Vm(input) => engine.ask(input, past, now).map(|said| Evaluation {
                answer: AnyAnswer::Vm(said.answer),
                steps: said.steps,
            }),
            Self::Set(input) => engine.ask_sets(input, past, now).map(|said| Evaluation {
                answer: AnyAnswer::Set(said.answer),
                steps: said.steps,
            }),
        }
    }

    /// The line that asks a worker. The policy and the past have the number `id`.
    #[must_use]
    pub fn line(&self, n: u64, id: u32, t: Seconds) -> ToWorker {
        match self {
            Self::Vm(input) => ToWorker::Ask {
                n,
                vm: id,
                id,
                t,
                i: input.clone(),
            },
            Self::Set(input) => ToWorker::AskSets {
                n,
                vm: id,
                id,
                t,
                i: input.clone(),
            },
        }
    }

    /// The same question after this answer to it.
    #[must_use]
    pub fn after(&self, answer: &AnyAnswer) -> Self {
        match (self, answer) {
            (Self::Vm(input), AnyAnswer::Vm(answer)) => {
                let mut again = input.clone();
                again.old = Some(Old::of(answer));
                Self::Vm(again)
            }
            (Self::Set(input), AnyAnswer::Set(answer)) => Self::Set(Box::new(input.after(answer))),
            (other, _) => other.clone(),
        }
    }

    /// What a policy should write that steps from its last answer.
    #[must_use]
    pub fn instead_of_old(&self) -> &'static str {
        match self {
            Self::Vm(_) => "a step from i.vm.use_cu, not from i.old.cu",
            Self::Set(_) => "a step from i.sets.NAME.count, not from i.old.sets",
        }
    }

    /// The answer to this question in a line of a worker, and its steps. `None` for another line.
    #[must_use]
    pub fn read_line(&self, line: &FromWorker) -> Option<Result<(AnyAnswer, u64), Refusal>> {
        match (self, line) {
            (Self::Vm(_), FromWorker::Said { steps, .. }) => {
                let answer = line.answer()?;
                Some(answer.map(|answer| (AnyAnswer::Vm(answer), *steps)))
            }
            (Self::Set(_), FromWorker::SaidSets { answer, steps, .. }) => {
                let answer = self.read(answer);
                Some(answer.map(|answer| (answer, *steps)))
            }
            _ => None,
        }
    }

    /// Reads an answer to this question.
    ///
    /// # Errors
    /// With path, value and rule of the first member at fault.
    pub fn read(&self, value: &Value) -> Result<AnyAnswer, Refusal> {
        match self {
            Self::Vm(_) => Answer::read(value).map(AnyAnswer::Vm),
            Self::Set(input) => SetAnswer::read(value, &input.facts()).map(AnyAnswer::Set),
        }
    }
}

impl AnyAnswer {
    /// The answer as a policy would return it.
    #[must_use]
    pub fn to_value(&self) -> Value {
        match self {
            Self::Vm(answer) => answer.to_value(),
            Self::Set(answer) => answer.to_value(),
        }
    }

    /// The line by which a worker gives it.
    #[must_use]
    pub fn line(&self, n: u64, steps: u64) -> FromWorker {
        match self {
            Self::Vm(answer) => FromWorker::said(n, answer, steps),
            Self::Set(answer) => FromWorker::said_sets(n, answer, steps),
        }
    }
}
