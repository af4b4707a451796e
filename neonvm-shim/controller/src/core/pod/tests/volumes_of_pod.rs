//! Volumes, mounts and ports of a runner pod.

use super::*;

#[test]
fn volumes_and_mounts_belong_together() {
    let mut vm = sample_vm();
    vm.spec.guest.settings = serde_json::from_value(json!({"swap": "1Gi"})).ok();
    vm.spec.disks = serde_json::from_value(json!([
        {"name": "empty", "mountPath": "/e", "emptyDisk": {"size": "2Gi", "discard": true}, "configMap": {"name": "x"}},
        {"name": "map", "mountPath": "/m", "readOnly": true, "configMap": {"name": "cm", "items": [{"key": "a", "path": "b"}], "optional": true}},
        {"name": "secret", "mountPath": "/s", "secret": {"secretName": "sec"}},
        {"name": "tmp", "mountPath": "/t", "tmpfs": {"size": "1Gi"}},
    ]))
    .expect("disks");
    vm.spec.tls = Some(json!({"mountPath": "/tls"}));
    let pod = one_machine(&vm);
    let volumes = &pod["spec"]["volumes"];
    let mounts = &pod["spec"]["containers"][0]["volumeMounts"];
    let expected = [
        "virtualmachineimages",
        "sysfscgroup",
        "ssh-privatekey",
        "ssh-publickey",
        "swapdisk",
        "empty",
        "map",
        "secret",
        "tls",
    ];
    assert_eq!(names(volumes), expected);
    assert_eq!(
        names(mounts),
        expected,
        "each volume is mounted, and nothing else"
    );
    assert_eq!(
        volumes[2]["secret"]["items"][0],
        json!({"key": "ssh-privatekey", "path": "id_ed25519", "mode": 0o600})
    );
    assert_eq!(
        volumes[3]["secret"]["items"][0],
        json!({"key": "ssh-publickey", "path": "authorized_keys", "mode": 0o644})
    );
    assert_eq!(
        volumes[4],
        json!({"name": "swapdisk", "emptyDir": {"sizeLimit": "1Gi"}})
    );
    assert_eq!(
        volumes[5],
        json!({"name": "empty", "emptyDir": {"sizeLimit": "2Gi"}})
    );
    assert_eq!(
        volumes[6],
        json!({"name": "map", "configMap": {"name": "cm", "items": [{"key": "a", "path": "b"}]}})
    );
    assert_eq!(
        volumes[7],
        json!({"name": "secret", "secret": {"secretName": "sec"}})
    );
    assert_eq!(
        mounts[6],
        json!({"name": "map", "mountPath": "/vm/mounts/m", "readOnly": true})
    );
    assert_eq!(mounts[8]["mountPath"], "/vm/mounts/tls");
}

#[test]
fn token_of_controller_is_mounted_in_cluster() {
    let vm = sample_vm();
    let pod = build(&vm, &status(), &Settings::cluster("r:1"));
    let volumes = pod["spec"]["volumes"].as_array().expect("volumes");
    let volume = volumes
        .iter()
        .find(|volume| volume["name"] == "runner-token");
    assert_eq!(
        volume.map(|volume| &volume["secret"]),
        Some(&json!({"secretName": "runner-neonvm-example", "defaultMode": 0o400}))
    );
    let mounts = pod["spec"]["containers"][0]["volumeMounts"].as_array();
    let mut mounts = mounts.into_iter().flatten();
    let mount = mounts.find(|mount| mount["name"] == "runner-token");
    assert_eq!(
        mount,
        Some(&json!({"name": "runner-token", "mountPath": "/vm/control", "readOnly": true}))
    );
    let alone = one_machine(&vm);
    assert!(!names(&alone["spec"]["volumes"]).contains(&"runner-token"));
}

#[test]
fn unwanted_volumes_are_left_out() {
    let mut vm = sample_vm();
    vm.spec.enable_ssh = false;
    let mut settings = Settings::one_machine();
    settings.skip_cgroup_management = true;
    let pod = build(&vm, &status(), &settings);
    for absent in ["sysfscgroup", "ssh-privatekey", "ssh-publickey"] {
        assert!(
            !names(&pod["spec"]["volumes"]).contains(&absent),
            "{absent}"
        );
    }
}

#[test]
fn guest_ports_follow_runner_ports() {
    let mut vm = sample_vm();
    vm.spec.guest.ports = serde_json::from_value(
        json!([{"port": 5432, "name": "pg"}, {"port": 53, "protocol": "UDP"}]),
    )
    .expect("ports");
    assert_eq!(
        ports(&vm)[3..],
        [
            json!({"name": "pg", "containerPort": 5432, "protocol": "TCP"}),
            json!({"containerPort": 53, "protocol": "UDP"}),
        ]
    );
}

#[test]
fn runner_gets_vm_uid_only_with_claimed_disks() {
    let mut vm = sample_vm();
    vm.metadata.uid = "uid-1".into();
    let use_disk = ("bellows.dev/use-disk".to_owned(), "true".to_owned());
    vm.metadata.annotations.extend([use_disk]);
    let settings = Settings::cluster("runner:1");
    let told = |vm: &VirtualMachine| {
        let pod = build(vm, &status(), &settings);
        let env = pod["spec"]["containers"][0]["env"].as_array().cloned();
        let env = env.into_iter().flatten();
        let ours = ["K8S_POD_NAMESPACE", "VM_UID", "VM_USE_DISK"].map(Value::from);
        env.filter(|one| ours.contains(&one["name"])).collect()
    };
    let none: Vec<Value> = told(&vm);
    assert!(none.is_empty(), "{none:?}");
    let disk = json!([{"name": "data", "mountPath": "/data",
        "persistentVolumeClaim": {"claimName": "pg-data", "size": "1Gi"}}]);
    vm.spec.disks = serde_json::from_value(disk).expect("disks");
    let of_ours = [
        json!({"name": "K8S_POD_NAMESPACE", "value": "default"}),
        json!({"name": "VM_UID", "value": "uid-1"}),
        json!({"name": "VM_USE_DISK", "value": "true"}),
    ];
    assert_eq!(told(&vm), of_ours);
}
