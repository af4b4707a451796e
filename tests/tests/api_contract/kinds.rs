//! The contract about the form of each kind: immutable fields of a VM in any spelling, migrations,
//! pools.

use bellows_tests::api::Api;
use bellows_tests::site::vm_resource;
use kube::Api as Objects;
use kube::api::{ApiResource, DynamicObject, Patch, PatchParams, PostParams};
use protocol::admission::RESERVED_DISK_NAMES;
use serde_json::{Value, json};

use super::{made, read, refusal, vms, words};

/// Objects of another of our kinds.
async fn objects(api: &Api, kind: &str, plural: &str) -> Objects<DynamicObject> {
    let resource = ApiResource {
        kind: kind.to_owned(),
        plural: plural.to_owned(),
        ..vm_resource()
    };
    Objects::default_namespaced_with(api.client().await.unwrap(), &resource)
}

fn object(kind: &str, name: &str, spec: &Value) -> DynamicObject {
    read(
        json!({"apiVersion": "vm.neon.tech/v1", "kind": kind, "metadata": {"name": name}, "spec": spec}),
    )
}

/// A refusal of a spec that names the field.
fn refused_by<T: std::fmt::Debug>(result: kube::Result<T>, field: &str) {
    let (code, message) = refusal(result);
    assert!(
        code == 422 && message.contains(field),
        "{field}: {code} {message}"
    );
}

pub(super) async fn every_name_of_the_vms_own_is_refused_for_a_disk(api: &Api) {
    let vms = vms(api).await;
    let named = |name: &str| {
        let mut vm = api.vm("bad");
        vm["spec"]["disks"] = json!([{"name": name, "mountPath": "/x", "tmpfs": {"size": "1Mi"}}]);
        read::<DynamicObject>(vm)
    };
    let longest = "d".repeat(32);
    let long = format!("{longest}d");
    for name in RESERVED_DISK_NAMES.into_iter().chain([long.as_str()]) {
        let refused = vms.create(&PostParams::default(), &named(name)).await;
        refused_by(refused, ".spec.disks[0].name");
    }
    let params = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    vms.create(&params, &named(&longest)).await.unwrap();
}

pub(super) async fn every_fixed_member_is_refused_by_field(api: &Api) {
    let (vms, _) = made(api, "pg").await;
    let patch = async |spec: &Value| {
        let params = PatchParams::default();
        vms.patch("pg", &params, &Patch::Merge(json!({"spec": spec})))
            .await
    };
    let disk = json!([{"name": "d", "mountPath": "/d", "tmpfs": {"size": "1Mi"}}]);
    for (spec, field) in [
        (
            json!({"guest": {"cpus": {"min": "500m"}}}),
            "guest.cpus.min",
        ),
        (
            json!({"guest": {"memorySlots": {"min": 2}}}),
            "guest.memorySlots.min",
        ),
        (
            json!({"guest": {"memorySlots": {"max": 9}}}),
            "guest.memorySlots.max",
        ),
        (json!({"guest": {"command": ["x"]}}), "guest.command"),
        (json!({"guest": {"args": ["x"]}}), "guest.args"),
        (json!({"guest": {"env": [{"name": "A"}]}}), "guest.env"),
        (json!({"guest": {"ports": [{"port": 1}]}}), "guest.ports"),
        (
            json!({"guest": {"settings": {"swap": "1Gi"}}}),
            "guest.settings",
        ),
        (
            json!({"podResources": {"limits": {"cpu": 1}}}),
            "podResources",
        ),
        (json!({"initScript": "true"}), "initScript"),
        (json!({"disks": disk}), "disks"),
        (json!({"enableAcceleration": false}), "enableAcceleration"),
        (
            json!({"enableNetworkMonitoring": true}),
            "enableNetworkMonitoring",
        ),
    ] {
        refused_by(patch(&spec).await, &format!(".spec.{field} is immutable"));
    }
    let once = json!({"targetArchitecture": "amd64"});
    patch(&once).await.unwrap();
    patch(&once).await.unwrap();
    for other in [json!("arm64"), Value::Null] {
        let refused = patch(&json!({"targetArchitecture": other})).await;
        refused_by(refused, ".spec.targetArchitecture is immutable");
    }
}

/// Values without a visible difference may be added and removed.
pub(super) async fn empty_members_are_no_change(api: &Api) {
    let vms = vms(api).await;
    let vm = |empty: Value, root: Value, settings: Value, port: Value, resources: Value| {
        let mut vm = api.vm("pg");
        vm["spec"]["disks"] = json!([{"name": "d", "mountPath": "/d", "emptyDisk": empty}]);
        vm["spec"]["guest"]["rootDisk"] = root;
        vm["spec"]["guest"]["settings"] = settings;
        vm["spec"]["guest"]["ports"] = json!([port]);
        vm["spec"]["podResources"] = resources;
        vm
    };
    let long = vm(
        json!({"size": "1Gi", "discard": false, "enableQuotas": false}),
        json!({"image": "pg:16", "execute": []}),
        json!({"swap": "1Gi", "sysctl": []}),
        json!({"port": 5432, "name": ""}),
        json!({"requests": {"cpu": "1"}, "limits": {}}),
    );
    let short = vm(
        json!({"size": "1Gi"}),
        json!({"image": "pg:16"}),
        json!({"swap": "1Gi"}),
        json!({"port": 5432}),
        json!({"requests": {"cpu": "1"}}),
    );
    let params = PostParams::default();
    let mut now = vms.create(&params, &read(long.clone())).await.unwrap();
    for (use_now, mut next) in [(2, short), (3, long)] {
        next["metadata"]["resourceVersion"] = json!(now.metadata.resource_version);
        next["spec"]["guest"]["cpus"]["use"] = json!(use_now);
        now = vms.replace("pg", &params, &read(next)).await.unwrap();
        assert_eq!(now.data["spec"]["guest"]["cpus"]["use"], use_now);
    }
    let mut other = now.clone();
    other.data["spec"]["disks"][0]["emptyDisk"]["discard"] = json!(true);
    refused_by(
        vms.replace("pg", &params, &other).await,
        ".spec.disks is immutable",
    );
}

pub(super) async fn migrations_are_held_to_their_form(api: &Api) {
    const KIND: &str = "VirtualMachineMigration";
    let all = objects(api, KIND, "virtualmachinemigrations").await;
    let create = async |name: &str, spec: Value| {
        let migration = object(KIND, name, &spec);
        all.create(&PostParams::default(), &migration).await
    };
    let least = "spec.vmName in body should be at least 1 chars long";
    for (spec, field) in [
        (json!({}), "spec.vmName"),
        (json!({"vmName": ""}), least),
        (json!({"vmName": 1}), "spec.vmName"),
        (
            json!({"vmName": "pg", "maxBandwidth": "fast"}),
            "spec.maxBandwidth",
        ),
        (
            json!({"vmName": "pg", "incremental": "yes"}),
            "spec.incremental",
        ),
    ] {
        refused_by(create("bad", spec).await, field);
    }
    for (name, given, kept) in [
        ("text", json!("2048Mi"), "2Gi"),
        ("number", json!(1_000_000), "1M"),
        ("same", json!("100M"), "100M"),
    ] {
        let made = create(name, json!({"vmName": "pg", "maxBandwidth": given})).await;
        assert_eq!(made.unwrap().data["spec"]["maxBandwidth"], kept);
    }
    let params = PatchParams::default();
    let patch = async |patch: Value| all.patch("text", &params, &Patch::Merge(patch)).await;
    for spec in [
        json!({"vmName": "other"}),
        json!({"incremental": false}),
        json!({"maxBandwidth": "1Gi"}),
        json!({"maxBandwidth": null}),
        json!({"nodeSelector": {"a": "b"}}),
    ] {
        refused_by(patch(json!({"spec": spec})).await, ".spec is immutable");
    }
    // The same values in another spelling, and fields outside the spec.
    let same = json!({"maxBandwidth": "2Gi", "nodeSelector": {}});
    patch(json!({"spec": same, "metadata": {"labels": {"a": "b"}}}))
        .await
        .unwrap();
    let status = json!({"status": {"phase": "Running", "sourcePodName": "pg-one",
        "sourcePodIP": "10.0.0.1", "targetPodName": "pg-two", "targetPodIP": "10.0.0.2"}});
    all.patch_status("text", &params, &Patch::Merge(&status))
        .await
        .unwrap();
    let table = api.kubectl(&["get", "neonvmm", "text", "-o", "wide"]);
    let table = table.unwrap();
    let lines: Vec<Vec<&str>> = table.lines().map(words).collect();
    let header = "NAME VM SOURCE SOURCEIP TARGET TARGETIP STATUS AGE";
    assert_eq!(lines[0], words(header));
    let row = "text pg pg-one 10.0.0.1 pg-two 10.0.0.2 Running";
    assert_eq!(lines[1][..7], words(row));
}

pub(super) async fn pools_are_held_to_their_form(api: &Api) {
    const KIND: &str = "IPPool";
    let all = objects(api, KIND, "ippools").await;
    let params = PostParams::default();
    let held = json!({"3": {"id": "default/pg"}});
    for (spec, field) in [
        (json!({"allocations": held}), "spec.range"),
        (json!({"range": "10.0.0.0/24"}), "spec.allocations"),
        (json!({"range": 10, "allocations": held}), "spec.range"),
        (
            json!({"range": "10.0.0.0/24", "allocations": {"3": {}}}),
            "spec.allocations.3.id",
        ),
        (
            json!({"range": "10.0.0.0/24", "allocations": []}),
            "spec.allocations",
        ),
    ] {
        refused_by(
            all.create(&params, &object(KIND, "bad", &spec)).await,
            field,
        );
    }
    let spec = json!({"range": "10.0.0.0/24", "allocations": held});
    let pool = all
        .create(&params, &object(KIND, "p", &spec))
        .await
        .unwrap();
    assert_eq!(pool.data["spec"], spec, "nothing is filled in");
    let params = PatchParams::default();
    let patch = async |spec: Value| {
        let patch = Patch::Merge(json!({"spec": spec}));
        all.patch("p", &params, &patch).await
    };
    // Addresses are added and removed, each with its owner.
    let taken = json!({"allocations": {"3": null, "4": {"id": "default/other", "podref": "uid"}}});
    let pool = patch(taken).await.unwrap();
    let left = json!({"4": {"id": "default/other", "podref": "uid"}});
    assert_eq!(pool.data["spec"]["allocations"], left);
    refused_by(patch(json!({"range": null})).await, "spec.range");
    let nobodys = json!({"allocations": {"5": {"podref": "uid"}}});
    refused_by(patch(nobodys).await, "spec.allocations.5.id");
    // There is no status.
    let status = Patch::Merge(json!({"status": {"a": 1}}));
    assert_eq!(
        refusal(all.patch_status("p", &params, &status).await).0,
        404
    );
    let table = api.kubectl(&["get", "ippool"]).unwrap();
    assert_eq!(words(table.lines().next().unwrap()), ["NAME", "AGE"]);
}
