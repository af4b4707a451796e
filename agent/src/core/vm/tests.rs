//! Reading of VM objects, and the placement of VMs.

use protocol::annotations::ANNOTATION_VSOCK_CID;
use serde_json::{Value, json};

use super::*;

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
fn sizes_revision_and_labels_are_read() {
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
fn bounds_annotation_overrides_min_and_max_but_not_use() {
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
fn malformed_bounds_are_refused() {
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
fn mode_annotation_wins_over_mode_in_config_annotation() {
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
fn impossible_sizes_are_refused() {
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
fn only_live_vms_of_this_node_and_scheduler_have_a_placement() {
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
        "a malformed member elsewhere does not hide the VM"
    );
}

#[test]
fn vm_has_arrived_once_size_and_revision_are_reported() {
    let arrived = |actual: Option<Resources>, reached: i64, last_revision: i64| {
        let mut info = read(&object()).expect("reads");
        let current = info.current_revision.as_mut().expect("a revision");
        current.revision.value = reached;
        (info.actual, info.last_revision) = (actual, last_revision);
        info.has_arrived()
    };
    let (using, larger) = (Resources::new(250, 1 << 30), Resources::new(1000, 2 << 30));
    assert!(arrived(Some(using), 7, 7));
    assert!(arrived(None, 8, 7), "no report is no difference");
    assert!(!arrived(Some(larger), 7, 7));
    assert!(!arrived(Some(using), 6, 7));
}

#[test]
fn version_is_a_number_that_the_journal_can_hold() {
    assert_eq!(version_of("731"), Some(731));
    assert_eq!(version_of(&MAX_VERSION.to_string()), Some(MAX_VERSION));
    let too_large = (MAX_VERSION + 1).to_string();
    for text in [too_large.as_str(), "", "-1", "a7"] {
        assert_eq!(version_of(text), None, "{text:?}");
    }
}
