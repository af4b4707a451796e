//! QEMU's command line.

use std::net::Ipv4Addr;
use std::path::Path;

use protocol::claims::ROOT_DRIVE;
use protocol::units::Bytes;
use protocol::vm::MEMORY_BLOCK_BYTES;

use super::disks::{Drive, claimed_options};
use super::passt::{Connection, NETDEV, connection};
use super::paths::Paths;
use super::shape::{CpuControl, Shape};
use super::transfer::Manifest;
use super::{bridge, claims, forwards, host_name, nic, overlay, passt};
use crate::config::{Accel, RunnerConfig};

/// Guest ports that are always reachable at the pod's address: ssh, host metrics, the monitor.
pub const ALWAYS_PORTS: [u16; 3] = [22, 9100, 10301];
/// QEMU id of the virtio-mem device.
pub const MEMORY_DEVICE: &str = "vm0";
/// Guest-side name of the log's virtio-serial port (docs/compatibility/neonvm.md §3.2).
pub const LOG_PORT: &str = "tech.neon.log.0";
/// QEMU's own seccomp filter: a guest that breaks out can start no program and change no identity.
const SANDBOX: &str = "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny";
const CPU_DRIVER: &str = "max-x86_64-cpu";

/// Builds QEMU's command line without the program's name. With `arrival`, the manifest of a guest
/// that runs elsewhere, QEMU has the same shape and waits for the migration.
#[must_use]
pub fn qemu_args(
    config: &RunnerConfig,
    shape: &Shape,
    accel: Accel,
    paths: &Paths,
    drives: &[Drive],
    arrival: Option<&Manifest>,
) -> Vec<String> {
    let mut args = Args(Vec::new());
    args.one(
        "-name",
        format!("{}/{},debug-threads=on", config.namespace, config.vm),
    );
    // A migrated guest brings its machine type: the plain name means another version in each QEMU.
    args.one("-machine", arrival.map_or("q35", |from| &from.machine));
    args.one(
        "-accel",
        if accel == Accel::Tcg {
            "tcg,thread=multi"
        } else {
            "kvm"
        },
    );
    args.one("-cpu", "max");
    args.one(
        "-smp",
        format!(
            "cpus={},maxcpus={m},sockets={m},cores=1,threads=1",
            shape.boot_cpus,
            m = shape.sockets
        ),
    );
    memory(&mut args, shape);
    for flag in ["-nodefaults", "-no-user-config", "-no-reboot"] {
        args.0.push(flag.to_owned());
    }
    args.one("-display", "none");
    args.one("-sandbox", SANDBOX);
    args.one("-msg", "timestamp=on");
    args.one("-pidfile", path(&paths.pid_file()));
    for socket in [paths.qmp(), paths.qmp_manual()] {
        args.one(
            "-qmp",
            format!("unix:{},server=on,wait=off", escaped(&socket)),
        );
    }
    args.one(
        "-chardev",
        format!(
            "socket,id=console,path={},server=on,wait=off,logfile={},logappend=on",
            escaped(&paths.console()),
            escaped(&paths.console_log())
        ),
    );
    args.one("-serial", "chardev:console");
    args.one("-device", "pvpanic");
    args.one("-object", "rng-builtin,id=rng0");
    args.one("-device", "virtio-rng-pci,rng=rng0");
    if shape.log_port {
        log_port(&mut args, paths);
    }
    boot(&mut args, config, shape, accel, arrival);
    disks(&mut args, config, paths, drives);
    network(&mut args, config, shape, accel, arrival);
    if let Some(cid) = config.vsock_cid {
        args.one("-device", format!("vhost-vsock-pci,guest-cid={cid}"));
    }
    if let Some(from) = arrival {
        for cpu in &from.cpus {
            args.one("-device", cpu.device());
        }
        args.0.push("-S".to_owned());
        args.one("-incoming", "defer");
        return args.0;
    }
    for socket in shape.boot_cpus..shape.boot_cpus + shape.early_cpus {
        args.one(
            "-device",
            format!("{CPU_DRIVER},id=cpu{socket},socket-id={socket},core-id=0,thread-id=0"),
        );
    }
    args.0
}

/// The root disk and the drives beside it. QEMU is given the open files of those on claims.
fn disks(args: &mut Args, config: &RunnerConfig, paths: &Paths, drives: &[Drive]) {
    let claimed = claims::drives_on_claims(config, drives);
    let claimed: Vec<(i32, &str)> = (claims::FIRST_FILE..).zip(claimed).collect();
    for (number, _) in &claimed {
        args.one("-add-fd", format!("fd={number},set={number}"));
    }
    let given = |id: &str| {
        let mut claimed = claimed.iter();
        let (number, _) = claimed.find(|(_, one)| *one == id)?;
        Some(format!("/dev/fdset/{number}"))
    };
    let (file, options) = match given(ROOT_DRIVE) {
        Some(file) => (file, claimed_options(config.disk_cache)),
        None => {
            let options = format!("format=qcow2,{}", config.root_disk_cache());
            (escaped(&paths.root_disk(config)), options)
        }
    };
    args.one(
        "-drive",
        format!("if=none,id={ROOT_DRIVE},file={file},{options}"),
    );
    // The default error policy holds: a write that finds the disk full stops the guest
    // ([`super::disk_full`]), and any other error is reported to the guest.
    args.one("-device", format!("virtio-blk-pci,drive={ROOT_DRIVE}"));
    for drive in drives {
        let file = given(&drive.id).unwrap_or_else(|| escaped(&paths.drive(drive)));
        let options = drive.options(config.disk_cache);
        args.one(
            "-drive",
            format!("if=none,id={},file={file},{options}", drive.id),
        );
        args.one("-device", format!("virtio-blk-pci,drive={}", drive.id));
    }
}

/// The port to which a guest's programs write their log. QEMU appends it to a file and discards it
/// otherwise: a port with a slow or missing reader would block its writers.
fn log_port(args: &mut Args, paths: &Paths) {
    let log = escaped(&paths.guest_log());
    args.one(
        "-chardev",
        format!("ringbuf,id=log,size=4096,logfile={log},logappend=on"),
    );
    // The first of the two ports is reserved for a console, whether there is one or not.
    args.one("-device", "virtio-serial-pci,max_ports=2");
    args.one(
        "-device",
        format!("virtserialport,chardev=log,name={LOG_PORT}"),
    );
}

fn network(
    args: &mut Args,
    config: &RunnerConfig,
    shape: &Shape,
    accel: Accel,
    arrival: Option<&Manifest>,
) {
    let vhost = config.network.vhost && accel == Accel::Kvm;
    let queues = nic::queues(shape, arrival);
    let mac = device_mac(config, arrival);
    let passt_mtu = shape.large_frames.then_some(passt::LARGEST_FRAME);
    let (netdev, queues_here, mtu) = match connection(config, arrival) {
        Connection::Bridge => (nic::tap("net0", bridge::TAP, queues, vhost), queues, None),
        Connection::Passt(_) => (NETDEV.to_owned(), 1, passt_mtu),
        Connection::UserNetwork => (forwards::user_network(config), 1, None),
    };
    args.one("-netdev", netdev);
    args.one("-device", nic::device("net0", &mac, queues_here, mtu));
    if let Some(mac) = overlay_mac(config, arrival) {
        args.one("-netdev", nic::tap("overlay", overlay::TAP, queues, vhost));
        args.one("-device", nic::device("overlay", &mac, queues, None));
    }
}

struct Args(Vec<String>);

impl Args {
    fn one(&mut self, flag: &str, value: impl Into<String>) {
        self.0.push(flag.to_owned());
        self.0.push(value.into());
    }
}

fn memory(args: &mut Args, shape: &Shape) {
    let mib = |bytes: Bytes| bytes.0 >> 20;
    if shape.device.0 == 0 {
        args.one("-m", format!("size={}M", mib(shape.base)));
        return;
    }
    let most = Bytes(shape.base.0 + shape.device.0);
    args.one(
        "-m",
        format!("size={}M,slots=1,maxmem={}M", mib(shape.base), mib(most)),
    );
    args.one(
        "-object",
        format!("memory-backend-ram,id=vmem0,size={}M", mib(shape.device)),
    );
    args.one(
        "-device",
        format!(
            "virtio-mem-pci,id={MEMORY_DEVICE},memdev=vmem0,block-size={}M,requested-size={}M",
            MEMORY_BLOCK_BYTES >> 20,
            mib(shape.early_memory)
        ),
    );
}

fn boot(
    args: &mut Args,
    config: &RunnerConfig,
    shape: &Shape,
    accel: Accel,
    arrival: Option<&Manifest>,
) {
    args.one("-kernel", path(&config.image.kernel));
    if let Some(initrd) = &config.image.initrd {
        args.one("-initrd", path(initrd));
    }
    let cmdline = arrival.map_or_else(
        || cmdline(config, shape, accel),
        |from| from.cmdline.clone(),
    );
    args.one("-append", cmdline);
}

/// Builds the guest kernel's command line.
#[must_use]
pub fn cmdline(config: &RunnerConfig, shape: &Shape, accel: Accel) -> String {
    let mut words: Vec<String> = Vec::new();
    let mut add = |text: &str| words.extend(text.split_whitespace().map(str::to_owned));
    add(&config.image.cmdline);
    if accel == Accel::Tcg {
        add(&config.image.cmdline_tcg);
        // A kernel that counts timer ticks at boot panics on a busy host.
        add("no_timer_check");
    }
    if let Some(ratio) = &config.spec.guest.memhp_auto_movable_ratio {
        add("memory_hotplug.online_policy=auto-movable");
        add(&format!("memory_hotplug.auto_movable_ratio={ratio}"));
    }
    if config.network.bridged {
        add(&bridge::kernel_words(&config.network.resolver));
    }
    if let Connection::Passt(_) = connection(config, None) {
        add(passt::KERNEL_WORD);
    }
    if let Some(nic) = &config.overlay {
        add(&overlay::kernel_word(nic, &config.pod));
    }
    add(&host_name::kernel_words(&config.pod));
    add(config
        .spec
        .guest
        .append_kernel_cmdline
        .as_deref()
        .unwrap_or_default());
    if shape.control == CpuControl::Guest {
        // The guest daemon takes it as its first target.
        add(&format!("maxcpus={}", shape.cpus_for(shape.initial.cpu)));
    }
    // A panic must end QEMU: the kernel reboots at once, and `-no-reboot` turns that into an exit.
    if !words.iter().any(|word| word.starts_with("panic=")) {
        words.push("panic=-1".to_owned());
    }
    words.join(" ")
}

/// MAC address in QEMU's range, derived from the pod's address and as unique.
#[must_use]
pub fn mac(ip: Ipv4Addr) -> String {
    let [_, b, c, d] = ip.octets();
    format!("52:54:00:{b:02x}:{c:02x}:{d:02x}")
}

/// Hardware address of the guest's first device. A migrated guest keeps the one it booted with.
#[must_use]
pub fn device_mac(config: &RunnerConfig, arrival: Option<&Manifest>) -> String {
    arrival.map_or_else(|| mac(config.pod_ip), |from| from.mac.clone())
}

/// Hardware address of the guest's overlay device, if it has one. A migrated guest keeps the one it
/// booted with.
#[must_use]
pub fn overlay_mac(config: &RunnerConfig, arrival: Option<&Manifest>) -> Option<String> {
    match arrival {
        Some(from) => from.overlay_mac.clone(),
        None => config.overlay.as_ref().map(overlay::mac),
    }
}

fn path(path: &Path) -> String {
    path.display().to_string()
}

/// Path for an option list: QEMU ends a value at a comma unless it is doubled.
fn escaped(path: &Path) -> String {
    path.display().to_string().replace(',', ",,")
}

#[cfg(test)]
pub(crate) mod tests {
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
    fn a_guest_in_the_overlay_has_a_second_device_behind_the_first() {
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
    fn a_guest_behind_a_bridge_is_told_its_address() {
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
    fn only_a_device_behind_passt_takes_large_frames() {
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
    fn only_a_guest_behind_passt_resends_as_passt_needs_it() {
        let mut config = config();
        assert!(!line_of(&config).contains("tcp_frto"));
        config.walls = Some(passt::tests::walls());
        let word = " sysctl.net.ipv4.tcp_frto=0 hostname=";
        assert!(line_of(&config).contains(word), "{}", line_of(&config));
        config.network.bridged = true;
        assert!(!line_of(&config).contains("tcp_frto"));
    }

    #[test]
    fn hot_plug_under_tcg() {
        golden(
            CpuControl::Plug,
            Accel::Tcg,
            include_str!("../../testdata/args-plug-tcg.txt"),
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
    fn switching_inside_the_guest_under_kvm() {
        golden(
            CpuControl::Guest,
            Accel::Kvm,
            include_str!("../../testdata/args-guest-kvm.txt"),
        );
    }

    /// QEMU's command line under TCG, without drives of the spec.
    fn line_of(config: &RunnerConfig) -> String {
        let shape = shape(&config.spec.guest, CpuControl::Plug, Accel::Tcg).expect("sound");
        let paths = Paths::new("/run/vm");
        qemu_args(config, &shape, Accel::Tcg, &paths, &[], None).join(" ")
    }

    #[test]
    fn what_is_written_is_cached_as_the_configuration_says() {
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
    fn flush_on_a_root_disk_that_stays_reaches_the_hosts_disk() {
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

    #[test]
    fn n31_a_vsock_device_has_the_number_it_was_given() {
        let mut config = config();
        config.vsock_cid = Some(71);
        let args = line_of(&config);
        let device = "-device vhost-vsock-pci,guest-cid=71";
        assert!(args.contains(device), "{args}");
    }

    #[test]
    fn fixed_memory_has_no_device() {
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
    fn a_guest_of_an_older_runner_is_built_without_the_port_it_has_not_got() {
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
    fn a_panic_always_ends_qemu() {
        let mut config = config();
        let shape = shape(&config.spec.guest, CpuControl::Plug, Accel::Tcg).expect("sound");
        assert!(cmdline(&config, &shape, Accel::Tcg).ends_with(" panic=-1"));
        config.image.cmdline = "panic=5".into();
        assert!(!cmdline(&config, &shape, Accel::Tcg).contains("panic=-1"));
    }
}
