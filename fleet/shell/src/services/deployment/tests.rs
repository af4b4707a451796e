use protocol::parts::PartName;

use super::*;
use crate::workload::tests::{lock, turn};

const OLD: &str = "r.example:5000/bellows/neonvm-controller:0.1.0";
const SHARES: Shares = Shares {
    min_healthy_percent: 66,
    max_active_percent: 134,
};
const NOW: WallTime = WallTime(1_000_000);

fn of(part: PartName) -> Deployment {
    let kind = Kind::of(part).expect("a part of the control plane");
    let object = json!({
        "metadata": {"name": kind.name, "namespace": "neonvm-system", "resourceVersion": "7"},
        "spec": {
            "replicas": 3,
            "selector": {"matchLabels": {"name": kind.name}},
            "template": {"spec": {
                "initContainers": [{"name": "before", "image": OLD}],
                "containers": [
                    {"name": "beside", "image": "other:1"},
                    {"name": kind.name, "image": OLD, "args": ["--leader-elect"]},
                ],
            }},
        },
        "status": {"availableReplicas": 2},
    });
    Deployment::new(object, kind)
}

/// The object as an API server has it after fields were applied.
fn applied(mut set: Deployment, fields: &Value) -> Deployment {
    let image = &fields["spec"]["template"]["spec"]["containers"][0]["image"];
    set.object["spec"]["template"]["spec"]["containers"][1]["image"] = image.clone();
    set.object["metadata"]["annotations"] = fields["metadata"]["annotations"].clone();
    set.object["metadata"]["managedFields"] = owners("bellows-fleet", set.kind.name);
    set
}

fn owners(manager: &str, name: &str) -> Value {
    let container = format!("k:{{\"name\":\"{name}\"}}");
    json!([{"manager": manager, "operation": "Apply", "fieldsV1": {"f:spec": {"f:template": {
        "f:spec": {"f:containers": {container: {".": {}, "f:image": {}}}},
    }}}}])
}

fn moved(part: PartName) -> Deployment {
    let set = of(part);
    let fields = set.forward(&turn("a", "d1"), SHARES, NOW);
    applied(set, &fields.expect("another image"))
}

/// Requirement: B23
#[test]
fn turn_applies_one_image_by_digest_and_the_shares_of_the_environment() {
    let set = of(PartName::Controller);
    let fields = set
        .forward(&turn("a", "d1"), SHARES, NOW)
        .expect("another image");
    let image = format!(
        "r.example:5000/bellows/neonvm-controller@sha256:{}",
        "a".repeat(64)
    );
    let expected = json!({
        "strategy": {"rollingUpdate": {"maxUnavailable": 1, "maxSurge": 1}},
        "template": {"spec": {
            "containers": [{"name": "neonvm-controller", "image": image}],
            "initContainers": [{"name": "before", "image": image}],
        }},
    });
    assert_eq!(fields["spec"], expected);
    assert_eq!(fields["metadata"]["resourceVersion"], "7");
    let moved = applied(set, &fields);
    assert_eq!(moved.set_at(), Some(NOW));
    assert!(
        moved.forward(&turn("a", "d1"), SHARES, NOW).is_none(),
        "it has it already"
    );
}

/// Requirement: B23
#[test]
fn budget_of_the_scheduler_stays_as_it_is_installed() {
    let set = of(PartName::Scheduler);
    let fields = set
        .forward(&turn("a", "d1"), SHARES, NOW)
        .expect("another image");
    assert!(fields["spec"].get("strategy").is_none(), "{fields}");
    let fields = of(PartName::Fleet).forward(&turn("a", "d1"), SHARES, NOW);
    assert!(fields.expect("fields")["spec"]["strategy"].is_object());
}

/// Requirement: B23
#[test]
fn part_goes_back_to_the_image_before_and_only_from_its_own() {
    let moved = moved(PartName::Controller);
    let fields = moved
        .backward(&turn("a", "d1"), SHARES, NOW)
        .expect("a known image");
    let fields = fields.expect("another image");
    let containers = &fields["spec"]["template"]["spec"]["containers"];
    assert_eq!(containers[0]["image"], OLD);
    let other = moved.backward(&turn("b", "d1"), SHARES, NOW);
    assert_eq!(other, Ok(None), "it is not its own");
    let mut unknown = moved;
    unknown.object["metadata"]["annotations"] = Value::Null;
    let problem = unknown
        .backward(&turn("a", "d1"), SHARES, NOW)
        .expect_err("unknown");
    assert!(problem.contains("is not known"), "{problem}");
}

/// Requirement: B23
#[test]
fn image_of_another_writer_holds_the_control_plane_until_a_person_orders() {
    let own = lock("d1", DeploymentKind::User);
    let is_held = |set: &Deployment, lock: &Lock| set.has_drifted(Some(lock), None, None);
    assert!(
        !is_held(&of(PartName::Controller), &own),
        "the fleet wrote none so far"
    );
    let set = moved(PartName::Controller);
    assert!(!is_held(&set, &own), "it is as written");
    let mut other = set.clone();
    let containers = &mut other.object["spec"]["template"]["spec"]["containers"];
    containers[1]["image"] = json!("bellows/neonvm-controller:0.2.0");
    assert!(is_held(&other, &own));
    assert!(is_held(&other, &lock("d2", DeploymentKind::HealthRepair)));
    assert!(!is_held(&other, &lock("d2", DeploymentKind::User)));
    let mut taken = set.clone();
    taken.object["metadata"]["managedFields"] = owners("helm", "neonvm-controller");
    assert!(is_held(&taken, &own), "the same image by another writer");
    let last = InstancePart::kept(&turn("a", "d1"), NOW);
    taken.object["metadata"]["annotations"] = Value::Null;
    let held = taken.has_drifted(Some(&own), Some(&turn("a", "d1")), Some(&last));
    assert!(held, "a replaced object has lost the annotations");
}

/// Requirement: B23
#[test]
fn deployment_that_kubernetes_does_not_roll_is_not_the_fleets() {
    let with = |pointer: &str, value: Value| {
        let mut set = of(PartName::Controller);
        let (parent, name) = pointer.rsplit_once('/').expect("a member");
        set.object.pointer_mut(parent).expect(parent)[name] = value;
        set.problem()
    };
    assert_eq!(of(PartName::Controller).problem(), None);
    let recreate = with("/spec/strategy", json!({"type": "Recreate"}));
    assert!(recreate.is_some_and(|text| text.contains("take RollingUpdate")));
    let none = with("/spec/replicas", json!(0));
    assert!(none.is_some_and(|text| text.contains("no replicas")));
    let other = with("/spec/template/spec/containers", json!([]));
    assert!(other.is_some_and(|text| text.contains("no container neonvm-controller")));
}

#[test]
fn deployment_is_read_with_its_replicas_and_selector() {
    let set = of(PartName::Controller);
    assert_eq!((set.replicas(), set.available()), (3, 2));
    assert_eq!(set.pod_labels(), "name=neonvm-controller");
    assert_eq!(set.set_at(), None, "the fleet did not set its image");
    assert_eq!(set.sha256(), None);
    assert_eq!(moved(PartName::Controller).sha256(), Some("a".repeat(64)));
}
