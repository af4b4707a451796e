//! A VM for people: its size, the wanted size, why, and since when.

use std::collections::BTreeMap;

use protocol::annotations::{ANNOTATION_BOUNDS, LABEL_ENABLED, ScalingBounds};
use protocol::object::ObjectMeta;
use protocol::policy::{ANNOTATION_SET_VERSION, SET_KIND};
use protocol::quantity::Quantity;
use protocol::time::WallTime;
use protocol::units::{Bytes, MilliCpu, Resources};
use protocol::vm::{VirtualMachine, VmStatus};
use serde::Serialize;
use serde_json::Value;

use crate::decision::Decision;
use crate::output::{Cell, Table, age};
use crate::resize::Resize;
use crate::terminal::Tone;
use crate::view::units::{cores, memory, seconds_between};

/// One VM. An item of `bellows get vms -o json`. Members are added, never changed.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct VmView {
    pub(crate) namespace: String,
    pub(crate) name: String,
    /// Phase of the object. `Unreadable` if the object cannot be parsed, see `problem`.
    pub(crate) phase: String,
    /// Whether its guest should run.
    #[serde(skip)]
    pub(crate) alive: bool,
    pub(crate) node: Option<String>,
    pub(crate) pod: Option<String>,
    pub(crate) address: Option<String>,
    /// Ports of the guest at the address.
    pub(crate) ports: Vec<PortView>,
    /// CPU in thousandths of a core.
    pub(crate) cpu_milli: Sizes<u32>,
    pub(crate) memory_bytes: Sizes<u64>,
    /// Whether the agent sizes it.
    pub(crate) autoscaled: bool,
    /// Restarts of the guest.
    pub(crate) restarts: i32,
    /// Age of the object in seconds.
    pub(crate) age_s: Option<u64>,
    /// The agent's last decision.
    pub(crate) decision: Option<Decision>,
    pub(crate) last_resize: Option<LastResize>,
    /// What is wrong or what the VM waits for. `None` if nothing.
    pub(crate) problem: Option<String>,
    /// Version of the monitor that runs in the guest. `None` if it is unknown.
    pub(crate) monitor_version: Option<String>,
    /// Set that it is a member of.
    pub(crate) set: Option<MemberOf>,
}

/// The set of a member.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct MemberOf {
    pub(crate) name: String,
    /// Version of the template that the member was made from. Empty if it is unknown.
    pub(crate) version: String,
}

impl MemberOf {
    fn of(meta: &ObjectMeta) -> Option<Self> {
        let owner = meta.owner_of_kind(SET_KIND)?;
        let version = meta.annotations.get(ANNOTATION_SET_VERSION);
        Some(Self {
            name: owner.name.clone(),
            version: version.cloned().unwrap_or_default(),
        })
    }
}

/// Data about VMs beside their objects.
#[derive(Debug, Clone, Default)]
pub(crate) struct Beside {
    /// The agent's last decisions, by `namespace/name`.
    pub(crate) decisions: BTreeMap<String, Decision>,
    /// Resizes, oldest first.
    pub(crate) resizes: Vec<Resize>,
    /// What runner pods wait for, by pod.
    pub(crate) waiting: BTreeMap<String, String>,
    pub(crate) now: WallTime,
}

/// Views of objects, in their order.
pub(crate) fn views(objects: &[Value], beside: &Beside) -> Vec<VmView> {
    let view = |object| VmView::new(object, beside);
    objects.iter().map(view).collect()
}

/// A port of the guest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct PortView {
    /// May be empty.
    pub(crate) name: String,
    pub(crate) port: i32,
}

/// Sizes of one resource of a VM.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub(crate) struct Sizes<T> {
    /// Size of the guest, from the object's status.
    pub(crate) now: Option<T>,
    pub(crate) want: T,
    /// Lower bound in force.
    pub(crate) min: T,
    /// Upper bound in force.
    pub(crate) max: T,
}

/// Summary of the last resize.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct LastResize {
    /// Seconds since it began.
    pub(crate) age_s: u64,
    /// Whether the guest has the size.
    pub(crate) complete: bool,
    /// Duration so far, in microseconds.
    pub(crate) total_us: u64,
    /// Old and new size.
    pub(crate) change: String,
}

impl VmView {
    /// A view of an object. An object that cannot be parsed gets a view with that problem.
    pub(crate) fn new(object: &Value, beside: &Beside) -> Self {
        match serde_json::from_value::<VirtualMachine>(object.clone()) {
            Ok(vm) => Self::of(&vm, beside),
            Err(error) => Self::unreadable(object, &error.to_string(), beside.now),
        }
    }

    fn of(vm: &VirtualMachine, beside: &Beside) -> Self {
        let status = vm.status.clone().unwrap_or_default();
        let guest = &vm.spec.guest;
        let (min, max) = bounds(vm);
        let want = guest.in_use();
        let key = vm.metadata.key();
        let now = beside.now;
        let pod = format!("{}/{}", vm.metadata.namespace, status.pod_name);
        let waits = beside
            .waiting
            .get(&pod)
            .filter(|_| !status.phase.is_alive())
            .cloned();
        Self {
            namespace: vm.metadata.namespace.clone(),
            name: vm.metadata.name.clone(),
            phase: if is_stopped(&status) {
                STOPPED.to_owned()
            } else {
                status.phase.as_str().to_owned()
            },
            alive: status.phase.is_alive(),
            node: some(status.node),
            pod: some(status.pod_name),
            address: some(status.pod_ip),
            ports: guest
                .ports
                .iter()
                .map(|port| PortView {
                    name: port.name.clone(),
                    port: port.port,
                })
                .collect(),
            cpu_milli: Sizes {
                now: status.cpus.map(|cpu| cpu.0),
                want: want.cpu.0,
                min: min.cpu.0,
                max: max.cpu.0,
            },
            memory_bytes: Sizes {
                now: status.memory_size.and_then(|memory| memory.as_u64()),
                want: want.mem.0,
                min: min.mem.0,
                max: max.mem.0,
            },
            autoscaled: vm.metadata.label_is_true(LABEL_ENABLED),
            restarts: status.restart_count,
            age_s: age_of(&vm.metadata, now),
            decision: beside.decisions.get(&key).cloned(),
            last_resize: beside
                .resizes
                .iter()
                .rev()
                .find(|resize| resize.vm == key)
                .map(|resize| LastResize {
                    age_s: seconds_between(resize.start_unix_us, now),
                    complete: resize.is_complete(),
                    total_us: resize.total_us,
                    change: resize.change.clone(),
                }),
            problem: status
                .conditions
                .iter()
                .find(|condition| condition.kind == "Degraded" && condition.status == "True")
                .map(|condition| condition.message.clone())
                .filter(|_| !status.phase.is_alive())
                .or(waits),
            monitor_version: None,
            set: MemberOf::of(&vm.metadata),
        }
    }

    fn unreadable(object: &Value, why: &str, now: WallTime) -> Self {
        let text = |name: &str| {
            object["metadata"][name]
                .as_str()
                .unwrap_or_default()
                .to_owned()
        };
        let meta: ObjectMeta =
            serde_json::from_value(object["metadata"].clone()).unwrap_or_default();
        Self {
            namespace: text("namespace"),
            name: text("name"),
            phase: "Unreadable".into(),
            alive: false,
            node: None,
            pod: None,
            address: None,
            ports: Vec::new(),
            cpu_milli: Sizes::default(),
            memory_bytes: Sizes::default(),
            autoscaled: false,
            restarts: 0,
            age_s: age_of(&meta, now),
            decision: None,
            last_resize: None,
            problem: Some(why.to_owned()),
            monitor_version: None,
            set: MemberOf::of(&meta),
        }
    }

    pub(crate) fn key(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }

    /// Why the VM has its size, in a few words.
    pub(crate) fn reason(&self) -> String {
        match (&self.problem, &self.decision) {
            (Some(problem), _) => problem.clone(),
            (None, Some(decision)) => decision.in_short(),
            (None, None) if !self.autoscaled => "not autoscaled".into(),
            (None, None) => "-".into(),
        }
    }
}

/// The bounds in force: those of the annotation if it can be parsed, else the object's.
fn bounds(vm: &VirtualMachine) -> (Resources, Resources) {
    let guest = &vm.spec.guest;
    let given = vm
        .metadata
        .annotations
        .get(ANNOTATION_BOUNDS)
        .and_then(|text| serde_json::from_str::<ScalingBounds>(text).ok());
    let leaf = |cpu: MilliCpu, mem: Quantity| Resources {
        cpu,
        mem: Bytes(mem.as_u64().unwrap_or(0)),
    };
    given.map_or_else(
        || (guest.smallest(), guest.largest()),
        |bounds| {
            (
                leaf(bounds.min.cpu, bounds.min.mem),
                leaf(bounds.max.cpu, bounds.max.mem),
            )
        },
    )
}

fn some(text: String) -> Option<String> {
    (!text.is_empty()).then_some(text)
}

fn age_of(meta: &ObjectMeta, now: WallTime) -> Option<u64> {
    meta.creation_timestamp.map(|at| seconds_between(at.0, now))
}

/// `now/want/max`. `now/max` would hide a resize in progress.
fn triple<T: Copy>(sizes: &Sizes<T>, show: impl Fn(T) -> String) -> String {
    let now = sizes.now.map_or_else(|| "-".into(), &show);
    format!("{now}/{}/{}", show(sizes.want), show(sizes.max))
}

/// Shown in place of the phase of a VM that is off on request.
const STOPPED: &str = "Stopped";

fn is_stopped(status: &VmStatus) -> bool {
    let mut conditions = status.conditions.iter();
    conditions.any(|one| one.kind == STOPPED && one.status == "True")
}

fn phase_tone(phase: &str) -> Tone {
    match phase {
        "Running" => Tone::Good,
        "Failed" | "Unreadable" => Tone::Bad,
        "Succeeded" | STOPPED => Tone::Dim,
        _ => Tone::Warn,
    }
}

pub(crate) fn phase_cell(phase: &str) -> Cell {
    let shown = if phase.is_empty() { "New" } else { phase };
    Cell::toned(phase_tone(phase), shown)
}

/// The table of `bellows get vms`.
pub(crate) fn table(vms: &[VmView], with_namespace: bool, wide: bool) -> Table {
    let mut header = vec![
        "NAME",
        "PHASE",
        "CPU NOW/WANT/MAX",
        "MEM NOW/WANT/MAX",
        "ADDRESS",
        "LAST RESIZE",
        "REASON",
    ];
    if with_namespace {
        header.insert(0, "NAMESPACE");
    }
    if wide {
        header.extend(["NODE", "POD", "PORTS", "RESTARTS", "AGE", "MONITOR"]);
    }
    let mut table = Table::new(&header);
    for vm in vms {
        let mut row: Vec<Cell> = Vec::with_capacity(header.len());
        if with_namespace {
            row.push(vm.namespace.clone().into());
        }
        let dash = || "-".to_owned();
        row.extend([
            vm.name.clone().into(),
            phase_cell(&vm.phase),
            triple(&vm.cpu_milli, cores).into(),
            triple(&vm.memory_bytes, memory).into(),
            vm.address.clone().unwrap_or_else(dash).into(),
            vm.last_resize
                .as_ref()
                .map_or_else(dash, |resize| format!("{} ago", age(resize.age_s)))
                .into(),
            vm.reason().into(),
        ]);
        if wide {
            let ports: Vec<String> = vm.ports.iter().map(|port| port.port.to_string()).collect();
            row.extend([
                vm.node.clone().unwrap_or_else(dash).into(),
                vm.pod.clone().unwrap_or_else(dash).into(),
                if ports.is_empty() {
                    dash()
                } else {
                    ports.join(",")
                }
                .into(),
                vm.restarts.to_string().into(),
                vm.age_s.map_or_else(dash, age).into(),
                vm.monitor_version.clone().unwrap_or_else(dash).into(),
            ]);
        }
        table.row(row);
    }
    table
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::terminal::Paint;
    use serde_json::json;

    /// An autoscaled VM half way through a growth.
    pub(crate) fn object() -> Value {
        json!({
            "apiVersion": "vm.neon.tech/v1",
            "kind": "VirtualMachine",
            "metadata": {
                "name": "pg", "namespace": "default", "uid": "u", "creationTimestamp": "2026-01-02T03:00:00Z",
                "labels": {"autoscaling.neon.tech/enabled": "true"},
            },
            "spec": {"guest": {
                "cpus": {"min": "250m", "max": 2, "use": 1},
                "memorySlotSize": "1Gi",
                "memorySlots": {"min": 1, "max": 8, "use": 4},
                "rootDisk": {"image": "bellows/postgres:15"},
                "ports": [{"name": "postgres", "port": 5432}],
            }},
            "status": {
                "phase": "Scaling", "podName": "pg-abcde", "podIP": "127.7.1.1", "node": "host-a",
                "cpus": "250m", "memorySize": "1Gi", "restartCount": 0,
            },
        })
    }

    pub(crate) fn resizes() -> Vec<Resize> {
        serde_json::from_value(json!([{
            "vm": "default/pg", "revision": 7, "start_unix_us": 1_767_323_000_000_000_i64, "total_us": 163_000,
            "change": "250m CPU / 1Gi -> 1 CPU / 4Gi", "stages": [{"stage": "permit", "start_unix_us": 0, "duration_us": 3_100}],
        }]))
        .unwrap()
    }

    pub(crate) fn now() -> WallTime {
        WallTime::parse("2026-01-02T03:04:05Z").unwrap()
    }

    fn beside() -> Beside {
        let decisions = [("default/pg".to_owned(), crate::decision::sample())].into();
        let waiting = [("default/pg-abcde".to_owned(), "no node has room".to_owned())].into();
        Beside {
            decisions,
            resizes: resizes(),
            waiting,
            now: now(),
        }
    }

    pub(crate) fn sample_views() -> Vec<VmView> {
        let mut plain = object();
        plain["metadata"] = json!({"name": "fixed", "namespace": "other"});
        plain["status"] =
            json!({"phase": "Running", "cpus": 1, "memorySize": "4Gi", "podIP": "127.7.1.2"});
        let mut broken = object();
        broken["metadata"]["name"] = json!("bad");
        broken["spec"]["guest"]["cpus"]["use"] = json!("lots");
        vec![
            VmView::new(&object(), &beside()),
            VmView::new(&plain, &beside()),
            VmView::new(&broken, &beside()),
        ]
    }

    #[test]
    fn sizes_reason_and_age_are_in_one_row() {
        insta::assert_snapshot!(
            "get_vms",
            table(&sample_views(), false, false)
                .lines(Paint::PLAIN)
                .join("\n")
        );
        insta::assert_snapshot!(
            "get_vms_wide",
            table(&sample_views(), true, true)
                .lines(Paint::PLAIN)
                .join("\n")
        );
    }

    #[test]
    fn json_shape_is_stable() {
        insta::assert_snapshot!(
            "get_vms_json",
            serde_json::to_string_pretty(&sample_views()[0]).unwrap()
        );
    }

    #[test]
    fn unreadable_object_has_its_own_row() {
        let views = sample_views();
        assert_eq!(views[2].phase, "Unreadable");
        assert!(views[2].reason().contains("lots"), "{}", views[2].reason());
        assert_eq!(views[1].reason(), "not autoscaled");
    }

    #[test]
    fn vm_that_does_not_run_shows_its_wait_reason() {
        let mut object = object();
        object["status"]["phase"] = json!("Pending");
        assert_eq!(VmView::new(&object, &beside()).reason(), "no node has room");
        object["status"]["conditions"] =
            json!([{"type": "Degraded", "status": "True", "message": "it fell over"}]);
        assert_eq!(VmView::new(&object, &beside()).reason(), "it fell over");
        // Conditions survive a restart. A running VM is judged by its decision.
        object["status"]["phase"] = json!("Running");
        assert_eq!(VmView::new(&object, &beside()).problem, None);
    }

    #[test]
    fn readable_bounds_of_the_annotation_win() {
        let mut object = object();
        let key = protocol::annotations::ANNOTATION_BOUNDS;
        let text = r#"{"min":{"cpu":0.5,"mem":"2Gi"},"max":{"cpu":1,"mem":"3Gi"}}"#;
        object["metadata"]["annotations"] = json!({key: text});
        let view = VmView::new(&object, &beside());
        assert_eq!((view.cpu_milli.min, view.cpu_milli.max), (500, 1000));
        assert_eq!(view.memory_bytes.max, 3 << 30);
        object["metadata"]["annotations"] = json!({key: "{"});
        assert_eq!(VmView::new(&object, &beside()).cpu_milli.max, 2000);
    }
}
