//! `bellows vmset list` and `get`.

use clap::Args;
use protocol::object::ObjectMeta;
use protocol::policy::{ANNOTATION_SET_VERSION, LABEL_SET, Rates, SET_KIND, Upgrade, VmSet};
use protocol::vm::VirtualMachine;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::api::Kind;
use crate::args::{NamespaceArgs, SetArgs};
use crate::context::Context;
use crate::fail::Outcome;
use crate::output::{Cell, Format, Table, print_value};
use crate::terminal::{err, out};

/// Phase of a member that is being deleted.
const LEAVING: &str = "Deleting";

/// List the sets of VMs.
#[derive(Debug, Clone, Args)]
pub(crate) struct ListArgs {
    #[command(flatten)]
    namespace: NamespaceArgs,
    /// How to print it
    #[arg(short, long, value_enum, default_value_t, value_name = "FORMAT")]
    output: Format,
}

/// One set with its members.
#[derive(Debug, Clone, Args)]
pub(crate) struct GetArgs {
    #[command(flatten)]
    set: SetArgs,
    /// How to print it
    #[arg(short, long, value_enum, default_value_t, value_name = "FORMAT")]
    output: Format,
}

/// A set as the commands show it.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct SetView {
    pub(crate) namespace: String,
    pub(crate) name: String,
    /// Desired number of members.
    pub(crate) replicas: u32,
    /// Members that exist.
    pub(crate) members: u32,
    pub(crate) ready: u32,
    pub(crate) updated: u32,
    /// Version of new members.
    pub(crate) version: Option<u32>,
    /// Version that members should have.
    pub(crate) desired_version: Option<u32>,
    /// Version of the template in the spec.
    pub(crate) newest: Option<u32>,
    pub(crate) previous: Option<u32>,
    pub(crate) upgrade: Option<Upgrade>,
    pub(crate) problem: Option<String>,
    pub(crate) rates: Rates,
    /// Whether the status is about the newest spec.
    #[serde(skip)]
    pub(super) is_observed: bool,
}

impl SetView {
    pub(crate) fn of(object: &Value) -> Self {
        let set = VmSet::deserialize(object).unwrap_or_default();
        let status = set.status.unwrap_or_default();
        let mut conditions = status.conditions.into_iter();
        let problem = conditions.find(|one| one.kind == "Degraded" && one.status == "True");
        Self {
            namespace: set.metadata.namespace,
            name: set.metadata.name,
            replicas: set.spec.replicas,
            members: status.replicas,
            ready: status.ready_replicas,
            updated: status.updated_replicas,
            version: status.version,
            desired_version: set.spec.version.or(status.version),
            newest: status.newest,
            previous: status.previous,
            upgrade: status.upgrade,
            problem: problem.map(|one| one.message),
            rates: set.spec.rates,
            is_observed: status.observed_generation == set.metadata.generation,
        }
    }

    pub(crate) fn key(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }

    /// Why the upgrade goes no further.
    pub(crate) fn halted(&self) -> Option<&str> {
        self.upgrade.as_ref()?.halted.as_deref()
    }

    /// Whether all members are there, up and of the desired version.
    pub(crate) fn is_whole(&self) -> bool {
        let counts = [self.members, self.ready, self.updated];
        let is_settled = self.upgrade.is_none() && self.version == self.desired_version;
        counts.iter().all(|count| *count == self.replicas) && is_settled
    }

    /// What goes on, in a few words.
    pub(crate) fn state(&self) -> String {
        match (&self.upgrade, self.halted(), &self.problem) {
            (_, Some(why), _) => format!("halted: {why}"),
            (_, None, Some(problem)) => problem.clone(),
            (Some(upgrade), None, None) => format!("upgrade to version {}", upgrade.to),
            (None, None, None) if self.is_whole() => "whole".to_owned(),
            (None, None, None) => "changes".to_owned(),
        }
    }

    pub(crate) fn version_text(&self) -> String {
        let text =
            |version: Option<u32>| version.map_or_else(|| "-".to_owned(), |it| it.to_string());
        if self.newest == self.version {
            text(self.version)
        } else {
            format!("{} (newest {})", text(self.version), text(self.newest))
        }
    }
}

/// A member as the commands show it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub(crate) struct MemberView {
    pub(crate) name: String,
    pub(crate) version: String,
    pub(crate) phase: String,
    pub(crate) up: bool,
    pub(crate) address: String,
    pub(crate) node: String,
}

impl MemberView {
    pub(crate) fn of(object: &Value) -> Self {
        let vm = VirtualMachine::deserialize(object).unwrap_or_default();
        let version = vm.metadata.annotations.get(ANNOTATION_SET_VERSION).cloned();
        let status = vm.status.unwrap_or_default();
        let mut conditions = status.conditions.iter();
        let is_booted = conditions.any(|one| one.kind == "Booted" && one.status == "True");
        let phase = if vm.metadata.deletion_timestamp.is_some() {
            LEAVING
        } else {
            status.phase.as_str()
        };
        Self {
            name: vm.metadata.name,
            version: version.unwrap_or_default(),
            phase: phase.to_owned(),
            up: is_booted && status.phase.is_alive(),
            address: status.pod_ip,
            node: status.node,
        }
    }

    pub(crate) fn is_leaving(&self) -> bool {
        self.phase == LEAVING
    }
}

/// Whether the VM object is owned by the set.
pub(crate) fn is_member(vm: &Value, set: &Value) -> bool {
    let meta = ObjectMeta::deserialize(&vm["metadata"]).unwrap_or_default();
    let owner = meta.owner_of_kind(SET_KIND);
    owner.is_some_and(|owner| set["metadata"]["uid"] == owner.uid.as_str())
}

pub(super) async fn list(context: &Context, args: &ListArgs) -> Outcome {
    let api = context.api().await?;
    let namespace = args.namespace.chosen();
    let sets = api.list(Kind::VmSet, namespace).await?;
    let views: Vec<SetView> = sets.iter().map(SetView::of).collect();
    if matches!(args.output, Format::Json | Format::Yaml) {
        return print_value(args.output, &json!({"items": views}));
    }
    if views.is_empty() {
        let place = namespace.map_or_else(String::new, |name| format!(" in namespace {name}"));
        err(&format!("no sets{place}; see: bellows vmset create --help"));
        return Ok(());
    }
    set_table(&views).print(context.paint());
    Ok(())
}

fn set_table(views: &[SetView]) -> Table {
    let mut table = Table::new(&["NAMESPACE", "NAME", "UP/WANT", "VERSION", "STATE"]);
    for view in views {
        table.row(vec![
            Cell::from(view.namespace.clone()),
            view.name.clone().into(),
            format!("{}/{}", view.ready, view.replicas).into(),
            view.version_text().into(),
            view.state().into(),
        ]);
    }
    table
}

pub(super) async fn get(context: &Context, args: &GetArgs) -> Outcome {
    let api = context.api().await?;
    let (namespace, name) = args.set.key();
    let set = api.get(Kind::VmSet, namespace, name).await?;
    let query = format!("?labelSelector={LABEL_SET}%3D{name}");
    let vms = api.list_by(Kind::Vm, Some(namespace), &query).await?;
    let members: Vec<MemberView> = vms
        .iter()
        .filter(|vm| is_member(vm, &set))
        .map(MemberView::of)
        .collect();
    let view = SetView::of(&set);
    if matches!(args.output, Format::Json | Format::Yaml) {
        let mut shown = json!(view);
        shown["memberList"] = json!(members);
        return print_value(args.output, &shown);
    }
    set_table(&[view]).print(context.paint());
    out("");
    let mut table = Table::new(&["MEMBER", "VERSION", "PHASE", "UP", "ADDRESS", "NODE"]);
    for member in members {
        let up = if member.up { "yes" } else { "no" };
        table.row(vec![
            Cell::from(member.name),
            member.version.into(),
            member.phase.into(),
            up.into(),
            member.address.into(),
            member.node.into(),
        ]);
    }
    table.print(context.paint());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(status: &Value) -> Value {
        json!({
            "metadata": {"name": "web", "namespace": "a", "uid": "u", "generation": 2},
            "spec": {"replicas": 2},
            "status": status,
        })
    }

    #[test]
    fn state_of_a_set_names_what_goes_on() {
        let whole = json!({
            "observedGeneration": 2, "replicas": 2, "readyReplicas": 2, "updatedReplicas": 2,
            "version": 1, "newest": 2,
        });
        let view = SetView::of(&set(&whole));
        assert!(view.is_whole() && view.is_observed);
        assert_eq!(view.state(), "whole");
        assert_eq!(view.version_text(), "1 (newest 2)");
        let with = |members: Value| {
            let mut status = whole.clone();
            for (name, value) in members.as_object().expect("an object") {
                status[name] = value.clone();
            }
            SetView::of(&set(&status))
        };
        let upgrade = with(json!({"upgrade": {"to": 2, "ordinal": 0}}));
        assert_eq!(upgrade.state(), "upgrade to version 2");
        let halted = with(json!({"upgrade": {"to": 2, "halted": "web-0 has ended"}}));
        assert_eq!(halted.state(), "halted: web-0 has ended");
        let starting = with(json!({"readyReplicas": 1}));
        assert!(!starting.is_whole());
        assert_eq!(starting.state(), "changes");
        assert!(!with(json!({"observedGeneration": 1})).is_observed);
    }

    #[test]
    fn member_is_a_vm_that_the_set_owns() {
        let vm = |uid: &str| {
            let owner = json!({"kind": SET_KIND, "name": "web", "uid": uid});
            json!({
                "metadata": {
                    "name": "web-0",
                    "ownerReferences": [owner],
                    "annotations": {ANNOTATION_SET_VERSION: "3"},
                },
                "status": {
                    "phase": "Running", "podIP": "10.0.0.1", "node": "n",
                    "conditions": [{"type": "Booted", "status": "True"}],
                },
            })
        };
        assert!(is_member(&vm("u"), &set(&json!({}))));
        assert!(!is_member(&vm("other"), &set(&json!({}))));
        let view = MemberView::of(&vm("u"));
        assert_eq!((view.version.as_str(), view.up), ("3", true));
    }
}
