//! What may happen to the core, and what it may ask to be done. All plain data.

use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};
use std::sync::LazyLock;

use protocol::annotations::{
    ANNOTATION_APPROVED, ANNOTATION_REQUESTED, ANNOTATION_SCALING_UNIT, pointer_escape,
};
use protocol::permit::{AgentRequest, NamespacedName, PermitRefusal, PluginResponse};
use protocol::time::Timestamp;
use protocol::units::Resources;
use serde::Serialize;
use serde_json::Value;

use super::decide::Decision;
use super::extend::{Ask, Told};
use super::lease::LeaseSeen;
use super::migrate::{MigrationView, NewMigration, NodeNote, Picked};
use super::pressure::Pressure;
use super::remarks::Remark;
use super::view::{NodeView, PodView, VmView};
use super::warm::{Kind, Reach};

/// Names one HTTP request that waits for an answer; chosen by the shell, never used twice.
pub type TicketId = u64;
/// Names one write or read of a VM object, or one binding; chosen by the core, never used twice.
pub type CallId = u64;

/// Something happened.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// A consistent list of all nodes; what is not in it is gone.
    NodesListed(Vec<NodeView>),
    /// A node appeared or changed.
    NodeApplied(NodeView),
    /// A node is gone.
    NodeDeleted(String),
    /// A consistent list of all pods; what is not in it is gone.
    PodsListed(Vec<PodView>),
    /// A pod appeared or changed.
    PodApplied(PodView),
    /// The pod of this uid is gone.
    PodDeleted(String),
    /// A consistent list of all VMs; what is not in it is gone.
    VmsListed(Vec<VmView>),
    /// A VM appeared or changed.
    VmApplied(VmView),
    /// The VM of this name and uid is gone.
    VmDeleted(NamespacedName, String),
    /// A consistent list of all migrations; what is not in it is gone.
    MigrationsListed(Vec<MigrationView>),
    /// A migration appeared or changed.
    MigrationApplied(MigrationView),
    /// The migration of this name and uid is gone.
    MigrationDeleted(NamespacedName, String),
    /// A watch has told all of this kind up to there; nothing: it cannot be said how far.
    Reached(Kind, Option<Reach>),
    /// An agent asks.
    Permit(TicketId, AgentRequest),
    /// A [`Action::WriteVm`] ended.
    WriteDone(CallId, CallOutcome),
    /// A [`Action::ReadVm`] ended.
    ReadDone(CallId, CallOutcome),
    /// A [`Action::Bind`] ended.
    BindDone(CallId, BindOutcome),
    /// A [`Action::CreateMigration`] or [`Action::DeleteMigration`] ended.
    MigrationDone(CallId, MigrationOutcome),
    /// The Lease as it is.
    Lease(LeaseSeen),
    /// A kube-scheduler asks; exactly one [`Action::Tell`] follows.
    Asked(TicketId, Ask),
    /// A [`Action::ReadPod`] ended.
    PodRead(CallId, PodSeen),
}

/// How a read of a pod ended.
#[derive(Debug, Clone, PartialEq)]
pub enum PodSeen {
    /// It is this.
    Pod(Box<PodView>),
    /// There is none of that name.
    Gone,
    /// Nobody knows.
    Unclear(String),
}

/// How a write or a read of a VM object ended.
#[derive(Debug, Clone, PartialEq)]
pub enum CallOutcome {
    /// It succeeded; the object as it is now.
    Done(Box<VmView>),
    /// A `test` of the patch failed or the object changed meanwhile: the write did not and will not
    /// happen.
    Conflict,
    /// There is no such object: the write did not and will not happen.
    NotFound,
    /// Refused for another reason: the write did not and will not happen.
    Refused(String),
    /// Time-out, broken connection or a server's failure: it may have happened or may happen yet.
    Unclear(String),
}

/// How a binding ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BindOutcome {
    /// The pod is bound to the node.
    Bound,
    /// The pod is bound already or changed: what is true will be observed.
    Conflict,
    /// Refused: this attempt did not and will not bind it.
    Refused(String),
    /// It may have happened or may happen yet.
    Unclear(String),
}

/// How the creation or deletion of a migration ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MigrationOutcome {
    /// It is there, or gone, as was asked; also when it was so already.
    Done,
    /// Refused: this attempt did not and will not change anything.
    Refused(String),
    /// It may have happened or may happen yet.
    Unclear(String),
}

/// Why a migration is deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RemovalCause {
    /// It is over, and the VM runs elsewhere.
    Succeeded,
    /// It is over, and the VM runs where it was.
    Failed,
    /// It makes no progress.
    Stuck,
}

impl RemovalCause {
    /// The word for metric labels and logs.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
            Self::Stuck => "stuck",
        }
    }
}

/// Something to do.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub enum Action {
    /// Answer an HTTP request.
    Answer(Answer),
    /// Patch a VM object; exactly one [`Event::WriteDone`] must follow.
    WriteVm(VmWrite),
    /// Read a VM object; exactly one [`Event::ReadDone`] must follow.
    ReadVm {
        /// Names the call.
        id: CallId,
        /// The VM.
        vm: NamespacedName,
    },
    /// Bind a pod to a node; exactly one [`Event::BindDone`] must follow.
    Bind {
        /// Names the call.
        id: CallId,
        /// The pod.
        pod: NamespacedName,
        /// Its uid, without which it must not be bound.
        uid: String,
        /// The node.
        node: String,
    },
    /// Read a pod; exactly one [`Event::PodRead`] must follow.
    ReadPod {
        /// Names the call.
        id: CallId,
        /// The pod.
        pod: NamespacedName,
    },
    /// Answer a kube-scheduler.
    Tell {
        /// Its request.
        ticket: TicketId,
        /// The answer.
        told: Told,
    },
    /// Take all lists anew, from reads that begin after this: a term of leading begins, or a time
    /// of waiting for one. Nothing needs to follow but them, and what watches tell from then on.
    List,
    /// Say on a pod that no node has room for it. Nothing needs to follow.
    Unschedulable {
        /// The pod.
        pod: NamespacedName,
        /// Its uid.
        uid: String,
        /// Why, for people.
        message: String,
    },
    /// Change an unbound pod's object a little, so that kube-scheduler takes it up again. Nothing
    /// needs to follow.
    RoomAppeared {
        /// The pod.
        pod: NamespacedName,
        /// Its uid.
        uid: String,
        /// A node that has room for it now.
        node: String,
    },
    /// Say on a pod what people should know about it. Nothing needs to follow.
    Remark {
        /// The pod.
        pod: NamespacedName,
        /// Its uid.
        uid: String,
        /// What.
        remark: Remark,
    },
    /// Say on a VM that an increase was not granted whole. Nothing needs to follow.
    ScaleUpDenied {
        /// The VM's uid.
        uid: String,
        /// What was decided.
        decision: Box<Decision>,
    },
    /// Create a migration; exactly one [`Event::MigrationDone`] must follow.
    CreateMigration {
        /// Names the call.
        id: CallId,
        /// What to create.
        migration: NewMigration,
    },
    /// Delete a migration; exactly one [`Event::MigrationDone`] must follow.
    DeleteMigration {
        /// Names the call.
        id: CallId,
        /// The migration.
        migration: NamespacedName,
        /// Its uid, without which it must not be deleted.
        uid: String,
        /// Why.
        cause: RemovalCause,
    },
    /// Say on a VM that it is being moved, and why. Nothing needs to follow.
    MigrationTriggered {
        /// The VM's uid, if the VM is known.
        vm_uid: Option<String>,
        /// The node it leaves.
        node: String,
        /// The pressure there.
        pressure: Pressure,
        /// Who leaves.
        picked: Box<Picked>,
    },
    /// Say of a node what people should know. Nothing needs to follow.
    NodeNote {
        /// The node.
        node: String,
        /// What.
        note: NodeNote,
    },
}

impl Action {
    /// Whether it reads or changes an object that decisions rest on.
    #[must_use]
    pub const fn is_call(&self) -> bool {
        matches!(
            self,
            Self::WriteVm(_)
                | Self::ReadVm { .. }
                | Self::Bind { .. }
                | Self::ReadPod { .. }
                | Self::CreateMigration { .. }
                | Self::DeleteMigration { .. }
        )
    }
}

/// The answer to one HTTP request.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Answer {
    /// The request.
    pub ticket: TicketId,
    /// The pod's node, once it is known.
    pub node: Option<String>,
    /// A permit, or the refusal.
    #[serde(serialize_with = "show_result")]
    pub result: Result<PluginResponse, PermitRefusal>,
    /// What was decided, if it came so far.
    pub decision: Option<Box<Decision>>,
    /// Whether this is news: a change of what is held, or a denial not reported lately.
    pub news: bool,
}

fn show_result<S: serde::Serializer>(
    result: &Result<PluginResponse, PermitRefusal>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    match result {
        Ok(response) => response.serialize(serializer),
        Err(refusal) => serializer.collect_str(refusal),
    }
}

/// One compare-and-set of a VM's three scaling annotations.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct VmWrite {
    /// Names the call.
    pub id: CallId,
    /// The VM.
    pub vm: NamespacedName,
    /// The version it applies to, and to no other.
    pub base: u64,
    /// The approved annotation at that version.
    pub approved_before: Option<String>,
    /// Whether the object has a map of annotations at that version.
    pub has_annotations: bool,
    /// New scaling-unit.
    pub unit: String,
    /// New resources-requested.
    pub requested: String,
    /// New resources-approved.
    pub approved: String,
}

impl Hash for VmWrite {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        // The id names the call and says nothing of it.
        (&self.vm, self.base, &self.approved_before).hash(hasher);
        (&self.unit, &self.requested, &self.approved).hash(hasher);
        self.has_annotations.hash(hasher);
    }
}

impl VmWrite {
    /// The JSON patch. The test of the version makes it apply once or never, however late it
    /// arrives: without it a write given up as lost could still raise the approved size after the
    /// room was granted to another VM.
    #[must_use]
    pub fn patch(&self) -> Vec<u8> {
        let (version, [unit, requested, approved]) = (self.base.to_string(), &*PATHS);
        let mut operations = Vec::with_capacity(6);
        operations.push(Operation::Test {
            path: "/metadata/resourceVersion",
            value: &version,
        });
        if let Some(before) = &self.approved_before {
            let (path, value) = (approved.as_str(), before.as_str());
            operations.push(Operation::Test { path, value });
        }
        if !self.has_annotations {
            let path = "/metadata/annotations";
            let value = Added::Map {};
            operations.push(Operation::Add { path, value });
        }
        for (path, value) in [
            (unit, &self.unit),
            (requested, &self.requested),
            (approved, &self.approved),
        ] {
            let value = Added::Text(value);
            operations.push(Operation::Add { path, value });
        }
        // Texts alone: there is nothing in it that could fail to encode.
        serde_json::to_vec(&operations).unwrap_or_default()
    }

    /// The same, for whoever carries it out without a wire.
    #[must_use]
    pub fn operations(&self) -> Value {
        serde_json::from_slice(&self.patch()).unwrap_or_default()
    }
}

/// Where the three annotations are, as JSON pointers.
static PATHS: LazyLock<[String; 3]> = LazyLock::new(|| {
    [
        ANNOTATION_SCALING_UNIT,
        ANNOTATION_REQUESTED,
        ANNOTATION_APPROVED,
    ]
    .map(|key| format!("/metadata/annotations/{}", pointer_escape(key)))
});

#[derive(Serialize)]
#[serde(tag = "op", rename_all = "lowercase")]
enum Operation<'a> {
    Test { path: &'a str, value: &'a str },
    Add { path: &'a str, value: Added<'a> },
}

#[derive(Serialize)]
#[serde(untagged)]
enum Added<'a> {
    Text(&'a str),
    Map {},
}

/// Resources as they stand in an annotation: `{"vCPUs":"250m","mem":"1Gi"}`.
#[must_use]
pub fn annotation_text(resources: Resources) -> String {
    // Two numbers and two fixed names: there is nothing in it that could fail to encode.
    serde_json::to_string(&resources).unwrap_or_default()
}

/// The whole state, for people. Never used for decisions.
#[derive(Debug, Clone, Serialize)]
pub struct StateDump {
    /// When.
    pub now: Timestamp,
    /// Whether all lists are there.
    pub ready: bool,
    /// Nodes with their sums.
    pub nodes: BTreeMap<String, Value>,
    /// Pods by `namespace/name`.
    pub pods: BTreeMap<String, Value>,
    /// VMs by `namespace/name`.
    pub vms: BTreeMap<String, Value>,
    /// How many pods there are, shown or not.
    pub pods_total: usize,
    /// How many VMs there are, shown or not.
    pub vms_total: usize,
    /// Pods that wait for room, and bindings under way.
    pub placement: Value,
    /// Bindings that a kube-scheduler asked for, by the pod's uid, and pods it was told there is no
    /// room for.
    pub extender: Value,
    /// Requests, writes and reads under way.
    pub permits: Value,
    /// By VM, the last increase that was not granted whole and what limited it, unless one was
    /// since.
    pub refused: BTreeMap<String, Value>,
    /// Migrations, and who is left alone for now.
    pub migrations: Value,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_patch_is_one_compare_and_set() {
        let write = VmWrite {
            id: 1,
            vm: NamespacedName {
                namespace: "default".into(),
                name: "pg".into(),
            },
            base: 41,
            approved_before: None,
            has_annotations: false,
            unit: annotation_text(Resources::new(250, 1 << 30)),
            requested: annotation_text(Resources::new(1000, 4 << 30)),
            approved: annotation_text(Resources::new(750, 4 << 30)),
        };
        let notes = concat!(
            r#"{"op":"add","path":"/metadata/annotations/autoscaling.neon.tech~1scaling-unit","#,
            r#""value":"{\"vCPUs\":\"250m\",\"mem\":\"1Gi\"}"},"#,
            r#"{"op":"add","path":"/metadata/annotations/internal.autoscaling.neon.tech~1resources-requested","#,
            r#""value":"{\"vCPUs\":1,\"mem\":\"4Gi\"}"},"#,
            r#"{"op":"add","path":"/metadata/annotations/internal.autoscaling.neon.tech~1resources-approved","#,
            r#""value":"{\"vCPUs\":\"750m\",\"mem\":\"4Gi\"}"}]"#
        );
        let first = concat!(
            r#"[{"op":"test","path":"/metadata/resourceVersion","value":"41"},"#,
            r#"{"op":"add","path":"/metadata/annotations","value":{}},"#
        );
        assert_eq!(write.patch(), format!("{first}{notes}").into_bytes());
        let again = VmWrite {
            approved_before: Some("x".into()),
            has_annotations: true,
            ..write
        };
        let first = concat!(
            r#"[{"op":"test","path":"/metadata/resourceVersion","value":"41"},"#,
            r#"{"op":"test","path":"/metadata/annotations/internal.autoscaling.neon.tech~1resources-approved","value":"x"},"#
        );
        assert_eq!(again.patch(), format!("{first}{notes}").into_bytes());
    }
}
