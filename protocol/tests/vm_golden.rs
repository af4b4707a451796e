//! Objects of group `vm.neon.tech/v1` and the annotations made from them, against the bytes under
//! `testdata/vm/`.
//!
//! * `testdata/vm/*.json`: exactly what we write; it reads back to the same value. Each value is
//!   spelled out member by member, so that a new member does not compile before it is here.
//! * `testdata/vm/accepted/`: other spellings of one VM; all read as that VM, and are then written
//!   in the one form.
//! * `testdata/vm/rejected/`: what is no VM; each names the member that is wrong.
//!
//! Requirement: N39. The types exist once, here, and every part uses them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::path::{Path, PathBuf};

use protocol::annotations::{Overcommit, VmResources, VmUsage};
use protocol::object::{ObjectMeta, OwnerReference, without_nulls};
use protocol::quantity::Quantity;
use protocol::revision::{Revision, RevisionWithTime};
use protocol::time::WallTime;
use protocol::units::{MilliCpu, Resources};
use protocol::vm::{
    API_VERSION, ClaimedBy, Condition, CpuBounds, CpuScalingMode, Disk, EnvVar, Guest,
    GuestSettings, IpAllocation, IpPool, IpPoolSpec, MemorySlots, MigrationSpec, MigrationStatus,
    Port, RestartPolicy, RootDisk, VirtualMachine, VirtualMachineMigration, VmPhase, VmSpec,
    VmStatus,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

fn folder(name: &str) -> PathBuf {
    Path::new("testdata/vm").join(name)
}

fn golden(name: &str) -> String {
    let path = folder("").join(format!("{name}.json"));
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Names of the files in a folder, without `.json`, so that no file goes unread.
fn names(of: &str) -> BTreeSet<String> {
    std::fs::read_dir(folder(of))
        .expect("the folder is there")
        .filter_map(|entry| {
            let name = entry
                .expect("entry")
                .file_name()
                .into_string()
                .expect("UTF-8");
            name.strip_suffix(".json").map(str::to_owned)
        })
        .collect()
}

fn same<T: Serialize + DeserializeOwned + PartialEq + Debug>(name: &str, value: &T) {
    let text = golden(name);
    let written = serde_json::to_string_pretty(value).expect("encodes");
    assert_eq!(written, text.trim_end(), "{name}: what is written");
    let read: T = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{name}: {error}"));
    assert_eq!(&read, value, "{name}: what is read");
}

fn quantity(text: &str) -> Quantity {
    text.parse().expect("a quantity")
}

fn at(second: u8) -> WallTime {
    WallTime::parse(&format!("2024-01-02T03:04:{second:02}Z")).expect("a time")
}

fn one(key: &str, value: &str) -> BTreeMap<String, String> {
    [(key.to_owned(), value.to_owned())].into()
}

fn full_metadata() -> ObjectMeta {
    ObjectMeta {
        name: "example".into(),
        namespace: "default".into(),
        uid: "5f1c0d5e-0000-4000-8000-000000000001".into(),
        resource_version: "42".into(),
        generation: Some(3),
        creation_timestamp: Some(at(5)),
        deletion_timestamp: Some(WallTime(at(5).0 + 60_000_000)),
        labels: one("autoscaling.neon.tech/enabled", "true"),
        annotations: one("autoscaling.neon.tech/bounds", "{}"),
        finalizers: vec!["vm.neon.tech/finalizer".into()],
        owner_references: vec![OwnerReference {
            api_version: "apps/v1".into(),
            kind: "Thing".into(),
            name: "owner".into(),
            uid: "u".into(),
            controller: Some(true),
            block_owner_deletion: Some(false),
        }],
    }
}

fn full_guest() -> Guest {
    Guest {
        kernel_image: Some("kernel:6.12".into()),
        memhp_auto_movable_ratio: Some("401".into()),
        append_kernel_cmdline: Some("quiet".into()),
        cpus: CpuBounds {
            min: MilliCpu(250),
            max: MilliCpu(1250),
            r#use: MilliCpu(1000),
        },
        memory_slot_size: quantity("128Mi"),
        memory_slots: MemorySlots {
            min: 1,
            max: 512,
            r#use: 2,
        },
        root_disk: RootDisk {
            image: "postgres:15".into(),
            size: Some(quantity("8Gi")),
            image_pull_policy: "Always".into(),
            execute: vec!["unused".into()],
            persistent: false,
            persistent_volume_claim: None,
        },
        command: vec!["sh".into()],
        args: vec!["-c".into(), "true".into()],
        env: vec![EnvVar {
            name: "A".into(),
            value: "b".into(),
        }],
        ports: vec![
            Port {
                name: "pg".into(),
                port: 5432,
                protocol: "TCP".into(),
            },
            Port {
                name: String::new(),
                port: 53,
                protocol: "UDP".into(),
            },
        ],
        settings: Some(GuestSettings {
            sysctl: vec!["vm.swappiness=1".into()],
            swap: Some(quantity("1Gi")),
        }),
    }
}

fn disk(name: &str) -> Disk {
    Disk {
        name: name.into(),
        mount_path: format!("/{name}"),
        read_only: false,
        watch: false,
        empty_disk: None,
        config_map: None,
        secret: None,
        tmpfs: None,
        persistent_volume_claim: None,
    }
}

fn full_disks() -> Vec<Disk> {
    vec![
        Disk {
            read_only: true,
            empty_disk: Some(json!({"size": "2Gi", "discard": true, "enableQuotas": true})),
            ..disk("cache")
        },
        Disk {
            watch: true,
            config_map: Some(json!({"name": "cm"})),
            ..disk("map")
        },
        Disk {
            secret: Some(json!({"secretName": "s"})),
            ..disk("key")
        },
        Disk {
            tmpfs: Some(json!({"size": "1Gi"})),
            ..disk("tmp")
        },
    ]
}

fn full_spec() -> VmSpec {
    VmSpec {
        qmp: 1,
        qmp_manual: 2,
        runner_port: 3,
        termination_grace_period_seconds: 9,
        node_selector: one("disk", "ssd"),
        affinity: Some(json!({"nodeAffinity": {}})),
        tolerations: vec![json!({"key": "k", "operator": "Exists"})],
        scheduler_name: "autoscale-scheduler".into(),
        service_account_name: "account".into(),
        pod_resources: Some(json!({"limits": {"memory": "1Gi"}})),
        restart_policy: RestartPolicy::OnFailure,
        image_pull_secrets: vec![json!({"name": "pull"})],
        target_architecture: Some("amd64".into()),
        guest: full_guest(),
        extra_init_containers: vec![json!({"name": "more"})],
        init_script: "true".into(),
        disks: full_disks(),
        extra_network: Some(json!({"enable": true, "interface": "net1"})),
        service_links: Some(false),
        enable_acceleration: false,
        runner_image: Some("runner:1".into()),
        enable_ssh: false,
        tls: Some(json!({
            "certificateIssuer": "neon-ca-issuer", "expireAfter": "24h", "renewBefore": "1h",
            "serverName": "vm.neon.local",
        })),
        overcommit: Some(Overcommit {
            cpu: Some(quantity("2")),
            memory: Some(quantity("1.5")),
        }),
        target_revision: Some(RevisionWithTime {
            revision: Revision {
                value: 123,
                flags: 456,
            },
            updated_at: at(6),
        }),
        cpu_scaling_mode: Some(CpuScalingMode::SysfsScaling),
        enable_network_monitoring: true,
    }
}

fn full_status() -> VmStatus {
    VmStatus {
        phase: VmPhase::Scaling,
        conditions: vec![Condition {
            kind: "Available".into(),
            status: "True".into(),
            reason: "Reconciling".into(),
            message: "runs".into(),
            last_transition_time: Some(at(7)),
            observed_generation: Some(3),
        }],
        restart_count: 4,
        pod_name: "example-abcde".into(),
        pod_ip: "10.0.0.1".into(),
        extra_net_ip: "10.100.128.1".into(),
        extra_net_mask: "255.255.0.0".into(),
        node: "node-1".into(),
        cpus: Some(MilliCpu(750)),
        memory_size: Some(quantity("1536Mi")),
        ssh_secret_name: "ssh-neonvm-example".into(),
        tls_secret_name: "tls-neonvm-example".into(),
        current_revision: Some(RevisionWithTime {
            revision: Revision {
                value: -1,
                flags: 0,
            },
            updated_at: at(8),
        }),
        migration: Some(ClaimedBy {
            name: "example-1".into(),
            uid: "b7d1".into(),
        }),
    }
}

fn named(name: &str) -> ObjectMeta {
    ObjectMeta {
        name: name.into(),
        ..ObjectMeta::default()
    }
}

#[test]
fn n39_every_member_of_a_vm_has_this_spelling() {
    let vm = VirtualMachine {
        api_version: API_VERSION.into(),
        kind: "VirtualMachine".into(),
        metadata: full_metadata(),
        spec: full_spec(),
        status: Some(full_status()),
    };
    same("virtual_machine_full", &vm);
}

#[test]
fn n39_absent_members_of_a_vm_have_these_defaults() {
    let vm = VirtualMachine {
        api_version: API_VERSION.into(),
        kind: "VirtualMachine".into(),
        metadata: named("example"),
        spec: VmSpec::default(),
        status: Some(VmStatus::default()),
    };
    same("virtual_machine_defaults", &vm);
    let least = json!({"apiVersion": API_VERSION, "kind": "VirtualMachine", "metadata": {"name": "example"}, "spec": {"guest": {}}, "status": {}});
    assert_eq!(
        serde_json::from_value::<VirtualMachine>(least).expect("reads"),
        vm
    );
}

#[test]
fn n39_every_phase_policy_and_mode_has_its_word() {
    for (phase, word) in [
        (VmPhase::New, ""),
        (VmPhase::Pending, "Pending"),
        (VmPhase::Running, "Running"),
        (VmPhase::Scaling, "Scaling"),
        (VmPhase::PreMigrating, "PreMigrating"),
        (VmPhase::Migrating, "Migrating"),
        (VmPhase::Succeeded, "Succeeded"),
        (VmPhase::Failed, "Failed"),
    ] {
        assert_eq!(serde_json::to_value(phase).expect("encodes"), word);
        assert_eq!(
            serde_json::from_value::<VmPhase>(json!(word)).expect("decodes"),
            phase
        );
        assert_eq!(phase.as_str(), word);
        let alive = ["Running", "Scaling", "PreMigrating", "Migrating"].contains(&word);
        assert_eq!(phase.is_alive(), alive, "{word}");
    }
    for (policy, word) in [
        (RestartPolicy::Always, "Always"),
        (RestartPolicy::OnFailure, "OnFailure"),
        (RestartPolicy::Never, "Never"),
    ] {
        assert_eq!(serde_json::to_value(policy).expect("encodes"), word);
    }
    for (mode, word) in [
        (CpuScalingMode::QmpScaling, "QmpScaling"),
        (CpuScalingMode::SysfsScaling, "SysfsScaling"),
    ] {
        assert_eq!(serde_json::to_value(mode).expect("encodes"), word);
    }
}

#[test]
fn n39_a_migration_and_an_address_pool_have_these_spellings() {
    let condition = Condition {
        kind: "Degraded".into(),
        status: "True".into(),
        reason: "Reconciling".into(),
        message: "target pod gone".into(),
        last_transition_time: None,
        observed_generation: None,
    };
    let migration = VirtualMachineMigration {
        api_version: API_VERSION.into(),
        kind: "VirtualMachineMigration".into(),
        metadata: ObjectMeta {
            namespace: "default".into(),
            ..named("move")
        },
        spec: MigrationSpec {
            vm_name: "example".into(),
            node_selector: one("disk", "ssd"),
            node_affinity: Some(json!({"kept": true})),
            prevent_migration_to_same_host: false,
            completion_timeout: 60,
            incremental: false,
            allow_post_copy: true,
            auto_converge: false,
            max_bandwidth: quantity("512Mi"),
        },
        status: Some(MigrationStatus {
            phase: "Running".into(),
            conditions: vec![condition],
            source_pod_name: "example-aaaaa".into(),
            target_pod_name: "example-bbbbb".into(),
            source_pod_ip: "10.0.0.1".into(),
            target_pod_ip: "10.0.0.2".into(),
            source_node: "node-1".into(),
            target_node: "node-2".into(),
            info: Some(json!({
                "status": "active", "downtimeMs": 39,
                "ram": {"transferred": 2, "remaining": 1, "total": 3},
            })),
        }),
    };
    same("migration_full", &migration);
    let defaults = VirtualMachineMigration {
        api_version: API_VERSION.into(),
        kind: "VirtualMachineMigration".into(),
        metadata: named("move"),
        spec: MigrationSpec {
            vm_name: "example".into(),
            ..MigrationSpec::default()
        },
        status: None,
    };
    same("migration_defaults", &defaults);
    let holder = |id: &str, podref: Option<&str>| IpAllocation {
        id: id.into(),
        podref: podref.map(str::to_owned),
    };
    let pool = IpPool {
        api_version: API_VERSION.into(),
        kind: "IPPool".into(),
        metadata: ObjectMeta {
            namespace: "neonvm-system".into(),
            ..named("neonvm-10.100.0.0-16")
        },
        spec: IpPoolSpec {
            range: "10.100.0.0/16".into(),
            allocations: [
                ("32769".to_owned(), holder("default/example", None)),
                ("32770".to_owned(), holder("default/other", Some("pod"))),
            ]
            .into(),
        },
    };
    same("ip_pool", &pool);
}

#[test]
fn n39_annotations_of_a_runner_pod_have_these_spellings() {
    same(
        "pod_usage",
        &VmUsage {
            cpu: Quantity::from_milli(1500),
            memory: Quantity::from_bytes(3 << 30),
        },
    );
    let resources = VmResources {
        cpus: CpuBounds {
            min: MilliCpu(250),
            max: MilliCpu(2000),
            r#use: MilliCpu(1500),
        },
        memory_slots: MemorySlots {
            min: 1,
            max: 4,
            r#use: 3,
        },
        memory_slot_size: quantity("1Gi"),
    };
    same("pod_resources", &resources);
    assert_eq!(resources.in_use(), Resources::new(1500, 3 << 30));
    same(
        "pod_overcommit",
        &Overcommit {
            cpu: None,
            memory: Some(quantity("1.5")),
        },
    );
}

#[test]
fn other_spellings_of_one_vm_are_read_and_written_in_one_form() {
    let mut forms = BTreeSet::new();
    for name in names("accepted") {
        let value: Value =
            serde_json::from_str(&golden(&format!("accepted/{name}"))).expect("JSON");
        let vm: VirtualMachine = serde_json::from_value(without_nulls(value))
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(
            vm.spec.guest.smallest(),
            Resources::new(250, 1 << 30),
            "{name}"
        );
        assert_eq!(
            vm.spec.guest.in_use(),
            Resources::new(500, 2 << 30),
            "{name}"
        );
        assert_eq!(
            vm.spec.guest.largest(),
            Resources::new(1250, 4 << 30),
            "{name}"
        );
        let mut written = serde_json::to_value(&vm).expect("encodes");
        assert_eq!(
            written["spec"]["guest"]["cpus"],
            json!({"min": "250m", "max": "1250m", "use": "500m"})
        );
        // A quantity keeps the kind of suffix it came with, as Kubernetes does.
        written["spec"]["guest"]["memorySlotSize"] = Value::Null;
        forms.insert(written.to_string());
    }
    assert_eq!(forms.len(), 1, "{forms:#?}");
}

#[test]
fn what_is_no_vm_is_refused() {
    let cases = [
        ("cpus_without_use", "missing field `use`"),
        ("negative_cpu", "out of range"),
        ("cpu_out_of_range", "out of range"),
        ("slots_as_text", "invalid type: string"),
        ("slot_size_unknown_suffix", "unknown suffix"),
        ("restart_policy", "unknown variant `Sometimes`"),
        ("scaling_mode", "unknown variant `Magic`"),
        ("revision_without_flags", "missing field `flags`"),
        ("revision_without_time", "missing field `updatedAt`"),
        ("revision_bad_time", "not an RFC 3339 time"),
        ("phase", "unknown variant `Sleeping`"),
        ("port_as_text", "invalid type: string"),
    ];
    for (name, why) in cases {
        let text = golden(&format!("rejected/{name}"));
        let error = serde_json::from_str::<VirtualMachine>(&text)
            .expect_err(name)
            .to_string();
        assert!(error.contains(why), "{name}: {error}");
    }
    assert_eq!(
        names("rejected"),
        cases.map(|(name, _)| name.to_owned()).into()
    );
}

#[test]
fn every_golden_file_is_used() {
    let used = [
        "virtual_machine_full",
        "virtual_machine_defaults",
        "migration_full",
        "migration_defaults",
        "ip_pool",
        "pod_usage",
        "pod_resources",
        "pod_overcommit",
    ];
    assert_eq!(names(""), used.map(str::to_owned).into());
}

#[test]
fn a_null_member_is_an_absent_one_and_an_item_is_not() {
    let value = json!({"a": null, "b": {"c": null, "d": [null, {"e": null, "f": 1}]}, "g": false});
    assert_eq!(
        without_nulls(value),
        json!({"b": {"d": [null, {"f": 1}]}, "g": false})
    );
}
