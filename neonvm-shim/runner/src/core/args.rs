//! QEMU's command line.

use std::net::Ipv4Addr;
use std::path::Path;

use protocol::claims::ROOT_DRIVE;
use protocol::units::Bytes;
use protocol::vm::MEMORY_BLOCK_BYTES;

use super::connection::{Connection, connection};
use super::disks::{Drive, claimed_options};
use super::passt::NETDEV;
use super::paths::Paths;
use super::shape::{CpuControl, Shape};
use super::transfer::Manifest;
use super::{bridge, claims, forwards, host_name, nic, overlay, passt};
use crate::config::{Accel, RunnerConfig};

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
pub(crate) mod tests;
