//! The package of `vm-monitor`.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};

use super::recipe::Recipe;

/// Where the unit expects the program, and where a package has to put it.
const BY_HAND: &str = "/usr/local/bin/vm-monitor";
const PACKAGED: &str = "usr/bin/vm-monitor";

/// What it is, for people who look for packages.
const DESCRIPTION: &str = "in-VM monitor of Bellows, the live vertical autoscaler
 Watches the memory of a cgroup, agrees to shrinks of its VM or refuses them,
 and asks for growth before memory runs out.";

/// What the package of a version has.
pub(super) fn recipe<'a>(version: &'a str, program: &Path, checkout: &Path) -> Result<Recipe<'a>> {
    let dist = checkout.join("vm-monitor/dist");
    let read = |name: &str| {
        let path = dist.join(name);
        fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
    };
    let unit = read("vm-monitor.service")?;
    ensure!(
        unit.contains(BY_HAND),
        "the unit does not start {BY_HAND}: mend `xtask dist`"
    );
    let program =
        fs::read(program).with_context(|| format!("cannot read {}", program.display()))?;
    let license = fs::read(checkout.join("LICENSE")).context("cannot read LICENSE")?;
    let moved = |text: &str| text.replace(BY_HAND, &format!("/{PACKAGED}")).into_bytes();
    let script = |name: &str| read(name).map(String::into_bytes);
    Ok(Recipe {
        name: "vm-monitor",
        version,
        debian: "Recommends: systemd",
        rpm: "Recommends: systemd",
        description: DESCRIPTION,
        files: vec![
            ("DEBIAN/postinst", script("debian/postinst")?, 0o755),
            ("DEBIAN/prerm", script("debian/prerm")?, 0o755),
            ("DEBIAN/postrm", script("debian/postrm")?, 0o755),
            (PACKAGED, program, 0o755),
            (
                "usr/lib/systemd/system/vm-monitor.service",
                moved(&unit),
                0o644,
            ),
            (
                "usr/lib/sysusers.d/vm-monitor.conf",
                script("vm-monitor.sysusers")?,
                0o644,
            ),
            (
                "usr/share/doc/vm-monitor/examples/vm-monitor.openrc",
                moved(&read("vm-monitor.openrc")?),
                0o755,
            ),
            ("usr/share/doc/vm-monitor/copyright", license, 0o644),
        ]
        .into_iter()
        .map(|(name, content, mode)| (name.to_owned(), content, mode))
        .collect(),
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
    use crate::dist::unpack;
    use crate::shell;

    fn listing(package: &Path, what: &str) -> String {
        shell::output(Command::new("dpkg-deb").arg(what).arg(package)).expect("it reads")
    }

    /// Requirement: N46
    #[test]
    fn the_package_has_what_the_unit_starts_and_is_the_same_each_time() {
        if !shell::on_path("dpkg-deb") {
            let test = "the_package_has_what_the_unit_starts_and_is_the_same_each_time";
            return skip(test, Missing::Tool, "dpkg-deb");
        }
        let folder = tempfile::tempdir().expect("a folder");
        let program = folder.path().join("program");
        fs::write(&program, vec![7; 5000]).expect("written");
        let build = |name: &str| {
            let out = folder.path().join(name);
            let recipe = recipe("0.1.0", &program, &shell::root()).expect("a recipe");
            recipe.deb(&out).expect("built")
        };
        let (first, second) = (build("1"), build("2"));
        assert_eq!(
            fs::read(&first).expect("there"),
            fs::read(&second).expect("there")
        );
        let files = listing(&first, "--contents");
        for line in [
            "-rwxr-xr-x root/root",
            "./usr/bin/vm-monitor",
            "./usr/lib/systemd/system/vm-monitor.service",
            "./usr/lib/sysusers.d/vm-monitor.conf",
            "./usr/share/doc/vm-monitor/copyright",
        ] {
            assert!(files.contains(line), "{line} is not in\n{files}");
        }
        assert!(!files.contains("local"), "{files}");
        let control = listing(&first, "--field");
        assert!(control.contains("Package: vm-monitor\n"), "{control}");
        let size = control
            .lines()
            .find_map(|line| line.strip_prefix("Installed-Size: "));
        let size: u32 = size.expect("a size").parse().expect("a number");
        // The program of 5 kB and what goes with it.
        assert!((10..50).contains(&size), "{control}");
        let unpacked = unpack(&first, folder.path());
        let unit = unpacked.join("usr/lib/systemd/system/vm-monitor.service");
        let unit = fs::read_to_string(unit).expect("there");
        assert!(unit.contains("\nExecStart=/usr/bin/vm-monitor\n"), "{unit}");
    }

    /// What systemd itself says of the unit: nothing in it is unknown or wrong, and little is open
    /// to the program.
    #[test]
    fn systemd_finds_the_unit_sound_and_well_shut() {
        if !shell::on_path("systemd-analyze") {
            let test = "systemd_finds_the_unit_sound_and_well_shut";
            return skip(test, Missing::Tool, "systemd-analyze");
        }
        let folder = tempfile::tempdir().expect("a folder");
        put(folder.path(), "program", b"#!/bin/sh\n", 0o755).expect("written");
        let unit = shell::root().join("vm-monitor/dist/vm-monitor.service");
        let unit = fs::read_to_string(unit).expect("a unit");
        let program = folder.path().join("program").display().to_string();
        let path = folder.path().join("vm-monitor.service");
        let analyze = |unit: &str, words: &[&str]| {
            fs::write(&path, unit).expect("written");
            let mut command = Command::new("systemd-analyze");
            let output = command.args(words).arg(&path).output().expect("it runs");
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            (output.status.success() && said.is_empty(), said)
        };
        let sound = unit.replace(BY_HAND, &program);
        let verify: &[&str] = &["verify", "--man=no"];
        assert_eq!(analyze(&sound, verify), (true, String::new()));
        let wrong = sound.replace("UMask=", "Umask=");
        assert!(!analyze(&wrong, verify).0, "it would find nothing");
        // Of 100: below 30 is what systemd calls well protected.
        let shut: &[&str] = &["security", "--offline=true", "--no-pager", "--threshold=30"];
        assert!(analyze(&sound, shut).0, "{}", analyze(&sound, shut).1);
        let open = sound
            .replace("ProtectSystem=strict\n", "")
            .replace("User=vm-monitor\n", "");
        assert!(!analyze(&open, shut).0, "it would find nothing");
    }

    /// Requirement: N46
    #[test]
    fn the_packages_scripts_are_sound_shell() {
        for name in ["postinst", "prerm", "postrm"] {
            let path = shell::root().join("vm-monitor/dist/debian").join(name);
            let status = Command::new("sh").arg("-n").arg(&path).status();
            assert!(status.expect("a shell").success(), "{name}");
        }
    }
}
