use super::*;
use crate::config::{
    AccelChoice, BootImage, CONFIG_FORMAT, Claims, GuestNetwork, OverlayNic, Programs, Resolver,
};
use crate::core::disks::DriveKind;
use crate::core::shape::{shape, tests::guest};
use protocol::disk_cache::DiskCache;
use protocol::vm::{Port, VmSpec};

pub(crate) fn config() -> RunnerConfig {
    let mut guest = guest([250, 2000, 4000], [1, 2, 8], 512 << 20);
    let port = |port, protocol: &str| Port {
        name: String::new(),
        port,
        protocol: protocol.into(),
    };
    guest.ports = vec![
        port(5432, "TCP"),
        port(53, "UDP"),
        port(25183, "TCP"),
        port(9, "SCTP"),
    ];
    guest.append_kernel_cmdline = Some(" extra=1  ".into());
    RunnerConfig {
        format: CONFIG_FORMAT,
        namespace: "default".into(),
        vm: "pg".into(),
        pod: "pg-x7k2p".into(),
        spec: VmSpec {
            guest,
            ..VmSpec::default()
        },
        pod_ip: Ipv4Addr::new(127, 77, 1, 2),
        programs: Programs {
            qemu_system: "/q/qemu".into(),
            qemu_img: "/q/img".into(),
        },
        image: BootImage {
            kernel: "/i/vmlinuz".into(),
            kernel_version: "6.1.0".into(),
            initrd: Some("/i/initrd.cpio".into()),
            root_disk: "/i/root.ext4".into(),
            root_disk_format: "raw".into(),
            root_disk_bytes: 1 << 30,
            cmdline: "console=ttyS0 quiet".into(),
            cmdline_tcg: "mitigations=off".into(),
            ports: vec![5432, 22],
        },
        accel: AccelChoice::Auto,
        disk_cache: DiskCache::OURS,
        root_overlay: None,
        claims: None,
        knowledge_dir: "/s".into(),
        cpu_quota_percent: 100,
        cgroup_parent: Some("bellows".into()),
        cgroup_in_own: false,
        tells_guest: false,
        vsock_cid: None,
        overlay: None,
        network: GuestNetwork::default(),
        walls: None,
        ssh_public_key: None,
        mounts: None,
        control_token: None,
        migration_keys: None,
        runs_init_script: false,
        receive: false,
    }
}

fn drives() -> Vec<Drive> {
    let drive = |id: &str, kind| Drive {
        id: id.to_owned(),
        kind,
    };
    vec![
        drive("runtime", DriveKind::Files),
        drive("swapdisk", DriveKind::FreedBlocks),
        drive("disk-data", DriveKind::Blocks),
    ]
}

fn lines(args: &[String]) -> String {
    let mut text = String::new();
    for arg in args {
        text.push_str(if arg.starts_with('-') && !text.is_empty() {
            "\n"
        } else {
            " "
        });
        text.push_str(arg);
    }
    text.trim_start().to_owned() + "\n"
}

fn golden(control: CpuControl, accel: Accel, expected: &str) {
    let config = config();
    let shape = shape(&config.spec.guest, control, accel).expect("sound");
    let args = lines(&qemu_args(
        &config,
        &shape,
        accel,
        &Paths::new("/run/vm,1"),
        &drives(),
        None,
    ));
    assert_eq!(args, expected);
}

#[test]
fn guest_in_the_overlay_has_a_second_device_behind_the_first() {
    let mut config = config();
    config.overlay = Some(OverlayNic {
        interface: "net1".into(),
        address: Ipv4Addr::new(10, 100, 128, 1),
        mask: Ipv4Addr::new(255, 255, 0, 0),
    });
    let shape = shape(&config.spec.guest, CpuControl::Plug, Accel::Kvm).expect("sound");
    let paths = Paths::new("/run/vm");
    let args = qemu_args(&config, &shape, Accel::Kvm, &paths, &[], None).join(" ");
    let first = args.find("netdev=net0,mac=").expect("the first");
    let second = "-netdev tap,id=overlay,ifname=tap-overlay,queues=4,script=no,downscript=no \
                  -device virtio-net-pci,netdev=overlay,mac=52:54:0a:64:80:01,mq=on,romfile=";
    assert!(args.find(second).expect("the second") > first, "{args}");
    let word = " ip=10.100.128.1:::255.255.0.0:pg-x7k2p:eth1:off hostname=vm-pg-x7k2p bellows.hostname=vm-pg-x7k2p extra=1";
    assert!(args.contains(word), "{args}");
}

#[test]
fn guest_behind_a_bridge_has_its_address_on_the_command_line() {
    let mut config = config();
    config.network = GuestNetwork {
        bridged: true,
        vhost: true,
        resolver: Resolver::of("nameserver 10.96.0.10\nsearch a.b c\n"),
        hosts: None,
    };
    let line = line_of(&config);
    let device = "-netdev tap,id=net0,ifname=tap-def,queues=4,script=no,downscript=no \
                  -device virtio-net-pci,netdev=net0,mac=52:54:00:4d:01:02,mq=on,romfile=";
    assert!(line.contains(device), "{line}");
    let words = " bellows.net=169.254.254.254/30,169.254.254.253 bellows.dns=10.96.0.10 \
                 bellows.search=a.b,c hostname=vm-pg-x7k2p ";
    assert!(line.contains(words), "{line}");
    let shape = shape(&config.spec.guest, CpuControl::Plug, Accel::Kvm).expect("sound");
    let paths = Paths::new("/run/vm");
    let line = qemu_args(&config, &shape, Accel::Kvm, &paths, &[], None).join(" ");
    assert!(line.contains("downscript=no,vhost=on "), "{line}");
}

#[test]
fn only_a_device_behind_passt_has_large_frames() {
    let mut config = config();
    assert!(!line_of(&config).contains("host_mtu"));
    config.walls = Some(passt::tests::walls());
    let device = "virtio-net-pci,netdev=net0,mac=52:54:00:4d:01:02,host_mtu=65520,romfile=";
    assert!(line_of(&config).contains(device), "{}", line_of(&config));
    config.network.bridged = true;
    assert!(!line_of(&config).contains("host_mtu"));
}

/// The device's features are part of the migrated state.
#[test]
fn guest_that_booted_without_large_frames_goes_without_them() {
    let mut config = config();
    config.walls = Some(passt::tests::walls());
    let built = shape(&config.spec.guest, CpuControl::Plug, Accel::Tcg).expect("sound");
    let mut old = serde_json::to_value(&built).expect("encodes");
    old.as_object_mut().expect("members").remove("large_frames");
    let old: Shape = serde_json::from_value(old).expect("as it was written");
    let paths = Paths::new("/run/vm");
    let line = qemu_args(&config, &old, Accel::Tcg, &paths, &[], None).join(" ");
    assert!(
        line.contains(NETDEV) && !line.contains("host_mtu"),
        "{line}"
    );
}

#[test]
fn only_a_guest_behind_passt_disables_frto() {
    let mut config = config();
    assert!(!line_of(&config).contains("tcp_frto"));
    config.walls = Some(passt::tests::walls());
    let word = " sysctl.net.ipv4.tcp_frto=0 hostname=";
    assert!(line_of(&config).contains(word), "{}", line_of(&config));
    config.network.bridged = true;
    assert!(!line_of(&config).contains("tcp_frto"));
}

#[test]
fn command_line_for_hot_plug_under_tcg() {
    golden(
        CpuControl::Plug,
        Accel::Tcg,
        include_str!("../../../testdata/args-plug-tcg.txt"),
    );
}

#[test]
fn cpus_beyond_the_smallest_size_are_removable_from_the_start() {
    let config = config();
    let shape = shape(&config.spec.guest, CpuControl::Plug, Accel::Kvm).expect("sound");
    let args = qemu_args(
        &config,
        &shape,
        Accel::Kvm,
        &Paths::new("/run/vm"),
        &[],
        None,
    )
    .join(" ");
    assert!(args.contains("-smp cpus=1,maxcpus=4,"), "{args}");
    let cpu = "-device max-x86_64-cpu,id=cpu1,socket-id=1,core-id=0,thread-id=0";
    assert!(args.ends_with(cpu), "{args}");
}

#[test]
fn command_line_for_switching_in_the_guest_under_kvm() {
    golden(
        CpuControl::Guest,
        Accel::Kvm,
        include_str!("../../../testdata/args-guest-kvm.txt"),
    );
}

/// QEMU's command line under TCG, without drives of the spec.
fn line_of(config: &RunnerConfig) -> String {
    let shape = shape(&config.spec.guest, CpuControl::Plug, Accel::Tcg).expect("sound");
    let paths = Paths::new("/run/vm");
    qemu_args(config, &shape, Accel::Tcg, &paths, &[], None).join(" ")
}

#[test]
fn disk_cache_follows_the_configuration() {
    let mut config = config();
    config.disk_cache = "cache=none".parse().expect("QEMU's");
    let shape = shape(&config.spec.guest, CpuControl::Plug, Accel::Kvm).expect("sound");
    let paths = Paths::new("/run/vm");
    let args = qemu_args(&config, &shape, Accel::Kvm, &paths, &drives(), None);
    let drives: Vec<&String> = args.iter().filter(|it| it.starts_with("if=none")).collect();
    let none = "cache.writeback=on,cache.direct=on,cache.no-flush=off";
    let cached: Vec<bool> = drives.iter().map(|it| it.contains(none)).collect();
    // The runtime drive is read-only.
    assert_eq!(cached, [true, false, true, true], "{drives:#?}");
}

#[test]
fn flush_on_a_persistent_root_disk_reaches_the_hosts_disk() {
    let mut config = config();
    let ephemeral = line_of(&config);
    assert!(ephemeral.contains("file=/run/vm/root.qcow2"), "{ephemeral}");
    assert!(ephemeral.contains("cache.no-flush=on"), "{ephemeral}");
    config.root_overlay = Some("/s/disks/default_pg/root.qcow2".into());
    let stays = line_of(&config);
    let root = "if=none,id=root,file=/s/disks/default_pg/root.qcow2,format=qcow2,\
                cache.writeback=on,cache.direct=off,cache.no-flush=off";
    assert!(stays.contains(root), "{stays}");
}

/// Requirement: D1, D2
#[test]
fn disks_on_claims_are_open_files_whose_flushes_reach_the_storage() {
    let mut config = config();
    let claim = serde_json::json!({"claimName": "c"});
    let root = &mut config.spec.guest.root_disk;
    root.persistent_volume_claim = serde_json::from_value(claim).expect("a claim");
    config.claims = Some(Claims {
        dir: "/vm/claims".into(),
        vm_uid: "u".into(),
        use_disk: None,
    });
    let claimed = Drive {
        id: "disk-pg".into(),
        kind: DriveKind::Claimed,
    };
    let drives = [drives(), vec![claimed]].concat();
    let shape = shape(&config.spec.guest, CpuControl::Plug, Accel::Tcg).expect("sound");
    let paths = Paths::new("/run/vm");
    let line = qemu_args(&config, &shape, Accel::Tcg, &paths, &drives, None).join(" ");
    for (id, number) in [("root", 40), ("disk-pg", 41)] {
        let given = format!("-add-fd fd={number},set={number}");
        assert!(line.contains(&given), "{line}");
        let drive = format!(
            "if=none,id={id},file=/dev/fdset/{number},format=raw,cache.writeback=on,\
             cache.direct=off,cache.no-flush=off,discard=unmap,auto-read-only=off"
        );
        assert!(line.contains(&drive), "{line}");
    }
    assert!(!line.contains("/vm/claims"), "{line}");
}

/// Requirement: N31
#[test]
fn vsock_device_has_the_configured_context_id() {
    let mut config = config();
    config.vsock_cid = Some(71);
    let args = line_of(&config);
    let device = "-device vhost-vsock-pci,guest-cid=71";
    assert!(args.contains(device), "{args}");
}

#[test]
fn fixed_memory_needs_no_device() {
    let mut config = config();
    config.spec.guest.memory_slots = protocol::vm::MemorySlots {
        min: 2,
        r#use: 2,
        max: 2,
    };
    let args = line_of(&config);
    assert!(
        args.contains("-m size=1024M -") && !args.contains("virtio-mem"),
        "{args}"
    );
}

#[test]
fn guest_of_an_older_runner_has_no_log_port() {
    let config = config();
    let built = shape(&config.spec.guest, CpuControl::Plug, Accel::Tcg).expect("sound");
    let mut old = serde_json::to_value(&built).expect("encodes");
    old.as_object_mut().expect("members").remove("log_port");
    let old: Shape = serde_json::from_value(old).expect("as it was written");
    let paths = Paths::new("/run/vm");
    let args = |shape| qemu_args(&config, shape, Accel::Tcg, &paths, &[], None).join(" ");
    assert!(args(&built).contains(LOG_PORT));
    assert!(!args(&old).contains("virtio-serial") && !args(&old).contains("virtserialport"));
}

#[test]
fn panic_always_ends_qemu() {
    let mut config = config();
    let shape = shape(&config.spec.guest, CpuControl::Plug, Accel::Tcg).expect("sound");
    assert!(cmdline(&config, &shape, Accel::Tcg).ends_with(" panic=-1"));
    config.image.cmdline = "panic=5".into();
    assert!(!cmdline(&config, &shape, Accel::Tcg).contains("panic=-1"));
}
