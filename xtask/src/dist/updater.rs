//! The package of `bellows-updater`.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use super::Format;
use super::recipe::Recipe;

const DESCRIPTION: &str = "updater of the in-VM monitor of Bellows
 Brings the package vm-monitor to the version that a channel names, when a
 window is open, the version is critical or the monitor is sick. It puts the
 old package back if the new monitor is not healthy.";

/// Names of the units, in the folder of the crate and of systemd.
const UNITS: [&str; 6] = [
    "bellows-schedule.path",
    "bellows-schedule.service",
    "bellows-upgrade-check.service",
    "bellows-upgrade-check.timer",
    "bellows-upgrade.service",
    "bellows-upgrade.timer",
];
const SYSTEM: &str = "usr/lib/systemd/system";
const CONFFILES: &str = "/etc/bellows/updater.toml\n";

/// The program for a format, of those that are built beside each other.
pub(super) fn program(of_apt: &Path, format: Format) -> PathBuf {
    match format {
        Format::Deb => of_apt.to_owned(),
        Format::Rpm => of_apt.with_file_name("bellows-updater-dnf"),
    }
}

/// What the package of a version has. The program is the one for the format of the package.
pub(super) fn recipe<'a>(version: &'a str, program: &Path, checkout: &Path) -> Result<Recipe<'a>> {
    let read =
        |path: &Path| fs::read(path).with_context(|| format!("cannot read {}", path.display()));
    let dist = |name: &str| read(&checkout.join("fleet/updater/dist").join(name));
    let mut files = vec![
        ("DEBIAN/conffiles".to_owned(), CONFFILES.into(), 0o644),
        (
            "DEBIAN/postinst".to_owned(),
            dist("debian/postinst")?,
            0o755,
        ),
        ("DEBIAN/prerm".to_owned(), dist("debian/prerm")?, 0o755),
        ("DEBIAN/postrm".to_owned(), dist("debian/postrm")?, 0o755),
        ("usr/bin/bellows-updater".to_owned(), read(program)?, 0o755),
        (
            "etc/bellows/updater.toml".to_owned(),
            dist("updater.toml")?,
            0o644,
        ),
        (
            format!("{SYSTEM}/vm-monitor.service.d/50-updater.conf"),
            dist("vm-monitor.service.conf")?,
            0o644,
        ),
    ];
    for unit in UNITS {
        files.push((format!("{SYSTEM}/{unit}"), dist(unit)?, 0o644));
    }
    for (name, from) in [
        ("copyright", "LICENSE"),
        ("join.sh", "fleet/updater/dist/join.sh"),
        ("updater.md", "docs/updater.md"),
    ] {
        let to = format!("usr/share/doc/bellows-updater/{name}");
        files.push((to, read(&checkout.join(from))?, 0o644));
    }
    Ok(Recipe {
        name: "bellows-updater",
        version,
        debian: "Depends: vm-monitor, systemd, apt\nRecommends: ca-certificates, tzdata",
        rpm: "Requires: vm-monitor, systemd, dnf, (dnf-command(download) or dnf5-command(download))\n\
              Recommends: ca-certificates, tzdata",
        description: DESCRIPTION,
        files,
        folders: Vec::new(),
        links: Vec::new(),
    })
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use test_records::{Missing, skip};

    use super::*;
    use crate::dist::recipe::put;
    use crate::shell;

    /// What `dpkg-deb --contents` lists: mode, owner and name of each file and folder.
    const CONTENTS: &str = "\
drwxr-xr-x root/root ./
drwxr-xr-x root/root ./etc/
drwxr-xr-x root/root ./etc/bellows/
-rw-r--r-- root/root ./etc/bellows/updater.toml
drwxr-xr-x root/root ./usr/
drwxr-xr-x root/root ./usr/bin/
-rwxr-xr-x root/root ./usr/bin/bellows-updater
drwxr-xr-x root/root ./usr/lib/
drwxr-xr-x root/root ./usr/lib/systemd/
drwxr-xr-x root/root ./usr/lib/systemd/system/
-rw-r--r-- root/root ./usr/lib/systemd/system/bellows-schedule.path
-rw-r--r-- root/root ./usr/lib/systemd/system/bellows-schedule.service
-rw-r--r-- root/root ./usr/lib/systemd/system/bellows-upgrade-check.service
-rw-r--r-- root/root ./usr/lib/systemd/system/bellows-upgrade-check.timer
-rw-r--r-- root/root ./usr/lib/systemd/system/bellows-upgrade.service
-rw-r--r-- root/root ./usr/lib/systemd/system/bellows-upgrade.timer
drwxr-xr-x root/root ./usr/lib/systemd/system/vm-monitor.service.d/
-rw-r--r-- root/root ./usr/lib/systemd/system/vm-monitor.service.d/50-updater.conf
drwxr-xr-x root/root ./usr/share/
drwxr-xr-x root/root ./usr/share/doc/
drwxr-xr-x root/root ./usr/share/doc/bellows-updater/
-rw-r--r-- root/root ./usr/share/doc/bellows-updater/copyright
-rw-r--r-- root/root ./usr/share/doc/bellows-updater/join.sh
-rw-r--r-- root/root ./usr/share/doc/bellows-updater/updater.md
";

    /// Requirements: R27, R42
    #[test]
    fn updater_package_is_the_same_each_time_and_has_these_modes() {
        if !shell::on_path("dpkg-deb") {
            let test = "updater_package_is_the_same_each_time_and_has_these_modes";
            return skip(test, Missing::Tool, "dpkg-deb");
        }
        let folder = tempfile::tempdir().expect("a folder");
        let program = folder.path().join("program");
        fs::write(&program, vec![7; 5000]).expect("written");
        let build = |name: &str| {
            let recipe = recipe("0.1.0", &program, &shell::root()).expect("a recipe");
            recipe.deb(&folder.path().join(name)).expect("built")
        };
        let (first, second) = (build("1"), build("2"));
        assert_eq!(
            fs::read(&first).expect("there"),
            fs::read(&second).expect("there")
        );
        let mut command = Command::new("dpkg-deb");
        let listing = shell::output(command.arg("--contents").arg(&first)).expect("it reads");
        let mut lines: Vec<String> = listing.lines().map(short).collect();
        lines.sort_by(|one, other| one[21..].cmp(&other[21..]));
        let lines: String = lines.iter().map(|line| format!("{line}\n")).collect();
        assert_eq!(lines, CONTENTS);
        let mut command = Command::new("dpkg-deb");
        let fields = shell::output(command.arg("--field").arg(&first)).expect("it reads");
        assert!(fields.contains("\nDepends: vm-monitor, "), "{fields}");
    }

    /// Mode, owner and name of a line of `dpkg-deb --contents`.
    fn short(line: &str) -> String {
        let words: Vec<&str> = line.split_whitespace().collect();
        format!("{} {} {}", words[0], words[1], words[words.len() - 1])
    }

    /// Requirement: R29
    #[test]
    fn systemd_finds_the_units_of_the_updater_sound() {
        if !shell::on_path("systemd-analyze") {
            let test = "systemd_finds_the_units_of_the_updater_sound";
            return skip(test, Missing::Tool, "systemd-analyze");
        }
        let folder = tempfile::tempdir().expect("a folder");
        put(folder.path(), "program", b"#!/bin/sh\n", 0o755).expect("written");
        let program = folder.path().join("program").display().to_string();
        let units = shell::root().join("fleet/updater/dist");
        for unit in UNITS {
            let text = fs::read_to_string(units.join(unit)).expect("a unit");
            let text = text.replace("/usr/bin/bellows-updater", &program);
            fs::write(folder.path().join(unit), text).expect("written");
        }
        let verify = || {
            let mut command = Command::new("systemd-analyze");
            command.args(["verify", "--man=no"]);
            let paths = UNITS.iter().map(|unit| folder.path().join(unit));
            let output = command.args(paths).output().expect("it runs");
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            (output.status.success() && said.is_empty(), said)
        };
        assert_eq!(verify(), (true, String::new()));
        let timer = folder.path().join(UNITS[5]);
        let text = fs::read_to_string(&timer).expect("there");
        fs::write(&timer, text.replace("OnBootSec", "OnBotSec")).expect("written");
        assert!(!verify().0, "it would find nothing");
    }

    /// Requirement: R27
    #[test]
    fn scripts_of_the_updater_are_sound_shell() {
        for name in ["postinst", "prerm", "postrm"] {
            let path = shell::root().join("fleet/updater/dist/debian").join(name);
            let status = Command::new("sh").arg("-n").arg(&path).status();
            assert!(status.expect("a shell").success(), "{name}");
        }
    }
}
