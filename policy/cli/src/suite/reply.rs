//! What a worker says to a question.

use policy_contract::Fault;

use crate::scope::AnyAnswer;

/// An answer with its steps, or a fault and its text.
pub(super) type WorkerResponse = Result<(AnyAnswer, u64), (Fault, String)>;
