//! The contract about the wanted size: a manifest may omit it, and applying one again keeps it.

use bellows_tests::api::Api;
use kube::Api as Objects;
use kube::api::{DynamicObject, Patch, PatchParams, PostParams};
use protocol::admission::AGENT_FIELD_MANAGER;
use serde_json::{Value, json};

use super::{read, vms};

const ENABLED: &str = "autoscaling.neon.tech/enabled";

/// Manifest of a VM. `size` holds its `use` of CPU and slots.
fn manifest(api: &Api, is_autoscaled: bool, size: Option<(u32, u32)>) -> Value {
    let mut vm = api.vm("pg");
    vm["metadata"]["labels"] = json!({ENABLED: is_autoscaled.to_string()});
    vm["spec"]["guest"]["cpus"] = json!({"min": 1, "max": 4});
    vm["spec"]["guest"]["memorySlots"] = json!({"min": 1, "max": 8});
    if let Some((cpus, slots)) = size {
        vm["spec"]["guest"]["cpus"]["use"] = json!(cpus);
        vm["spec"]["guest"]["memorySlots"]["use"] = json!(slots);
    }
    vm
}

/// Applies a manifest with `kubectl`, and returns the warnings.
fn apply(api: &Api, manifest: &Value, flags: &[&str]) -> String {
    let file = api.file("vm.json", &manifest.to_string()).unwrap();
    let output = api.kubectl_output(&[&["apply", "-f", &file], flags].concat());
    let output = output.unwrap();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{errors}");
    errors
}

fn size(vm: &DynamicObject) -> [Value; 2] {
    ["cpus", "memorySlots"].map(|part| vm.data["spec"]["guest"][part]["use"].clone())
}

async fn resize(vms: &Objects<DynamicObject>, manager: &str, revision: i64, to: [u32; 2]) {
    let operations = json!([
        {"op": "replace", "path": "/spec/guest/cpus/use", "value": to[0]},
        {"op": "replace", "path": "/spec/guest/memorySlots/use", "value": to[1]},
        {"op": "add", "path": "/spec/targetRevision", "value":
            {"revision": {"value": revision, "flags": 0}, "updatedAt": "2026-01-01T00:00:00Z"}},
    ]);
    let params = PatchParams {
        field_manager: Some(manager.to_owned()),
        ..PatchParams::default()
    };
    let patch = Patch::Json::<()>(read(operations));
    vms.patch("pg", &params, &patch).await.unwrap();
}

async fn live(vms: &Objects<DynamicObject>) -> [Value; 2] {
    size(&vms.get("pg").await.unwrap())
}

pub(super) async fn omitted_size_is_filled_in(api: &Api) {
    let vms = vms(api).await;
    let vm = read(manifest(api, false, None));
    let made = vms.create(&PostParams::default(), &vm).await.unwrap();
    assert_eq!(size(&made), [1, 1].map(Value::from));
    let params = PatchParams::default();
    let grown = json!({"spec": {"guest": {"cpus": {"use": 2}, "memorySlots": {"use": 3}}}});
    vms.patch("pg", &params, &Patch::Merge(grown))
        .await
        .unwrap();
    // Taken out, each by itself, and left out of a whole new state.
    for part in ["cpus", "memorySlots"] {
        let out = json!({"spec": {"guest": {part: {"use": null}}}});
        let kept = vms.patch("pg", &params, &Patch::Merge(out)).await.unwrap();
        assert_eq!(size(&kept), [2, 3].map(Value::from), "{part}");
    }
    let mut whole = vms.get("pg").await.unwrap();
    for part in ["cpus", "memorySlots"] {
        let guest = &mut whole.data["spec"]["guest"][part];
        guest.as_object_mut().unwrap().remove("use");
    }
    whole.data["spec"]["terminationGracePeriodSeconds"] = json!(7);
    let kept = vms.replace("pg", &PostParams::default(), &whole).await;
    assert_eq!(size(&kept.unwrap()), [2, 3].map(Value::from));
}

pub(super) async fn manifest_applied_again_keeps_the_live_size(api: &Api) {
    let vms = vms(api).await;
    let silent = manifest(api, true, None);
    apply(api, &silent, &[]);
    assert_eq!(live(&vms).await, [1, 1].map(Value::from));
    resize(&vms, AGENT_FIELD_MANAGER, 1, [3, 5]).await;
    // On either side, without a conflict and without a warning.
    for flags in [&[][..], &["--server-side"]] {
        let warned = apply(api, &silent, flags);
        assert!(!warned.contains("stays"), "{warned}");
        assert_eq!(live(&vms).await, [3, 5].map(Value::from), "{flags:?}");
    }
    // A manifest with an outdated size.
    let stale = manifest(api, true, Some((1, 1)));
    for flags in [&[][..], &["--server-side", "--force-conflicts"]] {
        let warned = apply(api, &stale, flags);
        for part in ["cpus", "memorySlots"] {
            let said = format!(".spec.guest.{part}.use stays");
            assert!(warned.contains(&said), "{flags:?}: {warned}");
        }
        assert_eq!(live(&vms).await, [3, 5].map(Value::from), "{flags:?}");
    }
    // The manifest no longer holds the size.
    apply(api, &silent, &["--server-side"]);
    assert_eq!(live(&vms).await, [3, 5].map(Value::from));
}

pub(super) async fn agent_alone_makes_an_autoscaled_vm_smaller(api: &Api) {
    let vms = vms(api).await;
    apply(api, &manifest(api, true, Some((3, 5))), &[]);
    resize(&vms, "somebody", 1, [2, 2]).await;
    assert_eq!(live(&vms).await, [3, 5].map(Value::from));
    resize(&vms, AGENT_FIELD_MANAGER, 2, [2, 2]).await;
    assert_eq!(live(&vms).await, [2, 2].map(Value::from));
    // Without the label the size is everybody's, as ever.
    let warned = apply(api, &manifest(api, false, Some((1, 1))), &[]);
    assert!(!warned.contains("stays"), "{warned}");
    assert_eq!(live(&vms).await, [1, 1].map(Value::from));
}
