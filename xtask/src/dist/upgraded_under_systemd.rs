//! The updater installed in a Debian with systemd, booted as a guest: whether apt upgrades both
//! packages, and whether the updater brings the version of its channel from a suite, mends a
//! monitor, and puts back what fails.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use test_records::{Missing, skip};

use super::recipe::put;
use super::under_systemd::{self, Parts};
use super::{monitor, suite, updater};
use crate::shell;

const TEST: &str = "updater_brings_mends_and_puts_back_the_monitor_under_systemd";
/// Version of the packages in the guest when it boots.
const OLD: &str = "0.0.9";
/// Longest life of the guest. Each of seven proofs takes 20 s, and one fails after 120 s.
const PATIENCE_S: &str = "1200";
const SETTINGS: &str = "enabled = true\nbase_url = \"file:/srv/releases\"\nchannel = \"stable\"\n\
                        page = \"127.0.0.1:9100\"\n";
const SOURCE: &str =
    "Types: deb\nURIs: file:/srv/suite\nSuites: ./\nSigned-By: /srv/suite/suite.pgp\n";
/// Counts the starts of the monitor.
const STARTS: &str = "[Service]\nExecStartPre=+/bin/sh -c 'echo >> /run/starts'\n";
const LOOK: &str = include_str!("upgrade.sh");

/// Writes a suite of the updater 0.1.0 and the monitors 0.1.0, 0.1.1 and 0.1.2, of which the last
/// ends at once.
fn suite(parts: &Parts, updater: &Path, folder: &Path) -> PathBuf {
    let suite = folder.join("suite");
    let bad = folder.join("bad");
    fs::write(&bad, "#!/bin/sh\nexit 1\n").expect("written");
    let packages = [
        ("0.1.0", &parts.monitor),
        ("0.1.1", &parts.monitor),
        ("0.1.2", &bad),
    ]
    .map(|(version, program)| {
        let recipe = monitor::recipe(version, program, &shell::root());
        recipe.expect("a recipe").deb(&suite).expect("a package")
    });
    let recipe = updater::recipe("0.1.0", updater, &shell::root());
    let updater = recipe.expect("a recipe").deb(&suite).expect("a package");
    suite::sign(&suite, &[packages.as_slice(), &[updater]].concat());
    suite
}

/// A copy of a program that runs as it does, and has another checksum.
fn older(program: &Path, folder: &Path) -> PathBuf {
    let older = folder.join("older");
    let mut bytes = fs::read(program).expect("a program");
    bytes.extend(b"older");
    fs::write(&older, bytes).expect("written");
    older
}

/// The root of a machine with both packages installed in their older version, the suite and the
/// channel.
fn root(parts: &Parts, program: &Path, folder: &Path) -> PathBuf {
    let monitor = older(&parts.monitor, folder);
    let recipe = monitor::recipe(OLD, &monitor, &shell::root()).expect("a recipe");
    let package = recipe.deb(folder).expect("a package");
    let root = under_systemd::root(parts, &package, LOOK, folder);
    let run = |command: &mut Command| shell::output(command).expect("it runs");
    let recipe = updater::recipe(OLD, program, &shell::root()).expect("a recipe");
    let package = recipe.deb(folder).expect("a package");
    run(Command::new("cp")
        .arg(&package)
        .arg(root.join("updater.deb")));
    run(Command::new("chroot")
        .arg(&root)
        .args(["dpkg", "--install", "/updater.deb"]));
    fs::create_dir_all(root.join("srv/releases/v1/stable")).expect("a folder");
    run(Command::new("cp")
        .arg("-r")
        .arg(suite(parts, program, folder))
        .arg(root.join("srv/suite")));
    for (name, content) in [
        ("etc/bellows/updater.toml", SETTINGS),
        ("etc/apt/sources.list.d/bellows.sources", SOURCE),
        (
            "etc/systemd/system/vm-monitor.service.d/90-starts.conf",
            STARTS,
        ),
    ] {
        put(&root, name, content.as_bytes(), 0o644).expect("written");
    }
    root
}

/// Requirements: R09, R15, R27, R29, R30, R31, R33, R42
#[test]
fn updater_brings_mends_and_puts_back_the_monitor_under_systemd() {
    if !shell::is_root() {
        return skip(TEST, Missing::Root, "a package is installed into a folder");
    }
    let parts = match under_systemd::parts() {
        Ok(parts) => parts,
        Err(what) => return skip(TEST, Missing::Guest, &what),
    };
    let program = parts.monitor.with_file_name("bellows-updater");
    if !program.is_file() || !parts.has_apt() || !shell::on_path("gpg") {
        let what = "a static bellows-updater, an image with apt, gpg: cargo xtask test";
        return skip(TEST, Missing::Guest, what);
    }
    let folder = tempfile::tempdir().expect("a folder");
    let root = root(&parts, &program, folder.path());
    under_systemd::assert_looks(&parts, &root, folder.path(), PATIENCE_S, EXPECTED);
}

/// Exit status 75 is a failed attempt, 0 every other end.
const EXPECTED: &str = "\
apt 0: monitor 0.1.0 updater 0.1.0
one more start: yes, of the new program: yes
settings kept: yes, other service untouched: yes, timers active active active
times without a schedule: OnBootUSec OnUnitInactiveUSec 
times with a schedule: OnCalendar 
drop-in of mode 644: [Timer]|OnBootSec=|OnCalendar=Sat,Sun *-*-* 02,03:00/20:00 UTC|RandomizedDelaySec=60|
injection: drop-in has 0 units
STOP clears the schedule
ABRT clears the schedule
KILL clears the schedule
not critical: schedule kept
critical: schedule removed, version 0.1.0, times OnBootUSec OnUnitInactiveUSec 
new version: upgrade 0 version 0.1.1 unit enabled active
process is another: yes
state of mode 700, settings 644
same version: upgrade 0 version 0.1.1 unit enabled active
process is the same: yes
masked: upgrade 0 version 0.1.1 unit enabled active
deleted: upgrade 0 version 0.1.1 unit enabled active
hung: upgrade 0 version 0.1.1 unit enabled active
stopped: upgrade 0 version 0.1.1 unit enabled active
bad version: upgrade 75 version 0.1.1 unit enabled active
last: \"result\":\"put_back\"
at once again: version 0.1.1, attempts \"attempts\":1
removed: inactive inactive monitor active
";
