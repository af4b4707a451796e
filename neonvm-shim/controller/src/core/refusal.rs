//! Why a peer did not carry out an action.

use super::failing::Outcome;

/// Why an action did not work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// It rested on an old version.
    Conflict,
    /// The object does not exist. For a pod that is a state, not a refusal.
    Gone,
    /// The peer refused for another reason, or could not be reached.
    Failed {
        /// Message of the peer, unchanged.
        message: String,
        /// Whether the same request can never work (a 4xx).
        permanent: bool,
    },
}

/// Part of the message by which Pod Security admission refuses a pod.
const POD_SECURITY: &str = "violates PodSecurity";

impl Refusal {
    /// Whether Pod Security admission has refused a pod.
    #[must_use]
    pub fn is_of_pod_security(&self) -> bool {
        matches!(self, Self::Failed { message, .. } if message.contains(POD_SECURITY))
    }

    /// How an attempt counts that ended so.
    #[must_use]
    pub fn outcome<T>(result: &Result<T, Self>) -> Outcome {
        match result {
            Ok(_) => Outcome::Success,
            Err(Self::Conflict) => Outcome::Conflict,
            Err(_) => Outcome::Failure,
        }
    }
}
