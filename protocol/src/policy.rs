//! Policies: the kind `ScalingPolicy`, the rules of its admission, and how a VM chooses one.
//!
//! A policy is a small program with its parameters. It answers how large a VM should be. Its
//! author cannot name a folder, user, image, command, address or host in it.

mod canary;
mod fault;
mod kind;
mod object;
mod refusal;
mod rules;
mod status;

pub use canary::{canary_percent, is_in_canary};
pub use fault::Fault;
pub use kind::{
    BUILTIN, FeedSource, GROUP, KEY_POLICY, KIND, PLURAL, Role, SHORT, Scope, Series, VERSION,
};
pub use object::{Limits, ScalingPolicySpec, validate};
pub use refusal::Refusal;
pub use rules::{
    LABELS_MAX, MAX_FEEDS, MAX_PARAMS, MAX_SOURCE_BYTES, WORD_MAX, check_feeds, check_params,
    check_series, check_source, is_word,
};
pub use status::{
    PastVersion, PolicyCondition, PolicyVersion, REVISION_NAMESPACE, ScalingPolicyStatus, Stage,
    revision_name,
};
