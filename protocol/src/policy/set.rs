//! The object `VirtualMachineSet`: a number of VMs made from one template.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::object::ObjectMeta;
use crate::time::Span;
use crate::vm::Condition;

/// Kind of a set.
pub const SET_KIND: &str = "VirtualMachineSet";
/// Name of the kind in URLs.
pub const SET_PLURAL: &str = "virtualmachinesets";
/// Label of a member: the name of its set.
pub const LABEL_SET: &str = "policy.bellows.dev/set";
/// Annotation of a member: number of the version of the template that it was made from.
pub const ANNOTATION_SET_VERSION: &str = "policy.bellows.dev/set-version";

/// A set as the controller reads it.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct VmSet {
    /// Name, uid and version of the object.
    pub metadata: ObjectMeta,
    /// What a person or an autoscaler wants.
    pub spec: VmSetSpec,
    /// Observed state; `None` before the controller's first write.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<VmSetStatus>,
}

/// `spec` of a `VirtualMachineSet`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct VmSetSpec {
    /// Number of members.
    pub replicas: u32,
    /// Newest template. Members change to it by an upgrade only.
    pub template: VmTemplate,
    /// Version of the template that members should have. `None`: the one that they have.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<u32>,
    /// Bounds on the speed of changes of the count.
    pub rates: Rates,
    /// Time for which an upgraded member must be up before the next one is replaced, seconds.
    pub min_ready_seconds: u32,
    /// Time within which an upgraded member must be ready, seconds.
    pub progress_deadline_seconds: u32,
    /// Values that members read beside the addresses.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub kv: BTreeMap<String, String>,
    /// Priority where the capacity for sets of a policy is short. A larger one is served first.
    #[serde(skip_serializing_if = "is_zero")]
    pub priority: i32,
    /// Versions of the template that the set's policy may choose.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub versions: BTreeSet<u32>,
    /// Commands that the set's policy may choose. Members read the chosen one.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub commands: BTreeSet<String>,
    /// What the set's policy chose for members to read. The policy controller writes it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub chosen: Option<Chosen>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
fn is_zero(priority: &i32) -> bool {
    *priority == 0
}

/// What a policy chose for the members of a set to read.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Chosen {
    /// One of the set's commands.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// Values beside those of the set. A value of the set wins.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub kv: BTreeMap<String, String>,
}

impl Default for VmSetSpec {
    fn default() -> Self {
        Self {
            replicas: 1,
            template: VmTemplate::default(),
            version: None,
            rates: Rates::default(),
            min_ready_seconds: 10,
            progress_deadline_seconds: 600,
            kv: BTreeMap::new(),
            priority: 0,
            versions: BTreeSet::new(),
            commands: BTreeSet::new(),
            chosen: None,
        }
    }
}

impl VmSetSpec {
    /// The chosen command, if it is one of the set's.
    #[must_use]
    pub fn command(&self) -> Option<&str> {
        let command = self.chosen.as_ref()?.command.as_deref()?;
        self.commands.contains(command).then_some(command)
    }

    /// Values that members read: those of the set, and what its policy chose beside them.
    #[must_use]
    pub fn values(&self) -> BTreeMap<&str, &str> {
        let chosen = self.chosen.iter().flat_map(|chosen| &chosen.kv);
        let all = chosen.chain(&self.kv);
        all.map(|(key, value)| (key.as_str(), value.as_str()))
            .collect()
    }
}

/// Template of a member.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct VmTemplate {
    /// Labels and annotations of each member.
    pub metadata: TemplateMeta,
    /// `spec` of each member, a VirtualMachine.
    pub spec: Value,
}

/// `metadata` of a template.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct TemplateMeta {
    /// Labels of each member.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Annotations of each member.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
}

/// Members that may be made and deleted per second, to follow the count.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Rates {
    /// Members made per second.
    pub grow: f64,
    /// Members deleted per second.
    pub decline: f64,
}

impl Default for Rates {
    fn default() -> Self {
        Self {
            grow: 5.0,
            decline: 1.0,
        }
    }
}

impl Rates {
    /// Shortest time between two changes at this rate, rounded up to microseconds. The admission
    /// rules exclude a rate without one, which counts as once an hour.
    #[must_use]
    pub fn period(rate: f64) -> Span {
        const SLOWEST: Span = Span::from_secs(3_600);
        let exact = std::time::Duration::try_from_secs_f64(rate.recip()).unwrap_or_default();
        let rounded = exact.saturating_add(std::time::Duration::from_nanos(999));
        match Span::from_duration(rounded) {
            Span(0) => SLOWEST,
            period => period,
        }
    }
}

/// `status` of a `VirtualMachineSet`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct VmSetStatus {
    /// Generation of the spec that this status is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Members that exist and are not being deleted.
    pub replicas: u32,
    /// Members whose guest is up.
    pub ready_replicas: u32,
    /// Members that have the desired version.
    pub updated_replicas: u32,
    /// Label selector of the members, for the `scale` subresource.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub selector: String,
    /// Version that new members get.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<u32>,
    /// Version that members had before the last whole upgrade.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub previous: Option<u32>,
    /// Version of the template in the spec.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub newest: Option<u32>,
    /// Kept versions of the template, the oldest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub versions: Vec<TemplateVersion>,
    /// Upgrade that is under way or halted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub upgrade: Option<Upgrade>,
    /// Ordinals that members do not take, as another VM had the name. In order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<u32>,
    /// At most one of each type.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}

impl VmSetStatus {
    /// The template of a version, if it is kept.
    #[must_use]
    pub fn template(&self, version: u32) -> Option<&VmTemplate> {
        let mut kept = self.versions.iter();
        let found = kept.find(|kept| kept.version == version);
        found.map(|kept| &kept.template)
    }
}

/// A kept version of the template.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct TemplateVersion {
    /// Number of the version, from 1.
    pub version: u32,
    /// The template as the spec had it.
    pub template: VmTemplate,
}

/// An upgrade that is under way or halted.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Upgrade {
    /// Version that members get.
    pub to: u32,
    /// Ordinal of the member that is being replaced.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ordinal: Option<u32>,
    /// Why the upgrade goes no further.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub halted: Option<String>,
}

/// Name of the member with this ordinal.
#[must_use]
pub fn member_name(set: &str, ordinal: u32) -> String {
    format!("{set}-{ordinal}")
}

/// Ordinal in the name of a member of `set`. `None` for any other name.
#[must_use]
pub fn member_ordinal(set: &str, name: &str) -> Option<u32> {
    let digits = name.strip_prefix(set)?.strip_prefix('-')?;
    let ordinal = digits.parse().ok()?;
    (member_name(set, ordinal) == name).then_some(ordinal)
}

/// Name of the config map with the addresses of the members.
#[must_use]
pub fn members_name(set: &str) -> String {
    format!("{set}-members")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Requirement: V33, V34
    #[test]
    fn v34_command_is_one_of_the_sets_and_its_values_win() {
        let mut spec = VmSetSpec {
            kv: [("mode".to_owned(), "careful".to_owned())].into(),
            commands: ["drain".to_owned()].into(),
            ..VmSetSpec::default()
        };
        let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        spec.chosen = Some(Chosen {
            command: Some("drain".into()),
            kv: [pair("mode", "fast"), pair("size", "9")].into(),
        });
        assert_eq!(spec.command(), Some("drain"));
        assert_eq!(spec.values(), [("mode", "careful"), ("size", "9")].into());
        spec.commands.clear();
        assert_eq!(spec.command(), None);
    }

    #[test]
    fn names_and_ordinals_are_one_to_one() {
        assert_eq!(member_ordinal("web", &member_name("web", 12)), Some(12));
        for other in ["web", "web-", "web-01", "web-+1", "web-x", "webs-1", "we-1"] {
            assert_eq!(member_ordinal("web", other), None, "{other}");
        }
        assert_eq!(member_ordinal("a-1", "a-1-0"), Some(0));
    }

    /// Requirement: V13
    #[test]
    fn v13_period_of_a_rate_is_never_too_short() {
        assert_eq!(Rates::period(5.0), Span::from_millis(200));
        assert_eq!(Rates::period(1.0), Span::from_secs(1));
        assert_eq!(Rates::period(3.0), Span(333_334));
        for none in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert_eq!(Rates::period(none), Span::from_secs(3_600), "{none}");
        }
    }
}
