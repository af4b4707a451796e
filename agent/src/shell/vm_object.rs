//! What the agent reads off a VM object: subject and settings of its task, its choice of a policy,
//! and its figures.

use std::sync::Arc;

use daemon_kit::clock::Clock;
use kube::api::DynamicObject;
use protocol::annotations::{
    ANNOTATION_BOUNDS, LABEL_ENDPOINT_ID, LABEL_PROJECT_ID, ScalingBounds,
};
use protocol::fleet::KEY_SCHEDULE;
use protocol::permit::NamespacedName;
use protocol::policy::{KEY_POLICY, LABELS_MAX};
use protocol::quantity::Quantity;
use protocol::time::{Timestamp, WallTime};
use protocol::vm::{VirtualMachine, VmPhase};

use super::context::Subject;
use super::policy::VmChoice;
use super::vm_feed::VmFeed;
use super::vm_metrics::{VmFigures, VmLabels};
use crate::core::revision::StampedRevision;
use crate::core::vm::{Placement, VmInfo};
use crate::core::{ScalingConfig, VmUpdate};

/// Longest time between a change and its whole-second stamp, microseconds.
const STAMP_STEP_US: i64 = 999_999;

pub(super) fn key_of(object: &DynamicObject) -> NamespacedName {
    NamespacedName {
        namespace: object.metadata.namespace.clone().unwrap_or_default(),
        name: object.metadata.name.clone().unwrap_or_default(),
    }
}

pub(super) fn subject_of(
    key: &NamespacedName,
    object: &DynamicObject,
    placement: Placement,
) -> Subject {
    Subject {
        pod: NamespacedName {
            namespace: key.namespace.clone(),
            name: placement.pod_name,
        },
        vm: key.clone(),
        uid: object.metadata.uid.clone().unwrap_or_default(),
        pod_ip: placement.pod_ip,
        vsock_cid: placement.vsock_cid,
    }
}

pub(super) fn with_info(
    vm: VirtualMachine,
    default: &ScalingConfig,
) -> Result<(VirtualMachine, VmInfo), String> {
    let info = VmInfo::from_object(&vm, default).map_err(|error| error.to_string())?;
    Ok((vm, info))
}

fn labels_of(key: &NamespacedName, vm: &VirtualMachine) -> VmLabels {
    let label = |name: &str| vm.metadata.labels.get(name).cloned().unwrap_or_default();
    VmLabels {
        vm_namespace: key.namespace.clone(),
        vm_name: key.name.clone(),
        endpoint_id: label(LABEL_ENDPOINT_ID),
        project_id: label(LABEL_PROJECT_ID),
    }
}

pub(super) fn feed_of(
    clock: &Clock,
    key: &NamespacedName,
    vm: &VirtualMachine,
    info: VmInfo,
    arrived: Timestamp,
) -> VmFeed {
    let labels = labels_of(key, vm);
    let current_revision = info.current_revision.map(|current| StampedRevision {
        revision: current.revision,
        at: stamp_of(clock, current.updated_at, arrived),
    });
    let is_pre_migrating = vm
        .status
        .as_ref()
        .is_some_and(|status| status.phase == VmPhase::PreMigrating);
    VmFeed {
        update: VmUpdate {
            info,
            current_revision,
            is_pre_migrating,
        },
        endpoint_id: labels.endpoint_id.clone(),
        labels,
        schedule: vm
            .metadata
            .annotations
            .get(KEY_SCHEDULE)
            .map(|text| text.as_str().into()),
        choice: None,
        arrived,
    }
}

pub(super) fn choice_of(vm: &VirtualMachine) -> Arc<VmChoice> {
    let labels = vm.metadata.labels.iter().take(LABELS_MAX);
    Arc::new(VmChoice {
        annotation: vm
            .metadata
            .annotations
            .get(KEY_POLICY)
            .map(|name| name.as_str().into()),
        labels: labels
            .map(|(k, v)| (k.as_str().into(), v.as_str().into()))
            .collect(),
    })
}

/// The controller's stamp on our clock. It has whole seconds only. Within its second, the time of
/// arrival is closer.
fn stamp_of(clock: &Clock, stamp: WallTime, arrived: Timestamp) -> Timestamp {
    let age = clock.wall().0.saturating_sub(stamp.0);
    let at = |age: i64| {
        Timestamp(
            clock
                .now()
                .0
                .saturating_sub(u64::try_from(age).unwrap_or(0)),
        )
    };
    at(age).max(arrived.min(at(age.saturating_sub(STAMP_STEP_US).max(0))))
}

pub(super) fn figures_of(key: &NamespacedName, vm: &VirtualMachine) -> VmFigures {
    let guest = &vm.spec.guest;
    let status = vm.status.clone().unwrap_or_default();
    let of =
        |size: protocol::units::Resources| (Some(size.cpu.as_cores()), Some(size.mem.0 as f64));
    let bytes = |quantity: &Quantity| quantity.as_u64().map(|bytes| bytes as f64);
    let bounds: Option<ScalingBounds> = vm
        .metadata
        .annotations
        .get(ANNOTATION_BOUNDS)
        .and_then(|text| serde_json::from_str(text).ok());
    let leaf = |pick: fn(&ScalingBounds) -> protocol::annotations::BoundsLeaf| {
        bounds.as_ref().map(pick).map_or((None, None), |leaf| {
            (Some(leaf.cpu.as_cores()), bytes(&leaf.mem))
        })
    };
    let sizes = [
        ("spec_min", of(guest.smallest())),
        ("spec_max", of(guest.largest())),
        ("spec_use", of(guest.in_use())),
        (
            "status_use",
            (
                status.cpus.map(|cpu| cpu.as_cores()),
                status.memory_size.as_ref().and_then(bytes),
            ),
        ),
        ("autoscaling_min", leaf(|bounds| bounds.min)),
        ("autoscaling_max", leaf(|bounds| bounds.max)),
    ];
    VmFigures {
        labels: labels_of(key, vm),
        sizes: sizes
            .into_iter()
            .map(|(name, (cores, bytes))| (name, cores, bytes))
            .collect(),
        restarts: f64::from(status.restart_count),
        has_extra_ip: !status.extra_net_ip.is_empty(),
    }
}
