//! The contract for clients, held by both API servers: the embedded one, and Kubernetes' own with
//! our definitions.

#![expect(clippy::unwrap_used, reason = "tests")]

#[path = "api_contract/fleet.rs"]
mod fleet;
#[path = "api_contract/kinds.rs"]
mod kinds;
#[path = "api_contract/sizes.rs"]
mod sizes;

use std::time::Duration;

use bellows_tests::api::{Api, Flavour};
use bellows_tests::site::vm_resource;
use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::Api as Objects;
use kube::api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::runtime::watcher;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use fleet::{
    calls_on_fleet_objects_are_lines_of_the_audit_log, environment_in_a_rollout_is_not_deleted,
    fixed_members_of_fleet_objects_stay, fleet_objects_are_listed_by_field_and_label,
    fleet_objects_are_refused_by_field,
};
use kinds::{
    empty_members_are_no_change, every_fixed_member_is_refused_by_field,
    every_name_of_the_vms_own_is_refused_for_a_disk, migrations_are_held_to_their_form,
    pools_are_held_to_their_form,
};
use sizes::{
    agent_alone_makes_an_autoscaled_vm_smaller, manifest_applied_again_keeps_the_live_size,
    omitted_size_is_filled_in,
};

const PATIENCE: Duration = Duration::from_secs(60);

/// Defines a test of each function against each server.
macro_rules! contract {
    ($($name:ident),+ $(,)?) => {
        mod embedded {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                super::held(super::Flavour::Embedded, stringify!($name), async |api| super::$name(api).await).await;
            })+
        }
        mod kubernetes {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                super::held(super::Flavour::Kubernetes, stringify!($name), async |api| super::$name(api).await).await;
            })+
        }
    };
}

contract!(
    our_kinds_are_established_and_listed,
    columns_are_as_specified,
    omitted_members_get_defaults,
    violations_of_the_schema_are_refused_by_field,
    violations_of_rules_between_fields_are_refused_by_field,
    unlikely_objects_give_a_warning,
    immutable_members_cannot_change,
    every_fixed_member_is_refused_by_field,
    every_name_of_the_vms_own_is_refused_for_a_disk,
    empty_members_are_no_change,
    migrations_are_held_to_their_form,
    pools_are_held_to_their_form,
    amounts_are_kept_in_one_form,
    a_size_is_validated_in_every_form,
    status_and_spec_are_written_apart,
    a_write_of_an_old_version_is_refused,
    a_patch_whose_test_fails_changes_nothing,
    appliers_own_what_they_set,
    omitted_size_is_filled_in,
    manifest_applied_again_keeps_the_live_size,
    agent_alone_makes_an_autoscaled_vm_smaller,
    field_managers_are_dropped_until_the_first_apply,
    a_watch_delivers_all_events_in_order,
    a_pod_is_bound_once,
    lists_are_selected_and_paged,
    a_finalizer_keeps_an_object,
    names_are_generated,
    fleet_objects_are_refused_by_field,
    fixed_members_of_fleet_objects_stay,
    environment_in_a_rollout_is_not_deleted,
    fleet_objects_are_listed_by_field_and_label,
    calls_on_fleet_objects_are_lines_of_the_audit_log,
);

/// Runs one part of the contract, in a namespace of its own.
async fn held(flavour: Flavour, test: &str, part: impl AsyncFnOnce(&Api)) {
    if let Some(api) = Api::start_or_skip(flavour, test).await.unwrap() {
        part(&api).await;
    }
}

fn words(line: &str) -> Vec<&str> {
    line.split_whitespace().collect()
}

fn read<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

async fn vms(api: &Api) -> Objects<DynamicObject> {
    Objects::default_namespaced_with(api.client().await.unwrap(), &vm_resource())
}

async fn made(api: &Api, name: &str) -> (Objects<DynamicObject>, DynamicObject) {
    let vms = vms(api).await;
    let vm = read(api.vm(name));
    let vm = vms.create(&PostParams::default(), &vm).await.unwrap();
    (vms, vm)
}

/// The code and the message of a refusal.
fn refusal<T: std::fmt::Debug>(result: kube::Result<T>) -> (u16, String) {
    match result {
        Err(kube::Error::Api(status)) => (status.code, status.message.clone()),
        other => panic!("{other:?}"),
    }
}

fn json_patch(operations: Value) -> Patch<()> {
    Patch::Json(read(operations))
}

async fn our_kinds_are_established_and_listed(api: &Api) {
    let crds = api.kubectl(&["get", "crds", "-o", "json"]).unwrap();
    let crds: Value = serde_json::from_str(&crds).unwrap();
    for name in ["virtualmachines", "virtualmachinemigrations", "ippools"] {
        let full = format!("{name}.vm.neon.tech");
        let mut all = crds["items"].as_array().unwrap().iter();
        let crd = all
            .find(|crd| crd["metadata"]["name"] == full)
            .unwrap_or_else(|| panic!("{full} is missing"));
        let conditions = crd["status"]["conditions"].as_array().unwrap();
        let holds = |kind: &str| {
            let mut found = conditions.iter().filter(|c| c["type"] == kind);
            found.any(|c| c["status"] == "True")
        };
        assert!(holds("Established") && holds("NamesAccepted"), "{crd:#}");
    }
    let group = ["api-resources", "--api-group=vm.neon.tech", "--no-headers"];
    let kinds = api.kubectl(&group).unwrap();
    let mut kinds: Vec<Vec<&str>> = kinds.lines().map(words).collect();
    kinds.sort_unstable();
    let plural: Vec<&str> = kinds.iter().map(|kind| kind[0]).collect();
    assert_eq!(
        plural,
        ["ippools", "virtualmachinemigrations", "virtualmachines"]
    );
    assert!(
        kinds.iter().all(|kind| kind.contains(&"true")),
        "namespaced"
    );
    for singular in ["neonvm", "neonvmm", "ippool"] {
        api.kubectl(&["get", singular]).unwrap();
    }
}

async fn columns_are_as_specified(api: &Api) {
    made(api, "pg").await;
    let status = r#"{"status":{"phase":"Running","cpus":"500m","memorySize":"2Gi","podName":"pg-abcde","extraNetIP":"10.1.2.3","restartCount":3,"node":"here"}}"#;
    let patch = [
        "patch",
        "neonvm",
        "pg",
        "--subresource=status",
        "--type=merge",
        "-p",
        status,
    ];
    api.kubectl(&patch).unwrap();
    let table = api.kubectl(&["get", "neonvm", "-o", "wide"]).unwrap();
    let lines: Vec<Vec<&str>> = table.lines().map(words).collect();
    let header = "NAME CPUS MEMORY POD EXTRAIP STATUS RESTARTS AGE NODE IMAGE CPUSCALINGMODE TARGETARCHITECTURE";
    assert_eq!(lines[0], words(header));
    // Restarts is empty: it reads a member that does not exist, as the deployed definition does.
    assert_eq!(
        lines[1][..6],
        ["pg", "500m", "2Gi", "pg-abcde", "10.1.2.3", "Running"]
    );
    assert_eq!(lines[1][7..], ["here", "pg:16"], "{table}");
    let narrow = api.kubectl(&["get", "neonvm"]).unwrap();
    assert_eq!(words(narrow.lines().next().unwrap()), words(header)[..8]);
    let migration = api.file(
        "migration.yaml",
        "apiVersion: vm.neon.tech/v1\nkind: VirtualMachineMigration\nmetadata: {name: m}\nspec: {vmName: pg}\n",
    );
    api.kubectl(&["create", "-f", &migration.unwrap()]).unwrap();
    let table = api.kubectl(&["get", "neonvmm"]).unwrap();
    let lines: Vec<Vec<&str>> = table.lines().map(words).collect();
    assert_eq!(
        lines[0],
        ["NAME", "VM", "SOURCE", "TARGET", "STATUS", "AGE"]
    );
    assert_eq!(lines[1][..2], ["m", "pg"]);
}

async fn omitted_members_get_defaults(api: &Api) {
    let (_, vm) = made(api, "pg").await;
    for (path, value) in [
        ("/spec/qmp", json!(20183)),
        ("/spec/qmpManual", json!(20184)),
        ("/spec/runnerPort", json!(25183)),
        ("/spec/terminationGracePeriodSeconds", json!(5)),
        ("/spec/restartPolicy", json!("Always")),
        ("/spec/enableAcceleration", json!(true)),
        ("/spec/enableSSH", json!(true)),
        ("/spec/enableNetworkMonitoring", json!(false)),
        ("/spec/guest/memorySlotSize", json!("1Gi")),
        (
            "/spec/guest/rootDisk/imagePullPolicy",
            json!("IfNotPresent"),
        ),
        // Given values stay.
        ("/spec/guest/cpus/min", json!("250m")),
        ("/spec/guest/cpus/use", json!(1)),
    ] {
        assert_eq!(vm.data.pointer(path), Some(&value), "{path}");
    }
    assert_eq!(vm.data.pointer("/status"), None);
    let migration = json!({"apiVersion": "vm.neon.tech/v1", "kind": "VirtualMachineMigration",
        "metadata": {"name": "m"}, "spec": {"vmName": "pg"}});
    let file = api.file("m.json", &migration.to_string()).unwrap();
    let made = api.kubectl(&["create", "-f", &file, "-o", "json"]).unwrap();
    let made: Value = serde_json::from_str(&made).unwrap();
    let expected = json!({"vmName": "pg", "preventMigrationToSameHost": true, "completionTimeout": 3600,
        "incremental": true, "allowPostCopy": false, "autoConverge": true, "maxBandwidth": "1Gi"});
    assert_eq!(made["spec"], expected);
}

async fn violations_of_the_schema_are_refused_by_field(api: &Api) {
    let vms = vms(api).await;
    let bad = |path: &str, value: Value| {
        let mut vm = api.vm("bad");
        let (parent, member) = path.rsplit_once('/').unwrap();
        vm.pointer_mut(parent).unwrap()[member] = value;
        read::<DynamicObject>(vm)
    };
    for (path, value, field) in [
        (
            "/spec/guest/ports",
            json!([{"port": 70000}]),
            "spec.guest.ports[0].port",
        ),
        (
            "/spec/guest/ports",
            json!([{"name": "x"}]),
            "spec.guest.ports[0].port",
        ),
        (
            "/spec/guest/cpus",
            json!({"min": 1, "use": 1}),
            "spec.guest.cpus.max",
        ),
        (
            "/spec/guest/memorySlotSize",
            json!("big"),
            "spec.guest.memorySlotSize",
        ),
        (
            "/spec/restartPolicy",
            json!("Sometimes"),
            "spec.restartPolicy",
        ),
        ("/spec/runnerPort", json!(0), "spec.runnerPort"),
        ("/spec/enableSSH", json!("yes"), "spec.enableSSH"),
        ("/spec/guest", Value::Null, "spec.guest"),
    ] {
        let refused = vms.create(&PostParams::default(), &bad(path, value)).await;
        let (code, message) = refusal(refused);
        assert_eq!(code, 422, "{path}: {message}");
        assert!(message.contains(field), "{path}: {message}");
    }
    let mut vm = api.vm("bad");
    vm["spec"]["guest"]["rootDisc"] = json!({});
    let file = api.file("bad.json", &vm.to_string()).unwrap();
    let unknown = api.kubectl_fails(&["create", "-f", &file]).unwrap();
    assert!(
        unknown.contains(r#"unknown field "spec.guest.rootDisc""#),
        "{unknown}"
    );
    assert!(vms.get_opt("bad").await.unwrap().is_none());
}

async fn unlikely_objects_give_a_warning(api: &Api) {
    let mut vm = api.vm("pg");
    let ports = json!([{"port": 5432, "protocol": "TCP"}, {"port": 20187, "protocol": "TCP"}]);
    vm["spec"]["guest"]["ports"] = ports;
    let file = api.file("vm.json", &vm.to_string()).unwrap();
    let created = api.kubectl_output(&["create", "-f", &file]).unwrap();
    let said = String::from_utf8_lossy(&created.stderr);
    assert!(created.status.success(), "{said}");
    let warning = "Warning: spec.guest.ports[1].port: 20187 is a port of the VM's pod itself";
    assert!(said.contains(warning) && !said.contains("5432"), "{said}");
}

async fn violations_of_rules_between_fields_are_refused_by_field(api: &Api) {
    let vms = vms(api).await;
    for (path, value, field) in [
        ("/spec/guest/cpus/use", json!(5), ".spec.guest.cpus.use"),
        (
            "/spec/guest/cpus/use",
            json!("100m"),
            ".spec.guest.cpus.use",
        ),
        (
            "/spec/guest/memorySlots/use",
            json!(9),
            ".spec.guest.memorySlots.use",
        ),
        (
            "/spec/guest/memorySlotSize",
            json!("9Mi"),
            ".spec.guest.memorySlotSize",
        ),
        (
            "/spec/guest/ports",
            json!([{"name": "qmp", "port": 1}]),
            ".spec.guest.ports[0].name",
        ),
        (
            "/spec/disks",
            json!([{"name": "runtime", "mountPath": "/x", "tmpfs": {"size": "1Mi"}}]),
            ".spec.disks[0].name",
        ),
    ] {
        let mut vm = api.vm("bad");
        let (parent, member) = path.rsplit_once('/').unwrap();
        vm.pointer_mut(parent).unwrap()[member] = value;
        let refused = vms.create(&PostParams::default(), &read(vm)).await;
        let (code, message) = refusal(refused);
        assert_eq!(code, 422, "{path}: {message}");
        assert!(message.contains(field), "{path}: {message}");
    }
    assert!(vms.get_opt("bad").await.unwrap().is_none());
}

async fn immutable_members_cannot_change(api: &Api) {
    let (vms, _) = made(api, "pg").await;
    let patch = async |spec: Value| {
        let params = PatchParams::default();
        vms.patch("pg", &params, &Patch::Merge(json!({"spec": spec})))
            .await
    };
    for (spec, field) in [
        (
            json!({"guest": {"cpus": {"max": 5}}}),
            ".spec.guest.cpus.max",
        ),
        (
            json!({"guest": {"memorySlotSize": "2Gi"}}),
            ".spec.guest.memorySlotSize",
        ),
        (
            json!({"guest": {"rootDisk": {"image": "pg:17"}}}),
            ".spec.guest.rootDisk",
        ),
        (json!({"enableSSH": false}), ".spec.enableSSH"),
        (
            json!({"guest": {"cpus": {"use": 5}}}),
            ".spec.guest.cpus.use",
        ),
    ] {
        let (code, message) = refusal(patch(spec).await);
        assert_eq!(code, 422, "{message}");
        assert!(message.contains(field), "{field}: {message}");
    }
    let once = json!({"cpuScalingMode": "QmpScaling"});
    patch(once.clone()).await.unwrap();
    patch(once).await.unwrap();
    let (code, message) = refusal(patch(json!({"cpuScalingMode": "SysfsScaling"})).await);
    assert!(
        code == 422 && message.contains(".spec.cpuScalingMode"),
        "{code} {message}"
    );
    // Fields that scaling changes may change at any time.
    let resized = json!({"guest": {"cpus": {"use": 4}, "memorySlots": {"use": 8}}});
    patch(resized).await.unwrap();
}

/// Number of calls of the validating webhook. 0 for a server that validates itself.
fn judgements(api: &Api) -> u64 {
    if api.flavour == Flavour::Embedded {
        return 0;
    }
    let metrics = api.kubectl(&["get", "--raw", "/metrics"]).unwrap();
    let of_vms = |line: &&str| {
        line.starts_with("apiserver_admission_webhook_request_total")
            && line.contains("\"vvirtualmachine.kb.io\"")
    };
    let counts = metrics.lines().filter(of_vms);
    let count = |line: &str| line.split(' ').next_back().unwrap().parse::<u64>().unwrap();
    counts.map(count).sum()
}

/// A server with a webhook may skip it for a size that breaks no rule, and must call it for all
/// others.
async fn a_size_is_validated_in_every_form(api: &Api) {
    let (vms, _) = made(api, "pg").await;
    let params = PatchParams::default();
    let patch = async |guest: &Value, others: Value| {
        let mut spec = others;
        spec["guest"] = guest.clone();
        vms.patch("pg", &params, &Patch::Merge(json!({"spec": spec})))
            .await
    };
    let mut unasked = false;
    for value in 0..50 {
        let before = judgements(api);
        for guest in [
            json!({"cpus": {"use": 4}}),
            json!({"cpus": {"use": "250m"}}),
            json!({"cpus": {"use": "3999m"}, "memorySlots": {"use": 8}}),
            json!({"cpus": {"use": 2}, "memorySlots": {"use": 1}}),
        ] {
            let revision = json!({"revision": {"value": value, "flags": 0}, "updatedAt": "2026-01-01T00:00:00Z"});
            let revised = patch(&guest, json!({"targetRevision": revision})).await;
            let kept = &revised.unwrap().data["spec"]["guest"]["cpus"]["use"];
            assert_eq!(kept, &guest["cpus"]["use"]);
        }
        // Other tests share the server. Some time none of them calls it.
        unasked = judgements(api) == before;
        if unasked {
            break;
        }
    }
    assert!(unasked, "sizes are always asked about");
    for (guest, field) in [
        (json!({"cpus": {"use": 5}}), "cpus.use"),
        (json!({"cpus": {"use": 0}}), "cpus.use"),
        (json!({"cpus": {"use": "249m"}}), "cpus.use"),
        (json!({"cpus": {"use": "4001m"}}), "cpus.use"),
        (
            json!({"cpus": {"use": 9_000_000_000_000_000_000_u64}}),
            "cpus.use",
        ),
        (
            json!({"cpus": {"use": "9999999m", "max": 9999}}),
            "cpus.max",
        ),
        (json!({"cpus": {"use": 1, "min": 1}}), "cpus.min"),
        (json!({"memorySlots": {"use": 0}}), "memorySlots.use"),
        (json!({"memorySlots": {"use": 9}}), "memorySlots.use"),
        (
            json!({"memorySlots": {"use": 9, "max": 9}}),
            "memorySlots.max",
        ),
        (
            json!({"memorySlots": {"use": 2, "min": 2}}),
            "memorySlots.min",
        ),
        (
            json!({"cpus": {"use": 1}, "rootDisk": {"image": "x"}}),
            "rootDisk",
        ),
        (json!({"cpus": {"use": 1}, "command": ["x"]}), "command"),
    ] {
        let (code, message) = refusal(patch(&guest, json!({})).await);
        assert!(
            code == 422 && message.contains(field),
            "{guest}: {code} {message}"
        );
    }
    let others = json!({"enableSSH": false});
    let (code, message) = refusal(patch(&json!({"cpus": {"use": 1}}), others).await);
    assert!(code == 422 && message.contains("enableSSH"), "{message}");
    changes_beside_a_size_are_validated(api, &vms).await;
}

/// Changes in pairs: one value is removed while another is added, so that the number of values
/// stays.
async fn changes_beside_a_size_are_validated(api: &Api, vms: &Objects<DynamicObject>) {
    let mut vm = api.vm("args");
    vm["spec"]["guest"]["args"] = json!(["-c", "work_mem=4MB"]);
    vm["spec"]["initScript"] = json!("true");
    let made = vms.create(&PostParams::default(), &read(vm)).await.unwrap();
    assert!(made.data["spec"]["targetRevision"].is_null());
    let revision =
        json!({"revision": {"value": 1, "flags": 0}, "updatedAt": "2026-01-01T00:00:00Z"});
    for (spec, field) in [
        (
            json!({"guest": {"cpus": {"use": 4}}, "initScript": null, "targetRevision": revision}),
            "initScript",
        ),
        (
            json!({"guest": {"cpus": {"use": 4}, "args": null, "command": ["x"]}}),
            "args",
        ),
        (json!({"guest": {"cpus": {"use": 4}, "args": null}}), "args"),
    ] {
        let patch = Patch::Merge(json!({"spec": spec}));
        let gone = vms.patch("args", &PatchParams::default(), &patch).await;
        let (code, message) = refusal(gone);
        assert!(
            code == 422 && message.contains(field),
            "{field}: {code} {message}"
        );
    }
}

async fn amounts_are_kept_in_one_form(api: &Api) {
    let vms = vms(api).await;
    let mut vm = api.vm("pg");
    vm["spec"]["guest"]["cpus"] = json!({"min": 0.25, "use": 0.5, "max": "4000m"});
    vm["spec"]["guest"]["memorySlotSize"] = json!("1024Mi");
    let kept = vms.create(&PostParams::default(), &read(vm)).await.unwrap();
    let guest = &kept.data["spec"]["guest"];
    assert_eq!(
        guest["cpus"],
        json!({"min": "250m", "use": "500m", "max": 4})
    );
    assert_eq!(guest["memorySlotSize"], "1Gi");
    // So is each of a change, whatever else changes with it.
    let params = PatchParams::default();
    for (changed, kept) in [
        (json!({"use": 0.75}), json!("750m")),
        (json!({"use": "2000m"}), json!(2)),
        (json!({"use": "1500m"}), json!("1500m")),
        (json!({"use": 3}), json!(3)),
        (json!({"use": "1.5", "max": 4.0}), json!("1500m")),
    ] {
        let patch = Patch::Merge(json!({"spec": {"guest": {"cpus": changed}}}));
        let vm = vms.patch("pg", &params, &patch).await.unwrap();
        let cpus = &vm.data["spec"]["guest"]["cpus"];
        assert_eq!(
            (&cpus["use"], &cpus["max"]),
            (&kept, &json!(4)),
            "{changed}"
        );
    }
    for wrong in [
        json!({"use": 5}),
        json!({"use": "4250m"}),
        json!({"use": 0}),
        json!({"use": -1}),
    ] {
        let patch = Patch::Merge(json!({"spec": {"guest": {"cpus": wrong}}}));
        let (code, message) = refusal(vms.patch("pg", &params, &patch).await);
        assert!(
            code == 422 && message.contains("cpus.use"),
            "{code} {message}"
        );
    }
    let more = json!({"spec": {"guest": {"cpus": {"use": 1}}, "overcommit": {"cpu": 2.5}}});
    let vm = vms.patch("pg", &params, &Patch::Merge(more)).await.unwrap();
    assert_eq!(vm.data["spec"]["overcommit"]["cpu"], "2500m");
}

async fn status_and_spec_are_written_apart(api: &Api) {
    let (vms, vm) = made(api, "pg").await;
    let both = json!({"spec": {"guest": {"cpus": {"use": 2}}}, "status": {"phase": "Running"}});
    let params = PatchParams::default();
    let spec = vms
        .patch("pg", &params, &Patch::Merge(&both))
        .await
        .unwrap();
    assert_eq!(spec.data["spec"]["guest"]["cpus"]["use"], 2);
    assert_eq!(spec.data.pointer("/status/phase"), None);
    assert_eq!(
        spec.metadata.generation,
        vm.metadata.generation.map(|n| n + 1)
    );
    let other = json!({"spec": {"guest": {"cpus": {"use": 3}}}, "status": {"phase": "Running"}});
    let status = vms
        .patch_status("pg", &params, &Patch::Merge(&other))
        .await
        .unwrap();
    assert_eq!(status.data["spec"]["guest"]["cpus"]["use"], 2);
    assert_eq!(status.data["status"]["phase"], "Running");
    assert_eq!(status.metadata.generation, spec.metadata.generation);
}

async fn a_write_of_an_old_version_is_refused(api: &Api) {
    let (vms, old) = made(api, "pg").await;
    let label = json!({"metadata": {"labels": {"a": "b"}}});
    let params = PatchParams::default();
    vms.patch("pg", &params, &Patch::Merge(&label))
        .await
        .unwrap();
    let replaced = vms.replace("pg", &PostParams::default(), &old).await;
    assert_eq!(refusal(replaced).0, 409);
    let version = old.metadata.resource_version.clone().unwrap();
    let merge = json!({"metadata": {"resourceVersion": version, "labels": {"a": "c"}}});
    let merged = vms.patch("pg", &params, &Patch::Merge(&merge)).await;
    assert_eq!(refusal(merged).0, 409);

    let leases: Objects<Lease> = Objects::default_namespaced(api.client().await.unwrap());
    let lease =
        |holder: &str| json!({"metadata": {"name": "l"}, "spec": {"holderIdentity": holder}});
    let first = leases
        .create(&PostParams::default(), &read(lease("a")))
        .await
        .unwrap();
    let again = leases
        .create(&PostParams::default(), &read(lease("b")))
        .await;
    assert_eq!(refusal(again).0, 409);
    let mut taken = lease("b");
    taken["metadata"]["resourceVersion"] = json!(first.metadata.resource_version);
    let patched = leases
        .patch("l", &params, &Patch::Merge(&taken))
        .await
        .unwrap();
    assert_eq!(patched.spec.unwrap().holder_identity.as_deref(), Some("b"));
    let late = leases.patch("l", &params, &Patch::Merge(&taken)).await;
    assert_eq!(refusal(late).0, 409);
}

async fn a_patch_whose_test_fails_changes_nothing(api: &Api) {
    let (vms, vm) = made(api, "pg").await;
    let params = PatchParams::default();
    let version = vm.metadata.resource_version.clone().unwrap();
    let note = "/metadata/annotations/autoscaling.neon.tech~1scaling-unit";
    let write = |version: &str, value: &str| {
        json_patch(json!([
            {"op": "test", "path": "/metadata/resourceVersion", "value": version},
            {"op": "add", "path": "/metadata/annotations", "value": {}},
            {"op": "add", "path": note, "value": value}]))
    };
    let first = vms
        .patch("pg", &params, &write(&version, "one"))
        .await
        .unwrap();
    let notes = first.metadata.annotations.unwrap();
    assert_eq!(notes["autoscaling.neon.tech/scaling-unit"], "one");
    let (code, _) = refusal(vms.patch("pg", &params, &write(&version, "two")).await);
    assert!(code == 422 || code == 409, "{code}");
    // On a member that is not there, `replace` would make one: the API has always been lax here.
    let missing = json_patch(json!([{"op": "test", "path": note, "value": "two"},
        {"op": "replace", "path": note, "value": "three"}]));
    assert_eq!(refusal(vms.patch("pg", &params, &missing).await).0, 422);
    let now = vms.get("pg").await.unwrap();
    assert_eq!(
        now.metadata.annotations.unwrap()["autoscaling.neon.tech/scaling-unit"],
        "one"
    );
    assert_eq!(
        now.metadata.resource_version,
        first.metadata.resource_version
    );
}

async fn appliers_own_what_they_set(api: &Api) {
    let vms = vms(api).await;
    let apply = |manager: &str| PatchParams::apply(manager);
    vms.patch("pg", &apply("one"), &Patch::Apply(api.vm("pg")))
        .await
        .unwrap();
    let mut other = api.vm("pg");
    other["spec"] = json!({"guest": {"cpus": {"use": 2}}});
    let taken = vms
        .patch("pg", &apply("two"), &Patch::Apply(other.clone()))
        .await;
    let (code, message) = refusal(taken);
    assert_eq!(code, 409, "{message}");
    assert!(message.contains("spec.guest.cpus.use"), "{message}");
    let forced = apply("two").force();
    let forced = vms
        .patch("pg", &forced, &Patch::Apply(other))
        .await
        .unwrap();
    assert_eq!(forced.data["spec"]["guest"]["cpus"]["use"], 2);
}

async fn field_managers_are_dropped_until_the_first_apply(api: &Api) {
    let (vms, vm) = made(api, "pg").await;
    assert!(vm.metadata.managed_fields.is_some());
    let params = PatchParams::default();
    let forget =
        json_patch(json!([{"op": "add", "path": "/metadata/managedFields", "value": [{}]}]));
    vms.patch("pg", &params, &forget).await.unwrap();
    let size = Patch::Merge(json!({"spec": {"guest": {"cpus": {"use": 2}}}}));
    let vm = vms.patch("pg", &params, &size).await.unwrap();
    assert_eq!(vm.metadata.managed_fields, None);
    let mut applied = api.vm("pg");
    applied["spec"] = json!({"guest": {"cpus": {"use": 3}}});
    let taken = vms
        .patch("pg", &PatchParams::apply("one"), &Patch::Apply(applied))
        .await;
    let (code, message) = refusal(taken);
    assert_eq!(code, 409, "{message}");
    assert!(message.contains("before-first-apply"), "{message}");
}

async fn a_watch_delivers_all_events_in_order(api: &Api) {
    let vms = vms(api).await;
    let mut events = watcher(vms.clone(), watcher::Config::default()).boxed();
    let mut next = async || {
        let event = tokio::time::timeout(PATIENCE, events.try_next())
            .await
            .unwrap();
        event.unwrap().unwrap()
    };
    assert!(matches!(next().await, watcher::Event::Init));
    assert!(matches!(next().await, watcher::Event::InitDone));
    made(api, "pg").await;
    for use_now in [2, 3, 4] {
        let patch = json!({"spec": {"guest": {"cpus": {"use": use_now}}}});
        let params = PatchParams::default();
        vms.patch("pg", &params, &Patch::Merge(&patch))
            .await
            .unwrap();
    }
    vms.delete("pg", &DeleteParams::default()).await.unwrap();
    for use_now in [1, 2, 3, 4] {
        match next().await {
            watcher::Event::Apply(vm) => {
                assert_eq!(vm.data["spec"]["guest"]["cpus"]["use"], use_now);
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(matches!(next().await, watcher::Event::Delete(_)));
}

async fn a_pod_is_bound_once(api: &Api) {
    let pods: Objects<Pod> = Objects::default_namespaced(api.client().await.unwrap());
    let pod = json!({"metadata": {"name": "p"}, "spec": {"schedulerName": "nobody",
        "containers": [{"name": "c", "image": "i"}]}});
    let pod = pods
        .create(&PostParams::default(), &read(pod))
        .await
        .unwrap();
    let bind = async |uid: &str| {
        let binding = json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "p", "uid": uid},
            "target": {"apiVersion": "v1", "kind": "Node", "name": "n1"}});
        let params = PostParams::default();
        pods.create_subresource::<_, Value>("binding", "p", &params, &binding)
            .await
    };
    assert_eq!(
        refusal(bind("00000000-0000-0000-0000-000000000000").await).0,
        409
    );
    let uid = pod.metadata.uid.unwrap();
    bind(&uid).await.unwrap();
    assert_eq!(refusal(bind(&uid).await).0, 409, "it is bound");
    let now = pods.get("p").await.unwrap();
    assert_eq!(now.spec.unwrap().node_name.as_deref(), Some("n1"));
    let conditions = now.status.unwrap().conditions.unwrap_or_default();
    let scheduled = conditions
        .iter()
        .find(|c| c.type_ == "PodScheduled")
        .unwrap();
    assert_eq!(scheduled.status, "True");
}

async fn lists_are_selected_and_paged(api: &Api) {
    let maps: Objects<ConfigMap> = Objects::default_namespaced(api.client().await.unwrap());
    for (name, colour) in [("a", "red"), ("b", "blue"), ("c", "red"), ("d", "red")] {
        let map = json!({"metadata": {"name": name, "labels": {"colour": colour}}});
        maps.create(&PostParams::default(), &read(map))
            .await
            .unwrap();
    }
    let names = |maps: &[ConfigMap]| -> Vec<String> {
        let names = maps.iter().filter_map(|map| map.metadata.name.clone());
        names.collect()
    };
    let red = ListParams::default().labels("colour=red");
    let first = maps.list(&red.clone().limit(2)).await.unwrap();
    assert_eq!(names(&first.items), ["a", "c"]);
    let more = first.metadata.continue_.unwrap();
    let rest = maps
        .list(&red.limit(2).continue_token(&more))
        .await
        .unwrap();
    assert_eq!(names(&rest.items), ["d"]);
    assert_eq!(rest.metadata.continue_.unwrap_or_default(), "");
    let others = ListParams::default()
        .labels("colour notin (red)")
        .fields("metadata.name!=x");
    assert_eq!(names(&maps.list(&others).await.unwrap().items), ["b"]);
}

async fn a_finalizer_keeps_an_object(api: &Api) {
    let (vms, _) = made(api, "pg").await;
    let params = PatchParams::default();
    let keep = json!({"metadata": {"finalizers": ["vm.neon.tech/finalizer"]}});
    vms.patch("pg", &params, &Patch::Merge(&keep))
        .await
        .unwrap();
    vms.delete("pg", &DeleteParams::default()).await.unwrap();
    let doomed = vms.get("pg").await.unwrap();
    assert!(doomed.metadata.deletion_timestamp.is_some());
    let again = vms
        .create(&PostParams::default(), &read(api.vm("pg")))
        .await;
    assert_eq!(refusal(again).0, 409);
    let free = json!({"metadata": {"finalizers": null}});
    vms.patch("pg", &params, &Patch::Merge(&free))
        .await
        .unwrap();
    assert!(vms.get_opt("pg").await.unwrap().is_none());
}

async fn names_are_generated(api: &Api) {
    let vms = vms(api).await;
    let mut vm = api.vm("");
    vm["metadata"] = json!({"generateName": "pg-"});
    let mut names = Vec::new();
    for _ in 0..2 {
        let vm = vms
            .create(&PostParams::default(), &read(vm.clone()))
            .await
            .unwrap();
        names.push(vm.metadata.name.unwrap());
    }
    assert_ne!(names[0], names[1]);
    assert!(
        names
            .iter()
            .all(|name| name.starts_with("pg-") && name.len() == 8),
        "{names:?}"
    );
    vm["metadata"] = json!({"name": "Not A Name"});
    let refused = vms.create(&PostParams::default(), &read(vm)).await;
    assert_eq!(refusal(refused).0, 422);
}
