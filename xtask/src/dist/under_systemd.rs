//! The package installed in a Debian with systemd, booted as a guest: whether the hardened unit
//! leaves the monitor what it needs.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use test_records::{Missing, skip};

use super::monitor;
use super::recipe::put;
use crate::cluster::rootfs::SYSTEMD;
use crate::cluster::store;
use crate::shell;

const TEST: &str = "the_package_runs_under_systemd";
/// Longest life of the guest. It needs 12 s on a machine of its own.
const PATIENCE_S: &str = "300";

/// What goes into the guest beside the package.
const SETTINGS: &str = "VM_MONITOR_ADDR=0.0.0.0:10369\nVM_MONITOR_METRICS_ADDR=0.0.0.0:9100\nVM_MONITOR_CGROUP=system.slice\n\
                        VM_MONITOR_SOFT_SQUEEZE=on\n";
/// Delays the timer, so that only the script starts upgrades. systemd draws the random delay again
/// at each change of the service. So the package's timer may fire at any change from 10 min after
/// boot.
const LATE: &str = "[Timer]\nOnBootSec=\nOnBootSec=1d\nOnUnitInactiveSec=1d\n";
const LOOK: &str = include_str!("look.sh");
const LOOK_UNIT: &str = "[Unit]\nAfter=vm-monitor.service\n[Service]\nExecStart=/usr/local/bin/look\n\
                         EnvironmentFile=/etc/default/vm-monitor\nStandardOutput=file:/dev/ttyS0\n\
                         [Install]\nWantedBy=multi-user.target\n";

/// Kernel, initial RAM disk, a Debian, QEMU and a monitor, all built by earlier steps of
/// `cargo xtask test`.
pub(super) struct Parts {
    guest: PathBuf,
    pub(super) debian: PathBuf,
    qemu: PathBuf,
    pub(super) monitor: PathBuf,
}

impl Parts {
    /// Whether the image can install from suites. One of an earlier recipe cannot.
    pub(super) fn has_apt(&self) -> bool {
        self.debian.join("usr/bin/apt-get").is_file()
    }
}

pub(super) fn parts() -> Result<Parts, String> {
    let stored = |name: &str| {
        let folder = store::named(name).map_err(|error| format!("{error:#}"))?;
        folder.ok_or_else(|| format!("image {name}"))
    };
    let target = shell::target_dir().map_err(|error| format!("{error:#}"))?;
    let monitor = target.join("x86_64-unknown-linux-gnu/guest/vm-monitor");
    if !monitor.is_file() {
        return Err("a static vm-monitor: cargo xtask guest-bins".into());
    }
    Ok(Parts {
        guest: stored("bellows/postgres:15")?,
        debian: stored(SYSTEMD)?.join("rootfs"),
        qemu: stored("bellows/qemu")?.join("bin/qemu-system-x86_64"),
        monitor,
    })
}

/// The root of a machine with a package of the monitor installed, and what looks at it enabled.
pub(super) fn root(parts: &Parts, package: &Path, look: &str, folder: &Path) -> PathBuf {
    let root = folder.join("root");
    let run = |command: &mut Command| shell::output(command).expect("it runs");
    run(Command::new("cp").arg("-a").arg(&parts.debian).arg(&root));
    run(Command::new("cp")
        .arg(package)
        .arg(root.join("package.deb")));
    furnish(&root, look);
    let inside = |words: &[&str]| run(Command::new("chroot").arg(&root).args(words));
    inside(&["dpkg", "--install", "/package.deb"]);
    inside(&["systemctl", "enable", "vm-monitor.service", "look.service"]);
    root
}

/// Writes the monitor's settings, a later timer and what looks at them into a root.
pub(super) fn furnish(root: &Path, look: &str) {
    for (name, content, mode) in [
        ("etc/default/vm-monitor", SETTINGS, 0o600),
        ("usr/local/bin/look", look, 0o755),
        ("etc/systemd/system/look.service", LOOK_UNIT, 0o644),
        // By its name it comes before the drop-in of a schedule.
        (
            "etc/systemd/system/bellows-upgrade.timer.d/05-late.conf",
            LATE,
            0o644,
        ),
        // Without one systemd asks whoever sits at the console who they are.
        (
            "etc/machine-id",
            "0123456789abcdef0123456789abcdef\n",
            0o444,
        ),
    ] {
        put(root, name, content.as_bytes(), mode).expect("written");
    }
}

/// Writes a disk of a root.
fn disk(root: &Path, folder: &Path) -> PathBuf {
    let disk = folder.join("disk.ext4");
    let mut command = Command::new("mke2fs");
    command.args(["-q", "-t", "ext4", "-d"]).arg(root);
    shell::output(command.arg(&disk).arg("1G")).expect("it runs");
    disk
}

/// Asserts what the guest of a root looked at before it ended, a line each.
pub(super) fn assert_looks(
    parts: &Parts,
    root: &Path,
    folder: &Path,
    patience_s: &str,
    expected: &str,
) {
    let said = boot(parts, &disk(root, folder), folder, patience_s);
    let looks: Vec<&str> = looks(&said).collect();
    let lines: Vec<&str> = expected.lines().collect();
    assert_eq!(looks, lines, "{said}");
}

fn looks(said: &str) -> impl Iterator<Item = &str> {
    said.lines().filter_map(|line| line.strip_prefix("LOOK "))
}

/// What the guest said before it ended.
fn boot(parts: &Parts, disk: &Path, folder: &Path, patience_s: &str) -> String {
    let console = folder.join("console");
    let append = "console=ttyS0 panic=-1 psi=1 random.trust_cpu=on mitigations=off nokaslr no_timer_check loglevel=3 systemd.show_status=0 \
                  systemd.mask=serial-getty@ttyS0.service";
    let drive = format!(
        "if=none,id=root,file={},format=raw,cache=unsafe",
        disk.display()
    );
    let serial = format!("file:{}", console.display());
    let ended = Command::new("timeout")
        .arg(patience_s)
        .arg(&parts.qemu)
        .args([
            "-machine",
            "q35",
            "-accel",
            "tcg,thread=multi",
            "-cpu",
            "max",
            "-smp",
            "2",
            "-m",
            "1024",
        ])
        .args([
            "-nodefaults",
            "-no-reboot",
            "-display",
            "none",
            "-serial",
            &serial,
            "-append",
            append,
        ])
        .arg("-kernel")
        .arg(parts.guest.join("vmlinuz"))
        .arg("-initrd")
        .arg(parts.guest.join("initrd.cpio"))
        .args(["-drive", &drive, "-device", "virtio-blk-pci,drive=root"])
        .stdin(Stdio::null())
        .output()
        .expect("it runs");
    let said = fs::read(&console).unwrap_or_default();
    let said = String::from_utf8_lossy(&said).replace('\r', "");
    assert!(ended.status.success(), "{ended:?}\n{said}");
    said
}

/// Requirement: N46. The package installs, the unit starts under a running systemd with the one
/// capability and the shut doors it asks for, the monitor arms its triggers all the same, and is
/// there again after `kill -9`.
#[test]
fn the_package_runs_under_systemd() {
    if !shell::is_root() {
        return skip(TEST, Missing::Root, "a package is installed into a folder");
    }
    let parts = match parts() {
        Ok(parts) => parts,
        Err(what) => return skip(TEST, Missing::Guest, &what),
    };
    let folder = tempfile::tempdir().expect("a folder");
    let recipe = monitor::recipe("0.1.0", &parts.monitor, &shell::root()).expect("a recipe");
    let package = recipe.deb(folder.path()).expect("a package");
    let root = root(&parts, &package, LOOK, folder.path());
    let disk = disk(&root, folder.path());
    let said = boot(&parts, &disk, folder.path(), PATIENCE_S);
    let signals = "vm_monitor_kernel_signals ";
    let armed = looks(&said).find_map(|line| line.strip_prefix(signals));
    let rest: Vec<&str> = looks(&said)
        .filter(|line| !line.starts_with(signals))
        .collect();
    assert_eq!(
        rest,
        [
            "state active user vm-monitor restarts 0",
            // CAP_SYS_RESOURCE and nothing else.
            "CapEff: 0000000001000000",
            "CapBnd: 0000000001000000",
            "NoNewPrivs: 1",
            "Seccomp: 2",
            "oom_score_adj -900",
            "memory.pressure of vm-monitor",
            "memory.reclaim of vm-monitor",
            "memory.high of root",
            "state active user vm-monitor restarts 1",
            "removed inactive vm-monitor",
        ],
        "{said}"
    );
    // Of the group and of the machine, some and full, and what the group says of kills.
    assert_eq!(armed, Some("5"), "{said}");
}
