//! What a worker says to a question.

use policy_contract::{Answer, Fault};

/// An answer with its steps, or a fault and its text.
pub(super) type WorkerResponse = Result<(Answer, u64), (Fault, String)>;
