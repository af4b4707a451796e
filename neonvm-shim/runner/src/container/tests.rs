use std::fs;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::{Value, json};

use super::*;

fn pod() -> PodFacts {
    PodFacts {
        namespace: "unknown".to_owned(),
        name: "my-pg-x7k2p".to_owned(),
        address: Ipv4Addr::new(10, 244, 1, 9),
        receives: false,
        quota: None,
        network: None,
        monitor_is_open: false,
        vm_uid: None,
        use_disk: None,
    }
}

fn spec() -> Value {
    json!({"guest": {
        "cpus": {"min": "250m", "use": "500m", "max": 2}, "memorySlotSize": "256Mi",
        "memorySlots": {"min": 1, "use": 1, "max": 4}, "rootDisk": {"image": "vm:1", "size": "4Gi"}}})
}

fn packed(value: &Value) -> String {
    let mut gzip = GzEncoder::new(Vec::new(), Compression::default());
    io::Write::write_all(&mut gzip, value.to_string().as_bytes()).unwrap();
    STANDARD.encode(gzip.finish().unwrap())
}

fn args(more: &[&str]) -> Vec<String> {
    args_of(&spec(), "x", more)
}

fn args_of(spec: &Value, status: &str, more: &[&str]) -> Vec<String> {
    let packed = packed(spec);
    let mut all: Vec<String> = ["-skip-cgroup-management", "-use-virtio-console"]
        .into_iter()
        .chain([
            "-memhp-auto-movable-ratio",
            "401",
            "-cpu-scaling-mode",
            "SysfsScaling",
        ])
        .chain(more.iter().copied())
        .chain(["-vmspec", &packed, "-vmstatus", status])
        .map(str::to_owned)
        .collect();
    all.insert(0, "runner".to_owned());
    all
}

fn files() -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    for dir in ["vm/images", "vm/kernel", "vm/ssh"] {
        fs::create_dir_all(root.path().join(dir)).unwrap();
    }
    let mut header = [0; 64];
    header[..4].copy_from_slice(&QCOW2_MAGIC);
    header[24..32].copy_from_slice(&(1_u64 << 30).to_be_bytes());
    fs::write(root.path().join("vm/images/rootdisk.qcow2"), header).unwrap();
    let manifest = json!({
        "format": MANIFEST_FORMAT, "name": "x", "architecture": "amd64", "suite": "bookworm",
        "recipe_sha256": "00".repeat(32), "files": {}, "packages": [], "inputs": {},
        "reproducible": true, "unreproducible": [],
        "content": {"kind": "guest", "kernel": "vmlinuz", "kernel_version": "6.1.0",
            "initrd": "initrd.cpio", "root_disk": "root.ext4", "root_disk_format": "raw",
            "root_disk_bytes": 5, "cmdline": "root=/dev/vda", "cmdline_tcg": "mitigations=off",
            "ports": [{"name": "postgres", "port": 5432}], "ready_line": "ready", "cgroup": null},
    });
    fs::write(
        root.path().join("vm/kernel/manifest.json"),
        manifest.to_string(),
    )
    .unwrap();
    root
}

/// Requirement: N18
#[test]
fn configuration_is_built_from_arguments_and_files() {
    let root = files();
    fs::write(
        root.path().join("vm/ssh/authorized_keys"),
        "ssh-ed25519 A\n",
    )
    .unwrap();
    assert!(is_container(&args(&[])));
    assert!(!is_container(&["neonvm-runner".into(), "run".into()]));
    let config = config(root.path(), &args(&[]), &pod()).unwrap();
    assert_eq!(
        (config.vm.as_str(), config.pod.as_str()),
        ("my-pg", "my-pg-x7k2p")
    );
    assert_eq!(
        config.spec.cpu_scaling_mode,
        Some(CpuScalingMode::SysfsScaling)
    );
    let guest = &config.spec.guest;
    assert_eq!(guest.memhp_auto_movable_ratio.as_deref(), Some("401"));
    let image = &config.image;
    assert_eq!(image.kernel, root.path().join("vm/kernel/vmlinuz"));
    assert_eq!(
        image.initrd,
        Some(root.path().join("vm/kernel/initrd.cpio"))
    );
    assert_eq!(image.root_disk_format, "qcow2");
    assert_eq!(image.root_disk_bytes, 1 << 30);
    assert_eq!(image.ports, [5432]);
    assert_eq!(config.ssh_public_key.as_deref(), Some("ssh-ed25519 A\n"));
    assert_eq!((config.cgroup_parent, config.cgroup_in_own), (None, false));
    assert_eq!(config.control_token, None);
    assert!(config.runs_init_script, "it has a container around it");
}

#[test]
fn failure_is_written_to_the_termination_message() {
    let (dir, end) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let file = end.path().join("termination-log");
    let ends = |success, message: &str| {
        let report = ExitReport {
            success,
            reason: protocol::runner::ExitReason::StartFailed,
            code: None,
            message: message.to_owned(),
        };
        write_json(&Paths::new(dir.path()).exit(), &report).unwrap();
        say_why(dir.path(), &file);
        fs::read_to_string(&file).ok()
    };
    assert_eq!(ends(false, "no"), None, "nobody has made it");
    fs::write(&file, "before").unwrap();
    assert_eq!(ends(true, "yes").as_deref(), Some("before"));
    let why = "spec.initScript failed: exit status: 3";
    assert_eq!(ends(false, why).as_deref(), Some(why));
}

/// Requirement: N20
#[test]
fn quota_comes_from_the_environment_or_from_neonvms_arguments() {
    let root = files();
    let quota = |said: Option<&str>, args: &[String]| {
        let pod = PodFacts {
            quota: said.map(str::to_owned),
            ..pod()
        };
        let config = config(root.path(), args, &pod)?;
        Ok::<_, ContainerError>((config.cgroup_in_own, config.cpu_quota_percent))
    };
    let skips = args(&[]);
    assert_eq!(quota(Some("100"), &skips).unwrap(), (true, 100));
    assert_eq!(quota(Some("0"), &skips).unwrap(), (false, 100));
    let neonvms = args(&["-x"]).into_iter();
    let neonvms: Vec<_> = neonvms.filter(|it| !it.contains("cgroup")).collect();
    assert_eq!(quota(None, &neonvms).unwrap(), (true, 400));
    let error = quota(Some("much"), &skips).unwrap_err();
    assert_eq!(
        error.to_string(),
        "CPU_QUOTA_PERCENT is \"much\", not a number of per cent, or 0 for none"
    );
}

/// Requirement: N18
#[test]
fn network_comes_from_the_environment_or_is_neonvms() {
    let root = files();
    fs::create_dir_all(root.path().join("etc")).unwrap();
    let network = |said: Option<&str>| {
        let pod = PodFacts {
            network: said.map(str::to_owned),
            ..pod()
        };
        config(root.path(), &args(&[]), &pod).map(|config| config.network)
    };
    let found = network(None).unwrap();
    assert!(found.bridged && !found.vhost, "{found:?}");
    assert_eq!(found.resolver, Resolver::default());
    let resolv = root.path().join("etc/resolv.conf");
    fs::write(resolv, "nameserver 10.96.0.10\nsearch a.b\n").unwrap();
    fs::create_dir_all(root.path().join("dev")).unwrap();
    fs::write(root.path().join("dev/vhost-net"), "").unwrap();
    let found = network(Some("bridge")).unwrap();
    assert!(found.bridged && found.vhost, "{found:?}");
    assert_eq!(found.resolver.servers, [Ipv4Addr::new(10, 96, 0, 10)]);
    assert_eq!(found.hosts, Some(root.path().join("etc/hosts")));
    assert!(!network(Some("user")).unwrap().bridged);
    let error = network(Some("cable")).unwrap_err().to_string();
    assert_eq!(
        error,
        "GUEST_NETWORK is \"cable\", not one of [\"bridge\", \"user\"]"
    );
}

#[test]
fn token_of_the_pod_is_required() {
    let root = files();
    let token = root.path().join("vm/control/token");
    fs::create_dir_all(token.parent().unwrap()).unwrap();
    fs::write(&token, "t").unwrap();
    let config = config(root.path(), &args(&[]), &pod()).unwrap();
    assert_eq!(config.control_token, Some(token));
}

#[test]
fn guest_of_a_pod_gets_the_token_of_its_secret_unless_its_monitor_is_open() {
    let root = files();
    let dir = tempfile::tempdir().unwrap();
    let given = root.path().join("vm/control/monitor.token");
    fs::create_dir_all(given.parent().unwrap()).unwrap();
    let mut pod = pod();
    let held = |pod: &PodFacts| {
        write_monitor_token(root.path(), dir.path(), pod).unwrap();
        fs::read_to_string(dir.path().join("monitor.token")).ok()
    };
    assert_eq!(held(&pod), None);
    fs::write(&given, "secret").unwrap();
    assert_eq!(held(&pod).as_deref(), Some("secret"));
    pod.monitor_is_open = true;
    assert_eq!(held(&pod), None);
}

#[test]
fn guest_with_an_overlay_address_is_connected() {
    let root = files();
    let mut spec = spec();
    spec["extraNetwork"] = json!({"enable": true, "interface": "net2"});
    let of = |spec: &Value, status: &str| config(root.path(), &args_of(spec, status, &[]), &pod());
    let status = packed(&json!({"extraNetIP": "10.100.128.1", "extraNetMask": "255.255.0.0"}));
    let nic = of(&spec, &status).unwrap().overlay.expect("one");
    assert_eq!(
        (nic.interface.as_str(), nic.address),
        ("net2", Ipv4Addr::new(10, 100, 128, 1))
    );
    // The controller reports the missing overlay in the VM's condition.
    assert_eq!(of(&spec, &packed(&json!({}))).unwrap().overlay, None);
    let why = daemon_kit::chain(&of(&spec, "x").unwrap_err());
    assert!(why.contains("-vmstatus is not base64"), "{why}");
    spec["extraNetwork"]["interface"] = json!("eth0");
    let why = daemon_kit::chain(&of(&spec, &status).unwrap_err());
    assert!(
        why.contains("spec.extraNetwork.interface: \"eth0\""),
        "{why}"
    );
}

/// Requirement: N18
#[test]
fn named_kernel_replaces_that_of_the_image() {
    let root = files();
    let args = args(&["-kernelpath=/vm/images/vmlinuz"]);
    let config = config(root.path(), &args, &pod()).unwrap();
    assert_eq!(config.image.kernel, root.path().join("vm/images/vmlinuz"));
    assert_eq!(config.image.initrd, None);
    let cmdline = &config.image.cmdline;
    assert!(cmdline.contains("init=/neonvm/bin/init"), "{cmdline}");
}

/// Requirement: N18
#[test]
fn missing_or_invalid_arguments_are_named() {
    let root = files();
    let disk = root.path().join("vm/images/rootdisk.qcow2");
    let why = |args: &[String]| daemon_kit::chain(&config(root.path(), args, &pod()).unwrap_err());
    let text = why(&args(&["-cpu-scaling-mode", "x"])[..2]);
    assert!(text.contains("no -vmspec"), "{text}");
    let mut wrong = args(&[]);
    let at = wrong
        .iter()
        .position(|word| word == "SysfsScaling")
        .unwrap();
    wrong[at] = "Other".to_owned();
    assert!(why(&wrong).contains("-cpu-scaling-mode is \"Other\""));
    fs::write(&disk, "raw".repeat(20)).unwrap();
    assert!(why(&args(&[])).contains("rootdisk.qcow2 is not a disk in qcow2 format"));
    fs::remove_file(&disk).unwrap();
    assert!(why(&args(&[])).contains("cannot read"));
    fs::write(root.path().join("vm/kernel/manifest.json"), "{}").unwrap();
    assert!(why(&args(&[])).contains("manifest.json does not describe a guest"));
}

/// Requirement: D1. A persistent disk is never silently replaced by a fresh one.
#[test]
fn persistent_disk_without_a_volume_is_refused() {
    let root = files();
    let mut spec = spec();
    spec["guest"]["rootDisk"]["persistent"] = json!(true);
    let refused = config(root.path(), &args_of(&spec, "x", &[]), &pod())
        .unwrap_err()
        .to_string();
    assert!(
        refused.contains("has no volume for the root disk"),
        "{refused}"
    );
    assert!(
        refused.contains("spec.guest.rootDisk.persistentVolumeClaim"),
        "the fix: {refused}"
    );
}

#[test]
fn disk_on_a_claim_takes_persistent_and_the_uid_of_the_vm() {
    let root = files();
    let mut spec = spec();
    let claim = json!({"claimName": "pg-root"});
    spec["guest"]["rootDisk"]["persistentVolumeClaim"] = claim;
    let of = |spec: &Value, pod: &PodFacts| config(root.path(), &args_of(spec, "x", &[]), pod);
    let refused = of(&spec, &pod()).unwrap_err().to_string();
    assert!(refused.contains("persistent: true"), "{refused}");
    spec["guest"]["rootDisk"]["persistent"] = json!(true);
    let refused = of(&spec, &pod()).unwrap_err().to_string();
    assert!(refused.contains("has no VM_UID"), "{refused}");
    let pod = PodFacts {
        vm_uid: Some("u".into()),
        use_disk: Some("true".into()),
        ..pod()
    };
    let config = of(&spec, &pod).unwrap();
    assert!(config.root_is_claimed());
    let claims = config.claims.unwrap();
    assert_eq!(claims.dir, root.path().join("vm/claims"));
    assert_eq!(
        (claims.vm_uid.as_str(), claims.use_disk.as_deref()),
        ("u", Some("true"))
    );
}

#[test]
fn disk_of_another_user_is_readable_for_an_unprivileged_qemu() {
    let root = files();
    let disk = root.path().join("vm/images/rootdisk.qcow2");
    fs::set_permissions(&disk, Permissions::from_mode(0o600)).unwrap();
    let config = config(root.path(), &args(&[]), &pod()).unwrap();
    let_read(&config.image);
    let mode = fs::metadata(&disk).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o644);
}
