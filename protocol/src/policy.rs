//! Policies: the kind `ScalingPolicy`, the rules of its admission, and how a VM chooses one. Sets
//! of VMs: the kind `VirtualMachineSet` and its rules. Nodes that policies ask for: the kind
//! `CapacityWish`.
//!
//! A policy is a small program with its parameters. It answers how large a VM should be. Its
//! author cannot name a folder, user, image, command, address or host in it.

mod canary;
mod fault;
mod kind;
mod object;
mod refusal;
mod rules;
mod set;
mod set_rules;
mod status;
mod wish;

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
pub use set::{
    ANNOTATION_SET_VERSION, Chosen, LABEL_SET, Rates, SET_KIND, SET_PLURAL, TemplateMeta,
    TemplateVersion, Upgrade, VmSet, VmSetSpec, VmSetStatus, VmTemplate, member_name,
    member_ordinal, members_name,
};
pub use set_rules::{MAX_KV, MAX_REPLICAS, MAX_SET_NAME, MAX_TEMPLATE_BYTES, check_template};
pub use status::{
    PastVersion, PolicyCondition, PolicyVersion, REVISION_NAMESPACE, ScalingPolicyStatus, Stage,
    revision_name,
};
pub use wish::{
    CapacityWish, CapacityWishSpec, CapacityWishStatus, FULFILLED, MAX_NODES, WISH_KIND,
    WISH_OF_DENIED_GROWTH, WISH_PLURAL,
};
