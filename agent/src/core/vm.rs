//! What the agent reads from a VirtualMachine object, and whether the VM is this node's to scale.
//! Source: docs/compatibility/agent.md §1.

use protocol::annotations::{
    ANNOTATION_BOUNDS, ANNOTATION_CONFIG, ANNOTATION_VSOCK_CID, LABEL_ALWAYS_MIGRATE,
    LABEL_AUTO_MIGRATION, LABEL_ENABLED, ScalingBounds, VsockCidError, vsock_cid,
};
use protocol::mode::{KEY_MODE, Mode};
use protocol::quantity::Quantity;
use protocol::revision::RevisionWithTime;
use protocol::units::{Bytes, MilliCpu, Resources};
use protocol::vm::{VirtualMachine, VmPhase};
use serde::{Serialize, Serializer};
use serde_json::Value;

use super::config::{Problem, ScalingConfig, ScalingOverrides};

/// Smallest CPU bound accepted.
const MIN_CPU: MilliCpu = MilliCpu(50);
/// Largest CPU bound accepted.
const MAX_CPU: MilliCpu = MilliCpu(512_000);
/// Most slots a bound may name: the object's own counts are 16 bits wide.
const MAX_SLOTS: u64 = u16::MAX as u64;

/// Longest piece of an annotation shown in an error, characters.
const SHOWN: usize = 64;
/// Largest version of an object understood as a number.
const MAX_VERSION: u64 = protocol::journal::MAX_INTEGER.unsigned_abs();

/// CPU of a VM: `{"min":…,"max":…,"use":…}`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct CpuInfo {
    /// Least CPU, from the bounds annotation or else `spec.guest.cpus.min`.
    pub min: MilliCpu,
    /// Most CPU, from the bounds annotation or else `spec.guest.cpus.max`.
    pub max: MilliCpu,
    /// CPU in use, from `spec.guest.cpus.use`.
    pub r#use: MilliCpu,
}

/// Memory of a VM, in slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MemInfo {
    /// Fewest slots, from the bounds annotation or else `spec.guest.memorySlots.min`.
    pub min: u32,
    /// Most slots, from the bounds annotation or else `spec.guest.memorySlots.max`.
    pub max: u32,
    /// Slots in use, from `spec.guest.memorySlots.use`.
    pub r#use: u32,
    /// Bytes of a slot; not zero.
    pub slot_size: Bytes,
}

/// Scaling settings of a VM.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct VmConfig {
    /// The scheduler may migrate it.
    pub auto_migration_enabled: bool,
    /// The scheduler migrates it whenever it can, for tests.
    pub always_migrate: bool,
    /// It is autoscaled.
    pub scaling_enabled: bool,
    /// Its own settings, as annotated.
    #[serde(rename = "scalingConfig", skip_serializing_if = "Option::is_none")]
    pub overrides: Option<ScalingOverrides>,
    /// Its settings in force, of which only a mode other than the usual is shown.
    #[serde(
        rename = "mode",
        serialize_with = "mode_alone",
        skip_serializing_if = "does_all"
    )]
    pub scaling: ScalingConfig,
    /// The mode it says for itself, whatever its namespace says.
    #[serde(skip)]
    pub own_mode: Option<Mode>,
}

fn does_all(scaling: &ScalingConfig) -> bool {
    scaling.mode == Mode::Full
}

fn mode_alone<S: Serializer>(scaling: &ScalingConfig, serializer: S) -> Result<S::Ok, S::Error> {
    scaling.mode.serialize(serializer)
}

/// A VM as the core sees it: always valid.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct VmInfo {
    /// Name of the object.
    pub name: String,
    /// Namespace of the object.
    pub namespace: String,
    /// CPU bounds and CPU in use. The bounds annotation overrides the object's bounds.
    pub cpu: CpuInfo,
    /// Memory bounds and memory in use. The bounds annotation overrides the object's bounds.
    pub mem: MemInfo,
    /// Scaling settings, from the object's labels and annotations over the defaults.
    pub config: VmConfig,
    /// `status.currentRevision`: the newest revision that the VM has reached; `None` before the
    /// first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub current_revision: Option<RevisionWithTime>,
    /// What the guest is reported to have: `status.cpus` and `status.memorySize`.
    #[serde(skip)]
    pub actual: Option<Resources>,
    /// The newest revision on the object, wished or reached: numbers go on after it, so that none
    /// is used twice.
    #[serde(skip)]
    pub last_revision: i64,
    /// `metadata.resourceVersion`, where it is a number: later states of the object have larger
    /// ones.
    #[serde(skip)]
    pub version: Option<u64>,
}

/// Why an object cannot be scaled.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum VmError {
    /// The object itself does not read.
    #[error("the object does not decode: {0}")]
    Object(String),
    /// The bounds annotation does not read.
    #[error("annotation {ANNOTATION_BOUNDS} does not decode: {0}")]
    Bounds(String),
    /// A bound is zero, negative, uneven or too large.
    #[error("annotation {ANNOTATION_BOUNDS}: {0}")]
    BoundsValue(String),
    /// The config annotation does not read.
    #[error("annotation {ANNOTATION_CONFIG} does not decode: {0}")]
    Config(String),
    /// A setting breaks a rule.
    #[error("annotation {ANNOTATION_CONFIG}: {}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    ConfigValue(Vec<Problem>),
    /// The mode annotation is none.
    #[error("annotation {KEY_MODE} = {0:?}: must be \"observe\", \"grow\" or \"full\"")]
    Mode(String),
    /// The vsock annotation is no number of a device.
    #[error(transparent)]
    Vsock(#[from] VsockCidError),
    /// A size of the object is out of range.
    #[error("{0}")]
    Size(String),
}

impl VmInfo {
    /// Reads an object. `default` fills what its annotations leave out. A `use` outside the bounds
    /// is accepted: bounds may move first and the size follows.
    ///
    /// # Errors
    /// [`VmError`]: the object cannot be scaled until it changes.
    pub fn from_object(vm: &VirtualMachine, default: &ScalingConfig) -> Result<Self, VmError> {
        let guest = &vm.spec.guest;
        let slot_size = Bytes(guest.slot_bytes());
        if slot_size.0 == 0 {
            return Err(VmError::Size(
                "spec.guest.memorySlotSize must be above zero".into(),
            ));
        }
        let slots = |name: &str, count: i32| {
            u32::try_from(count)
                .ok()
                .filter(|count| u64::from(*count) <= MAX_SLOTS)
                .ok_or_else(|| {
                    VmError::Size(format!(
                        "spec.guest.memorySlots.{name} = {count}: must be from 0 to {MAX_SLOTS}"
                    ))
                })
        };
        vsock_cid(&vm.metadata.annotations)?;
        let mut cpu = CpuInfo {
            min: guest.cpus.min,
            max: guest.cpus.max,
            r#use: guest.cpus.r#use,
        };
        let mut mem = MemInfo {
            min: slots("min", guest.memory_slots.min)?,
            max: slots("max", guest.memory_slots.max)?,
            r#use: slots("use", guest.memory_slots.r#use)?,
            slot_size,
        };
        if let Some(text) = vm.metadata.annotations.get(ANNOTATION_BOUNDS) {
            apply_bounds(text, &mut cpu, &mut mem)?;
        }
        check_sizes(&cpu, &mem)?;
        let overrides = vm.metadata.annotations.get(ANNOTATION_CONFIG);
        let overrides = overrides.map(|text| read_overrides(text)).transpose()?;
        let annotated = vm.metadata.annotations.get(KEY_MODE);
        let annotated = annotated.map(|text| read_mode(text)).transpose()?;
        let own_mode = annotated.or(overrides.and_then(|own| own.mode));
        let own = ScalingOverrides {
            mode: own_mode,
            ..overrides.unwrap_or_default()
        };
        let scaling = own.apply(default).map_err(VmError::ConfigValue)?;
        Ok(Self {
            name: vm.metadata.name.clone(),
            namespace: vm.metadata.namespace.clone(),
            cpu,
            mem,
            config: VmConfig {
                auto_migration_enabled: vm.metadata.label_is_true(LABEL_AUTO_MIGRATION),
                always_migrate: vm.metadata.label_is_true(LABEL_ALWAYS_MIGRATE),
                scaling_enabled: vm.metadata.label_is_true(LABEL_ENABLED),
                overrides,
                scaling,
                own_mode,
            },
            current_revision: vm
                .status
                .as_ref()
                .and_then(|status| status.current_revision),
            last_revision: last_revision(vm),
            version: version_of(&vm.metadata.resource_version),
            actual: vm.status.as_ref().and_then(|status| {
                let mem = Bytes(status.memory_size?.as_u64()?);
                Some(Resources {
                    cpu: status.cpus?,
                    mem,
                })
            }),
        })
    }

    fn of_slots(&self, slots: u32) -> Bytes {
        Bytes(self.mem.slot_size.0.saturating_mul(u64::from(slots)))
    }

    /// The smallest size.
    #[must_use]
    pub fn min(&self) -> Resources {
        Resources {
            cpu: self.cpu.min,
            mem: self.of_slots(self.mem.min),
        }
    }

    /// The largest size.
    #[must_use]
    pub fn max(&self) -> Resources {
        Resources {
            cpu: self.cpu.max,
            mem: self.of_slots(self.mem.max),
        }
    }

    /// Whether the guest is reported to have what the object wants. Nothing reported counts as
    /// arrived.
    #[must_use]
    pub fn has_arrived(&self) -> bool {
        let reached = self
            .current_revision
            .map_or(0, |current| current.revision.value);
        self.actual.is_none_or(|actual| actual == self.using()) && reached >= self.last_revision
    }

    /// What it uses by the object.
    #[must_use]
    pub fn using(&self) -> Resources {
        Resources {
            cpu: self.cpu.r#use,
            mem: self.of_slots(self.mem.r#use),
        }
    }

    /// Sets `use` to a size the VM was given; memory is whole slots already.
    pub fn set_using(&mut self, size: Resources) {
        self.cpu.r#use = size.cpu;
        self.mem.r#use = u32::try_from(size.mem.0 / self.mem.slot_size.0).unwrap_or(u32::MAX);
    }
}

/// The version in a `metadata.resourceVersion`, where it is a number that the journal can hold;
/// others say nothing.
#[must_use]
pub fn version_of(text: &str) -> Option<u64> {
    let version = text.parse().ok()?;
    (version <= MAX_VERSION).then_some(version)
}

fn last_revision(vm: &VirtualMachine) -> i64 {
    let reached = vm
        .status
        .as_ref()
        .and_then(|status| status.current_revision);
    let values = [vm.spec.target_revision, reached].map(|r| r.map_or(0, |r| r.revision.value));
    values[0].max(values[1])
}

/// Reads the config annotation. Keys that are not known are left alone, as the deployed agent does.
fn read_overrides(text: &str) -> Result<ScalingOverrides, VmError> {
    let object: serde_json::Map<String, Value> =
        serde_json::from_str(text).map_err(|error| VmError::Config(error.to_string()))?;
    let (overrides, problems) = ScalingOverrides::read(&object);
    if problems.is_empty() {
        Ok(overrides)
    } else {
        Err(VmError::ConfigValue(problems))
    }
}

fn read_mode(text: &str) -> Result<Mode, VmError> {
    Mode::of(text).ok_or_else(|| VmError::Mode(text.chars().take(SHOWN).collect()))
}

fn apply_bounds(text: &str, cpu: &mut CpuInfo, mem: &mut MemInfo) -> Result<(), VmError> {
    let bounds: ScalingBounds =
        serde_json::from_str(text).map_err(|error| VmError::Bounds(error.to_string()))?;
    let slots = |end: &str, bytes: Quantity| {
        let wrong = |what: &str| Err(VmError::BoundsValue(format!("{end}.mem = {bytes}: {what}")));
        if bytes <= Quantity::zero() {
            return wrong("must be above zero");
        }
        let Some(count) = bytes.as_u64() else {
            return wrong("must be a whole number of bytes below 2^64");
        };
        if count % mem.slot_size.0 != 0 {
            return wrong(&format!(
                "must be a multiple of the slot size {}",
                mem.slot_size
            ));
        }
        let count = count / mem.slot_size.0;
        if count > MAX_SLOTS {
            return wrong(&format!("must be at most {MAX_SLOTS} slots, is {count}"));
        }
        Ok(u32::try_from(count).unwrap_or(u32::MAX))
    };
    for (end, leaf) in [("min", bounds.min), ("max", bounds.max)] {
        if leaf.cpu.0 == 0 {
            return Err(VmError::BoundsValue(format!(
                "{end}.cpu = 0: must be above zero"
            )));
        }
    }
    (mem.min, mem.max) = (slots("min", bounds.min.mem)?, slots("max", bounds.max.mem)?);
    (cpu.min, cpu.max) = (bounds.min.cpu, bounds.max.cpu);
    Ok(())
}

fn check_sizes(cpu: &CpuInfo, mem: &MemInfo) -> Result<(), VmError> {
    for (end, value) in [("min", cpu.min), ("max", cpu.max)] {
        if value < MIN_CPU || value > MAX_CPU {
            let text = format!("{end} CPU {value} must be from {MIN_CPU} to {MAX_CPU}");
            return Err(VmError::Size(text));
        }
    }
    if cpu.min > cpu.max {
        return Err(VmError::Size(format!(
            "min CPU {} is above max CPU {}",
            cpu.min, cpu.max
        )));
    }
    if mem.min > mem.max {
        let text = format!(
            "min memory of {} slots is above max of {} slots",
            mem.min, mem.max
        );
        return Err(VmError::Size(text));
    }
    Ok(())
}

/// Where a VM is and whether this agent scales it, read from the raw object so that one bad member
/// elsewhere does not hide it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placement {
    /// `status.podName`: the runner pod; empty when the status names none.
    pub pod_name: String,
    /// `status.podIP`: address of the runner pod, where the monitor and metrics are dialled. Never
    /// empty.
    pub pod_ip: String,
    /// Number of its vsock device, if it has one; of a text that is none [`VmInfo::from_object`]
    /// complains.
    pub vsock_cid: Option<u32>,
}

/// Whose VM to look for.
#[derive(Debug, Clone, Copy)]
pub struct Ownership<'a> {
    /// Name of the agent's node, compared with `status.node`.
    pub node: &'a str,
    /// The scheduler whose VMs are scaled.
    pub scheduler_name: &'a str,
}

/// Where the VM runs, if it is ours: on this node, alive and not migrating, with an address,
/// labelled, and of our scheduler.
#[must_use]
pub fn placement(object: &Value, ours: Ownership<'_>) -> Option<Placement> {
    let text = |pointer: &str| {
        object
            .pointer(pointer)
            .and_then(Value::as_str)
            .unwrap_or("")
    };
    let scaled_phases = [
        VmPhase::Running.as_str(),
        VmPhase::PreMigrating.as_str(),
        VmPhase::Scaling.as_str(),
    ];
    let label = object
        .pointer("/metadata/labels")
        .and_then(|labels| labels.get(LABEL_ENABLED))
        .and_then(Value::as_str);
    let annotation = object
        .pointer("/metadata/annotations")
        .and_then(|annotations| annotations.get(ANNOTATION_VSOCK_CID))
        .and_then(Value::as_str);
    let is_ours = text("/status/node") == ours.node
        && scaled_phases.contains(&text("/status/phase"))
        && !text("/status/podIP").is_empty()
        && label == Some("true")
        && text("/spec/schedulerName") == ours.scheduler_name;
    is_ours.then(|| Placement {
        pod_name: text("/status/podName").to_owned(),
        pod_ip: text("/status/podIP").to_owned(),
        vsock_cid: annotation.and_then(|cid| cid.parse().ok()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn object() -> Value {
        json!({
            "apiVersion": "vm.neon.tech/v1", "kind": "VirtualMachine",
            "metadata": {"name": "pg", "namespace": "default", "labels": {LABEL_ENABLED: "true"}},
            "spec": {
                "schedulerName": "autoscale-scheduler",
                "guest": {
                    "cpus": {"min": 0.25, "max": "2", "use": "250m"},
                    "memorySlotSize": "1Gi",
                    "memorySlots": {"min": 1, "max": 8, "use": 1},
                },
                "targetRevision": {"revision": {"value": 7, "flags": 1}, "updatedAt": "2024-01-02T03:04:05Z"},
            },
            "status": {
                "phase": "Running", "node": "node-1", "podName": "pg-1", "podIP": "10.0.0.1",
                "cpus": 1, "memorySize": "2Gi",
                "currentRevision": {"revision": {"value": 5, "flags": 2}, "updatedAt": "2024-01-02T03:04:05Z"},
            },
        })
    }

    fn read(object: &Value) -> Result<VmInfo, String> {
        let vm: VirtualMachine =
            serde_json::from_value(object.clone()).map_err(|error| error.to_string())?;
        VmInfo::from_object(&vm, &ScalingConfig::default()).map_err(|error| error.to_string())
    }

    fn annotated(key: &str, text: &str) -> Result<VmInfo, String> {
        let mut object = object();
        object["metadata"]["annotations"] = json!({ key: text });
        read(&object)
    }

    #[test]
    fn what_is_read() {
        let info = read(&object()).expect("reads");
        assert_eq!(
            (info.min(), info.max()),
            (Resources::new(250, 1 << 30), Resources::new(2000, 8 << 30))
        );
        assert_eq!(info.using(), Resources::new(250, 1 << 30));
        assert_eq!(info.actual, Some(Resources::new(1000, 2 << 30)));
        assert_eq!(info.last_revision, 7);
        assert!(info.config.scaling_enabled && !info.config.auto_migration_enabled);
    }

    #[test]
    fn bounds_override_min_and_max_but_never_use() {
        let text = r#"{"min":{"cpu":0.5,"mem":"2Gi"},"max":{"cpu":"3","mem":4294967296},"more":1}"#;
        let info = annotated(ANNOTATION_BOUNDS, text).expect("reads");
        assert_eq!(
            (info.min(), info.max()),
            (Resources::new(500, 2 << 30), Resources::new(3000, 4 << 30))
        );
        assert_eq!(
            info.using(),
            Resources::new(250, 1 << 30),
            "use is below the new minimum, and kept"
        );
    }

    #[test]
    fn bad_bounds_are_refused() {
        let bounds = |min_cpu: &str, min_mem: &str, max_cpu: &str, max_mem: &str| {
            let text = format!(
                r#"{{"min":{{"cpu":{min_cpu},"mem":{min_mem}}},"max":{{"cpu":{max_cpu},"mem":{max_mem}}}}}"#
            );
            annotated(ANNOTATION_BOUNDS, &text)
        };
        assert!(bounds("1", r#""1Gi""#, "2", r#""2Gi""#).is_ok());
        for (bad, wanted) in [
            (
                bounds("0", r#""1Gi""#, "2", r#""2Gi""#),
                "bounds: min.cpu = 0: must be above zero",
            ),
            (
                bounds("1", "0", "2", r#""2Gi""#),
                "bounds: min.mem = 0: must be above zero",
            ),
            (
                bounds("1", r#""1Gi""#, "2", r#""-2Gi""#),
                "bounds: max.mem = -2Gi: must be above zero",
            ),
            (
                bounds("1", r#""1Gi""#, "2", r#""1536Mi""#),
                "bounds: max.mem = 1536Mi: must be a multiple of the slot size 1Gi",
            ),
            (
                bounds("1", r#""1Gi""#, "2", r#""64Ti""#),
                "bounds: max.mem = 64Ti: must be at most 65535 slots, is 65536",
            ),
            (
                bounds("3", r#""1Gi""#, "2", r#""2Gi""#),
                "min CPU 3 is above max CPU 2",
            ),
            (
                bounds("1", r#""3Gi""#, "2", r#""2Gi""#),
                "min memory of 3 slots",
            ),
            (
                bounds("0.049", r#""1Gi""#, "2", r#""2Gi""#),
                "must be from 50m to 512",
            ),
            (
                bounds("1", r#""1Gi""#, "512.001", r#""2Gi""#),
                "must be from 50m to 512",
            ),
            (
                annotated(ANNOTATION_VSOCK_CID, "2"),
                "vsock-cid = \"2\": must be a number from 3",
            ),
            (annotated(ANNOTATION_BOUNDS, "{"), "does not decode"),
            (
                annotated(ANNOTATION_BOUNDS, r#"{"min":{"cpu":1}}"#),
                "does not decode",
            ),
        ] {
            let error = bad.expect_err(wanted);
            assert!(error.contains(wanted), "{error}");
        }
    }

    #[test]
    fn settings_override_the_defaults_and_are_checked_together() {
        let text = r#"{"enableLFCMetrics":true,"lfcMinWaitBeforeDownscaleMinutes":9,"unknown":1}"#;
        let scaling = annotated(ANNOTATION_CONFIG, text)
            .expect("reads")
            .config
            .scaling;
        assert!(scaling.enable_lfc_metrics);
        assert_eq!(
            (
                scaling.lfc_min_wait_before_downscale_minutes,
                scaling.lfc_window_size_minutes
            ),
            (9, 5)
        );
        for (bad, wanted) in [
            (
                r#"{"loadAverageFractionTarget":2}"#,
                "loadAverageFractionTarget = 2: must be over 0",
            ),
            (
                r#"{"memoryUsageFractionTarget":0}"#,
                "memoryUsageFractionTarget = 0: must be",
            ),
            // Alone it is fine; with the default it is not.
            (
                r#"{"lfcWindowSizeMinutes":6}"#,
                "lfcMinWaitBeforeDownscaleMinutes = 5: must be at least",
            ),
            (
                r#"{"lfcWindowSizeMinutes":-1}"#,
                "lfcWindowSizeMinutes = -1",
            ),
            (
                r#"{"lfcWindowSizeMinutes":2.5}"#,
                "lfcWindowSizeMinutes = 2.5: must be a whole number",
            ),
            ("[", "does not decode"),
        ] {
            let error = annotated(ANNOTATION_CONFIG, bad).expect_err(bad);
            assert!(error.contains(wanted), "{bad}: {error}");
        }
    }

    #[test]
    fn a_mode_of_its_own_wins_over_the_one_in_its_settings() {
        let info = annotated(KEY_MODE, "grow").expect("reads");
        assert_eq!(info.config.scaling.mode, Mode::Grow);
        assert_eq!(info.config.own_mode, Some(Mode::Grow));
        let mut both = object();
        both["metadata"]["annotations"] =
            json!({KEY_MODE: "full", ANNOTATION_CONFIG: r#"{"mode":"observe"}"#});
        assert_eq!(
            read(&both).expect("reads").config.own_mode,
            Some(Mode::Full)
        );
        let info = annotated(ANNOTATION_CONFIG, r#"{"mode":"observe"}"#).expect("reads");
        assert_eq!(info.config.scaling.mode, Mode::Observe);
        let shown = serde_json::to_value(info.config).expect("serialises");
        assert_eq!(shown["mode"], "observe");
        let info = annotated(ANNOTATION_CONFIG, "{}").expect("reads");
        assert_eq!(info.config.own_mode, None);
        for (key, bad) in [
            (KEY_MODE, "Grow"),
            (ANNOTATION_CONFIG, r#"{"mode":"some"}"#),
        ] {
            let error = annotated(key, bad).expect_err(bad);
            assert!(error.contains("must be \"observe\""), "{error}");
        }
    }

    #[test]
    fn sizes_that_cannot_be_are_refused() {
        for (pointer, value) in [
            ("/spec/guest/memorySlotSize", json!("0")),
            ("/spec/guest/memorySlots/max", json!(-1)),
            ("/spec/guest/memorySlots/max", json!(70_000)),
            ("/spec/guest/cpus/min", json!("many")),
            ("/spec/guest/cpus/max", json!("10m")),
        ] {
            let mut object = object();
            *object.pointer_mut(pointer).expect("is there") = value;
            assert!(read(&object).is_err(), "{pointer}");
        }
    }

    #[test]
    fn only_vms_of_this_node_that_live_are_ours() {
        let ours = Ownership {
            node: "node-1",
            scheduler_name: "autoscale-scheduler",
        };
        let wanted = Placement {
            pod_name: "pg-1".into(),
            pod_ip: "10.0.0.1".into(),
            vsock_cid: None,
        };
        assert_eq!(placement(&object(), ours), Some(wanted.clone()));
        for (pointer, value, is_ours) in [
            ("/status/phase", "Scaling", true),
            ("/status/phase", "PreMigrating", true),
            ("/status/phase", "Migrating", false),
            ("/status/phase", "Pending", false),
            ("/status/phase", "Succeeded", false),
            ("/status/node", "node-2", false),
            ("/status/podIP", "", false),
            ("/spec/schedulerName", "default-scheduler", false),
            (
                "/metadata/labels/autoscaling.neon.tech~1enabled",
                "yes",
                false,
            ),
        ] {
            let mut object = object();
            *object.pointer_mut(pointer).expect("is there") = json!(value);
            assert_eq!(
                placement(&object, ours).is_some(),
                is_ours,
                "{pointer} = {value}"
            );
        }
        let mut broken = object();
        broken["spec"]["guest"] = json!([]);
        assert_eq!(
            placement(&broken, ours),
            Some(wanted),
            "a bad member elsewhere does not hide it"
        );
    }
}
