mod volumes_of_pod;

use std::io::Read;

use protocol::object::Pod;
use protocol::vm::VmSpec;

use super::*;
use crate::core::observe::runner_address;
use crate::core::settings::GuestNetwork;
use crate::core::testing::sample_vm;

fn status() -> VmStatus {
    VmStatus {
        pod_name: "example-abcde".into(),
        ssh_secret_name: "ssh-neonvm-example".into(),
        tls_secret_name: "tls-neonvm-example".into(),
        ..VmStatus::default()
    }
}

fn one_machine(vm: &VirtualMachine) -> Value {
    build(vm, &status(), &Settings::one_machine())
}

fn names(list: &Value) -> Vec<&str> {
    list.as_array()
        .map(|list| {
            list.iter()
                .filter_map(|item| item["name"].as_str())
                .collect()
        })
        .unwrap_or_default()
}

fn argument<'a>(pod: &'a Value, flag: &str) -> Option<&'a str> {
    let args = pod["spec"]["containers"][0]["args"].as_array()?;
    let at = args.iter().position(|arg| arg == flag)?;
    args.get(at + 1)?.as_str()
}

#[test]
fn vm_without_scheduler_gets_ours_on_one_machine_only() {
    let mut vm = sample_vm();
    vm.spec.scheduler_name = String::new();
    let name = |pod: Value| pod["spec"].get("schedulerName").cloned();
    assert_eq!(name(one_machine(&vm)), Some(json!("autoscale-scheduler")));
    let status = VmStatus::default();
    let cluster = build(&vm, &status, &Settings::cluster("runner:1"));
    assert_eq!(name(cluster), None);
    vm.spec.scheduler_name = "other".into();
    assert_eq!(name(one_machine(&vm)), Some(json!("other")));
}

#[test]
fn pod_has_owner_labels_and_tolerations() {
    let pod = one_machine(&sample_vm());
    assert_eq!(pod["metadata"]["name"], "example-abcde");
    assert_eq!(pod["metadata"]["namespace"], "default");
    assert_eq!(
        pod["metadata"]["ownerReferences"],
        json!([{
            "apiVersion": "vm.neon.tech/v1", "kind": "VirtualMachine", "name": "example", "uid": "uid-1",
            "controller": true, "blockOwnerDeletion": true,
        }])
    );
    let spec = &pod["spec"];
    assert_eq!(spec["restartPolicy"], "Never");
    assert_eq!(spec["automountServiceAccountToken"], false);
    assert_eq!(spec["terminationGracePeriodSeconds"], 5);
    assert_eq!(spec["schedulerName"], "autoscale-scheduler");
    assert_eq!(
        spec["tolerations"],
        json!([
            {"key": "node.kubernetes.io/not-ready", "effect": "NoExecute", "tolerationSeconds": 30},
            {"key": "node.kubernetes.io/unreachable", "effect": "NoExecute", "tolerationSeconds": 30},
        ])
    );
    let runner = &spec["containers"][0];
    assert_eq!(names(&spec["containers"]), ["neonvm-runner"]);
    assert_eq!(runner["command"], json!(["runner"]));
    assert_eq!(runner["env"][0]["name"], "K8S_POD_NAME");
    assert_eq!(names(&runner["ports"]), ["qmp", "qmp-manual", "runner"]);
    assert_eq!(runner["readinessProbe"]["httpGet"]["port"], 25183);
    assert_eq!(
        runner["securityContext"]["capabilities"]["add"],
        json!(["NET_ADMIN", "SYS_ADMIN", "SYS_RESOURCE"])
    );
    for absent in [
        "nodeSelector",
        "imagePullSecrets",
        "serviceAccountName",
        "enableServiceLinks",
    ] {
        assert!(spec.get(absent).is_none(), "{absent}");
    }
}

#[test]
fn pod_members_of_spec_are_copied() {
    let mut vm = sample_vm();
    vm.spec.node_selector = [("disk".to_owned(), "ssd".to_owned())].into();
    vm.spec.image_pull_secrets = vec![json!({"name": "pull"})];
    vm.spec.service_account_name = "account".into();
    vm.spec.service_links = Some(false);
    vm.spec.termination_grace_period_seconds = 17;
    vm.spec.tolerations = vec![json!({"key": "mine", "operator": "Exists"})];
    vm.spec.runner_image = Some("own/runner:1".into());
    vm.spec.runner_port = 999;
    let pod = one_machine(&vm);
    let spec = &pod["spec"];
    assert_eq!(spec["nodeSelector"]["disk"], "ssd");
    assert_eq!(spec["imagePullSecrets"], json!([{"name": "pull"}]));
    assert_eq!(spec["serviceAccountName"], "account");
    assert_eq!(spec["enableServiceLinks"], false);
    assert_eq!(spec["terminationGracePeriodSeconds"], 17);
    assert_eq!(spec["tolerations"][0]["key"], "mine");
    assert_eq!(spec["tolerations"].as_array().map(Vec::len), Some(3));
    assert_eq!(spec["containers"][0]["image"], "own/runner:1");
    assert_eq!(
        spec["containers"][0]["readinessProbe"]["httpGet"]["port"],
        999
    );
}

#[test]
fn extra_init_containers_follow_disk_and_kernel() {
    let mut vm = sample_vm();
    assert_eq!(names(&one_machine(&vm)["spec"]["initContainers"]), ["init"]);
    vm.spec.guest.kernel_image = Some("kernel:6.12".into());
    let pod = one_machine(&vm);
    assert_eq!(
        names(&pod["spec"]["initContainers"]),
        ["init", "init-kernel"]
    );
    assert_eq!(
        pod["spec"]["initContainers"][1]["securityContext"]["runAsUser"],
        36
    );
    let args = pod["spec"]["containers"][0]["args"]
        .as_array()
        .expect("arguments");
    assert!(args.contains(&json!("-kernelpath=/vm/images/vmlinuz")));
    vm.spec.extra_init_containers = vec![json!({"name": "mine"})];
    let pod = one_machine(&vm);
    assert_eq!(
        names(&pod["spec"]["initContainers"]),
        ["init", "init-kernel", "mine"]
    );
}

#[test]
fn affinity_terms_are_appended_or_joined_by_style() {
    let mut vm = sample_vm();
    let terms = |vm: &VirtualMachine, style| {
        affinity(vm, style)["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
            ["nodeSelectorTerms"]
            .clone()
    };
    let os = json!({"key": "kubernetes.io/os", "operator": "In", "values": ["linux"]});
    let arch = json!({"key": "kubernetes.io/arch", "operator": "In", "values": ["arm64"]});
    let zone = json!({"key": "zone", "operator": "In", "values": ["a"]});
    for style in [AffinityStyle::Appended, AffinityStyle::Joined] {
        assert_eq!(terms(&vm, style), json!([{"matchExpressions": [os]}]));
    }
    vm.spec.target_architecture = Some("arm64".into());
    vm.spec.affinity = Some(json!({
        "podAntiAffinity": {"kept": true},
        "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [{"matchExpressions": [zone]}, {"matchFields": []}],
        }},
    }));
    assert_eq!(
        terms(&vm, AffinityStyle::Appended),
        json!([{"matchExpressions": [zone]}, {"matchFields": []}, {"matchExpressions": [os, arch]}])
    );
    assert_eq!(
        terms(&vm, AffinityStyle::Joined),
        json!([
            {"matchExpressions": [zone, os, arch]},
            {"matchFields": [], "matchExpressions": [os, arch]},
        ])
    );
    assert_eq!(
        affinity(&vm, AffinityStyle::Joined)["podAntiAffinity"]["kept"],
        true
    );
}

#[test]
fn packed_spec_and_status_are_always_same_bytes() {
    let vm = sample_vm();
    let pod = one_machine(&vm);
    assert_eq!(pod, one_machine(&vm));
    let unpack = |flag: &str| {
        let packed = STANDARD
            .decode(argument(&pod, flag).expect(flag))
            .expect("base64");
        let mut text = String::new();
        flate2::read::GzDecoder::new(&packed[..])
            .read_to_string(&mut text)
            .expect("gzip");
        text
    };
    let spec: VmSpec = serde_json::from_str(&unpack("-vmspec")).expect("a spec");
    assert_eq!(spec, vm.spec);
    let seen: VmStatus = serde_json::from_str(&unpack("-vmstatus")).expect("a status");
    assert_eq!(seen, status());
    let header = STANDARD
        .decode(argument(&pod, "-vmspec").expect("packed"))
        .expect("base64");
    assert_eq!(header[4..8], [0; 4], "no time in the gzip header");
}

#[test]
fn runner_gets_flags_of_settings_and_spec() {
    let mut vm = sample_vm();
    let pod = one_machine(&vm);
    assert_eq!(argument(&pod, "-cpu-scaling-mode"), Some("QmpScaling"));
    assert_eq!(argument(&pod, "-memhp-auto-movable-ratio"), Some("401"));
    vm.spec.cpu_scaling_mode = Some(CpuScalingMode::SysfsScaling);
    vm.spec.guest.memhp_auto_movable_ratio = Some("301".into());
    vm.spec.guest.append_kernel_cmdline = Some("quiet".into());
    let pod = build(&vm, &status(), &Settings::cluster("r:1"));
    assert_eq!(argument(&pod, "-cpu-scaling-mode"), Some("SysfsScaling"));
    assert_eq!(argument(&pod, "-memhp-auto-movable-ratio"), Some("301"));
    let args = pod["spec"]["containers"][0]["args"]
        .as_array()
        .expect("arguments");
    assert!(args.contains(&json!("-appendKernelCmdline=quiet")));
    assert!(args.contains(&json!("-skip-cgroup-management")));
    assert_eq!(pod["spec"]["containers"][0]["image"], "r:1");
    assert_eq!(
        pod["spec"]["containers"][0]["readinessProbe"]["initialDelaySeconds"],
        5
    );
}

/// Requirement: N20
#[test]
fn runner_gets_quota_in_environment() {
    let vm = sample_vm();
    let mut settings = Settings::cluster("r:1");
    let environment = |settings: &Settings| {
        let pod = build(&vm, &status(), settings);
        pod["spec"]["containers"][0]["env"].clone()
    };
    let quota = json!({"name": "CPU_QUOTA_PERCENT", "value": "100"});
    assert_eq!(environment(&settings)[1], quota);
    settings.cpu_quota_percent = None;
    settings.guest_network = None;
    let told = environment(&settings);
    let mut told = told.as_array().expect("an environment").iter();
    assert!(told.all(|it| it["name"] != "CPU_QUOTA_PERCENT"), "{told:?}");
}

/// Whether the controller reaches a VM's runner by TLS alone.
fn by_tls(image: Option<&str>, settings: &Settings) -> bool {
    let mut vm = sample_vm();
    vm.spec.runner_image = image.map(str::to_owned);
    let mut pod = build(&vm, &status(), settings);
    pod["status"]["podIP"] = json!("10.0.0.7");
    let pod: Pod = serde_json::from_value(pod).expect("a pod");
    let runner = runner_address(&vm, &pod).expect("it has an address");
    assert_eq!(runner.to_string(), "10.0.0.7:25183");
    runner.by_tls
}

/// Requirement: B48
#[test]
fn runner_that_spec_names_is_reached_by_tls_unless_it_is_known_as_plain() {
    let mut cluster = Settings::cluster("a.example:5000/r:1");
    let own = [
        None,
        Some("a.example:5000/r:2"),
        Some("a.example:5000/r@sha256:0a"),
    ];
    let mirrored = "mirror.example/r@sha256:0a";
    for image in own
        .into_iter()
        .chain([Some(mirrored), Some("tenant/runner:1")])
    {
        assert!(by_tls(image, &cluster), "{image:?}");
    }
    cluster.plain_runner_images = ["old/runner", "b.example:5000/s", "other/runner:1"]
        .map(str::to_owned)
        .to_vec();
    for plain in [
        "old/runner",
        "old/runner:3",
        "old/runner@sha256:0a",
        "other/runner:1",
    ] {
        assert!(!by_tls(Some(plain), &cluster), "{plain}");
    }
    for port in ["b.example:5000/s", "b.example:5000/s:2@sha256:0a"] {
        assert!(!by_tls(Some(port), &cluster), "{port}");
    }
    let others = [
        "b.example:5001/s",
        "b.example",
        "s",
        "other/runner:2",
        "old/runners",
    ];
    for other in others.map(Some).into_iter().chain(own) {
        assert!(by_tls(other, &cluster), "{other:?}");
    }
    assert!(!by_tls(None, &Settings::one_machine()), "it has a socket");
}

/// Requirement: B48
#[test]
fn own_runner_image_is_never_plain() {
    let mut cluster = Settings::cluster("r:1");
    cluster.plain_runner_images = vec!["r".to_owned(), "r:2".to_owned()];
    for image in [None, Some("r:1"), Some("r:2"), Some("r@sha256:0a")] {
        assert!(by_tls(image, &cluster), "{image:?}");
    }
}

/// Requirement: N18
#[test]
fn runner_gets_guest_network_and_pod_is_prepared_for_it() {
    let built = |network| {
        let mut settings = Settings::cluster("runner:1");
        settings.guest_network = network;
        let pod = build(&sample_vm(), &status(), &settings);
        let prepared = pod["spec"]["initContainers"][1]["command"][2].to_string();
        let environment = pod["spec"]["containers"][0]["env"].as_array();
        let values: Vec<Value> = environment
            .expect("an environment")
            .iter()
            .filter(|it| it["name"] == "GUEST_NETWORK")
            .map(|it| it["value"].clone())
            .collect();
        (
            prepared.contains(
                "ip_forward=1 net.ipv4.conf.default.route_localnet=1 && sysctl -e -w net.bridge",
            ),
            values,
        )
    };
    assert_eq!(
        Settings::cluster("r").guest_network,
        Some(GuestNetwork::Bridge)
    );
    let bridge = Some(GuestNetwork::Bridge);
    assert_eq!(built(bridge), (true, vec![json!("bridge")]));
    let user = Some(GuestNetwork::User);
    assert_eq!(built(user), (false, vec![json!("user")]));
    assert_eq!(built(None), (false, vec![]));
}

#[test]
fn device_limits_in_a_cluster_only() {
    let mut vm = sample_vm();
    vm.spec.pod_resources = Some(json!({"requests": {"cpu": "100m"}, "limits": {"memory": "1Gi"}}));
    let resources = |vm: &VirtualMachine, settings: &Settings| {
        build(vm, &status(), settings)["spec"]["containers"][0]["resources"].clone()
    };
    assert_eq!(
        resources(&vm, &Settings::cluster("r")),
        json!({
            "requests": {"cpu": "100m"},
            "limits": {"memory": "1Gi", "neonvm/vhost-net": "1", "neonvm/kvm": "1"},
        })
    );
    vm.spec.enable_acceleration = false;
    let limits = resources(&vm, &Settings::cluster("r"));
    assert_eq!(limits["limits"].get("neonvm/kvm"), None);
    assert_eq!(
        resources(&vm, &Settings::one_machine()),
        json!({"requests": {"cpu": "100m"}, "limits": {"memory": "1Gi"}})
    );
}
