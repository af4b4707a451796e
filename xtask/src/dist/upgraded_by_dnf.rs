//! A machine with dnf, booted as a guest: whether it joins by the script, and whether the updater
//! brings the version of its channel, mends a monitor, and puts back what fails.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use test_records::{Missing, skip};

use super::recipe::{Recipe, put};
use super::under_systemd::{self, Parts};
use super::{Format, monitor, suite, updater};
use crate::cluster::rootfs::RPM;
use crate::cluster::store;
use crate::shell;

const TEST: &str = "updater_brings_mends_and_puts_back_the_monitor_by_dnf";
/// Longest life of the guest. dnf takes many seconds without KVM, and one proof fails after 120 s.
const PATIENCE_S: &str = "1500";
const LOOK: &str = include_str!("upgrade_by_dnf.sh");
const SUITE: &str = "srv/suite";

/// The programs of this root that no RPM package brought.
fn base() -> Recipe<'static> {
    Recipe {
        name: "base",
        version: "1",
        debian: "",
        rpm: "Provides: systemd, dnf, dnf-command(download), /bin/sh",
        description: "what the image has\n It has no files.",
        files: Vec::new(),
        folders: Vec::new(),
        links: Vec::new(),
    }
}

/// Writes a suite of the updater and the monitors 0.1.0, 0.1.1 and 0.1.2, of which the last ends at
/// once.
fn write_suite(root: &Path, parts: &Parts, updater: &Path, folder: &Path) {
    let bad = folder.join("bad");
    fs::write(&bad, "#!/bin/sh\nexit 1\n").expect("written");
    let checkout = shell::root();
    let monitors = [
        ("0.1.0", &parts.monitor),
        ("0.1.1", &parts.monitor),
        ("0.1.2", &bad),
    ]
    .map(|(version, program)| monitor::recipe(version, program, &checkout));
    let updater = updater::recipe("0.1.0", updater, &checkout);
    for recipe in monitors.into_iter().chain([updater]) {
        let recipe = recipe.expect("a recipe");
        recipe.rpm(&root.join(SUITE)).expect("a package");
    }
    suite::sign_rpm(root, SUITE);
}

/// The root of a machine that has not joined.
fn root(parts: &Parts, program: &Path, folder: &Path) -> PathBuf {
    let root = folder.join("root");
    let run = |command: &mut Command| shell::output(command).expect("it runs");
    run(Command::new("cp").arg("-a").arg(&parts.debian).arg(&root));
    under_systemd::furnish(&root, LOOK);
    // Debian's rpm has its database in the home of its user, which the unit does not see.
    put(&root, "etc/rpm/macros", b"%_dbpath /var/lib/rpm\n", 0o644).expect("written");
    let base = base().rpm(&root).expect("a package");
    let base = format!("/{}", base.file_name().expect("a name").display());
    let inside = |words: &[&str]| run(Command::new("chroot").arg(&root).args(words));
    inside(&["rpm", "--install", &base]);
    inside(&["systemctl", "enable", "look.service"]);
    write_suite(&root, parts, program, folder);
    let script = fs::read(shell::root().join("fleet/updater/dist/join.sh")).expect("a script");
    put(&root, "join.sh", &script, 0o755).expect("written");
    put(&root, "srv/releases/v1/stable/version", b"0.1.0\n", 0o644).expect("written");
    root
}

/// Requirements: R09, R15, R27, R34, R41
#[test]
fn updater_brings_mends_and_puts_back_the_monitor_by_dnf() {
    if !shell::is_root() {
        return skip(TEST, Missing::Root, "a package is installed into a folder");
    }
    let mut parts = match under_systemd::parts() {
        Ok(parts) => parts,
        Err(what) => return skip(TEST, Missing::Guest, &what),
    };
    let program = updater::program(
        &parts.monitor.with_file_name("bellows-updater"),
        Format::Rpm,
    );
    let image = store::named(RPM).expect("a store");
    let tools = shell::on_path("gpg") && shell::on_path("rpmbuild");
    let Some(image) = image.filter(|_| program.is_file() && tools) else {
        let what =
            "a static bellows-updater-dnf, an image with dnf, gpg, rpmbuild: cargo xtask test";
        return skip(TEST, Missing::Guest, what);
    };
    parts.debian = image.join("rootfs");
    let folder = tempfile::tempdir().expect("a folder");
    let root = root(&parts, &program, folder.path());
    under_systemd::assert_looks(&parts, &root, folder.path(), PATIENCE_S, EXPECTED);
}

/// Exit status 75 is a failed attempt, 0 every other end.
const EXPECTED: &str = "\
join with a suite of another key 69: not installed
join 0: monitor 0.1.0 updater 0.1.0
new version: upgrade 0 version 0.1.1 unit enabled active
same version: upgrade 0 version 0.1.1 unit enabled active
process is the same: yes
deleted: upgrade 0 version 0.1.1 unit enabled active
lower version: upgrade 0 version 0.1.0 unit enabled active
settings kept: yes, timers active active active
bad version: upgrade 75 version 0.1.0 unit enabled active
last: \"result\":\"put_back\"
removed: inactive inactive monitor active
";
