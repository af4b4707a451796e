//! The Debian package of `bellows`, the command for people.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result};

use super::recipe::Recipe;
use crate::shell;

/// What it is, for people who look for packages.
const DESCRIPTION: &str = "live vertical autoscaler for QEMU virtual machines
 Runs virtual machines on this one that are as big as they need to be, and says
 of each why it has its size, here and, as a plugin of kubectl, in a cluster.";

/// What it was built against, and what it runs guests with; a cluster has that in its images.
const RELATIONS: &str = "Depends: libc6 (>= 2.34), libgcc-s1, libstdc++6
Suggests: kubectl";

/// Where each shell looks for what completes a command.
const COMPLETIONS: [(&str, &str); 3] = [
    ("bash", "usr/share/bash-completion/completions/bellows"),
    ("zsh", "usr/share/zsh/vendor-completions/_bellows"),
    ("fish", "usr/share/fish/vendor_completions.d/bellows.fish"),
];

/// Where systemd looks for the unit. The package does not enable it: a machine that only asks
/// clusters needs no `bellows up`.
const UNIT: &str = "usr/lib/systemd/system/bellows.service";

/// The program that runs policies. `bellows` looks for it beside itself.
pub(super) const POLICY: &str = "bellows-policy";

/// Folder of the policies to begin with, and of their fixtures.
const LIBRARY: &str = "usr/share/bellows/policies";

/// The package of a `bellows`, which is asked for its completions, and of the program for policies
/// beside it.
pub(super) fn recipe(program: &Path, checkout: &Path) -> Result<Recipe<'static>> {
    let read =
        |path: &Path| fs::read(path).with_context(|| format!("cannot read {}", path.display()));
    let mut files = vec![
        ("usr/bin/bellows", read(program)?, 0o755),
        (
            "usr/bin/bellows-policy",
            read(&program.with_file_name(POLICY))?,
            0o755,
        ),
        (
            "usr/share/doc/bellows/copyright",
            read(&checkout.join("LICENSE"))?,
            0o644,
        ),
    ];
    files.push((
        UNIT,
        read(&checkout.join("bellows/dist/bellows.service"))?,
        0o644,
    ));
    for (shell, path) in COMPLETIONS {
        let script = shell::output(Command::new(program).args(["completion", shell]))?;
        files.push((path, script.into_bytes(), 0o644));
    }
    Ok(Recipe {
        name: "bellows",
        version: env!("CARGO_PKG_VERSION"),
        debian: RELATIONS,
        rpm: "",
        description: DESCRIPTION,
        files: files
            .into_iter()
            .map(|(name, content, mode)| (name.to_owned(), content, mode))
            .collect(),
        folders: vec![(LIBRARY, checkout.join("policy/library"))],
        // kubectl finds its plugins by their names.
        links: vec![("usr/bin/kubectl-bellows", "bellows")],
    })
}

#[cfg(test)]
mod tests {
    use test_records::{Missing, skip};

    use super::*;
    use crate::dist::recipe::put;
    use crate::dist::unpack;

    /// The oldest C library its package asks for.
    const LIBC: &str = "GLIBC_2.34";

    #[test]
    fn the_package_has_the_command_its_plugin_and_completions() {
        if !shell::on_path("dpkg-deb") {
            let test = "the_package_has_the_command_its_plugin_and_completions";
            return skip(test, Missing::Tool, "dpkg-deb");
        }
        let folder = tempfile::tempdir().expect("a folder");
        let script = b"#!/bin/sh\necho \"$1 for $2\"\n";
        put(folder.path(), "program", script, 0o755).expect("written");
        put(folder.path(), POLICY, b"#!/bin/sh\necho policies\n", 0o755).expect("written");
        let program = folder.path().join("program");
        let build = |name: &str| {
            let recipe = recipe(&program, &shell::root()).expect("a recipe");
            recipe.deb(&folder.path().join(name)).expect("built")
        };
        let (made, again) = (build("out"), build("again"));
        assert_eq!(fs::read(&made).ok(), fs::read(&again).ok());
        let unpacked = unpack(&made, folder.path());
        for (shell, path) in COMPLETIONS {
            let script = fs::read_to_string(unpacked.join(path)).expect("there");
            assert_eq!(script, format!("completion for {shell}\n"));
        }
        let policy = unpacked.join("usr/bin").join(POLICY);
        let policy = shell::output(&mut Command::new(policy)).expect("it runs");
        assert_eq!(policy, "policies\n");
        let library = fs::read_dir(shell::root().join("policy/library")).expect("a folder");
        for entry in library.map(|entry| entry.expect("an entry")) {
            let packaged = fs::read(unpacked.join(LIBRARY).join(entry.file_name()));
            let own = fs::read(entry.path()).expect("a file");
            assert_eq!(packaged.expect("there"), own, "{:?}", entry.path());
        }
        let unit = fs::read_to_string(unpacked.join(UNIT)).expect("there");
        assert!(unit.contains("\nExecStart=/usr/bin/bellows up "), "{unit}");
        let plugin = unpacked.join("usr/bin/kubectl-bellows");
        let said = shell::output(Command::new(plugin).args(["why", "pg"])).expect("it runs");
        assert_eq!(said, "why for pg\n");
        let mut fields = Command::new("dpkg-deb");
        let fields = shell::output(fields.arg("--field").arg(&made)).expect("it reads");
        let libc = LIBC.replace("GLIBC_", "libc6 (>= ");
        assert!(fields.contains(&libc), "{fields}");
    }

    #[test]
    fn systemd_finds_the_unit_of_bellows_sound() {
        if !shell::on_path("systemd-analyze") {
            let test = "systemd_finds_the_unit_of_bellows_sound";
            return skip(test, Missing::Tool, "systemd-analyze");
        }
        let folder = tempfile::tempdir().expect("a folder");
        put(folder.path(), "program", b"#!/bin/sh\n", 0o755).expect("written");
        let unit = shell::root().join("bellows/dist/bellows.service");
        let unit = fs::read_to_string(unit).expect("a unit");
        let program = folder.path().join("program").display().to_string();
        let path = folder.path().join("bellows.service");
        let verify = |unit: &str| {
            fs::write(&path, unit).expect("written");
            let mut command = Command::new("systemd-analyze");
            let output = command.args(["verify", "--man=no"]).arg(&path).output();
            let output = output.expect("it runs");
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            (output.status.success() && said.is_empty(), said)
        };
        let sound = unit.replace("/usr/bin/bellows", &program);
        assert_eq!(verify(&sound), (true, String::new()));
        let wrong = sound.replace("KillMode=", "Killmode=");
        assert!(!verify(&wrong).0, "it would find nothing");
        assert!(
            unit.contains("\nKillMode=process\n"),
            "guests outlive a restart of the service"
        );
        assert!(
            unit.contains("WantedBy=multi-user.target"),
            "it starts with the machine"
        );
    }

    /// Whatever `bellows` is built with, its package must not be installed where it cannot start.
    #[test]
    fn packaged_programs_need_no_newer_c_library_than_declared() {
        let built = shell::target_dir().expect("a folder").join("debug/bellows");
        if !shell::on_path("objdump") || !built.is_file() {
            let test = "packaged_programs_need_no_newer_c_library_than_declared";
            return skip(test, Missing::Tool, "objdump, or a bellows that is built");
        }
        let mut command = Command::new("objdump");
        let symbols = shell::output(command.arg("--dynamic-syms").arg(&built)).expect("it reads");
        let number = |version: &str| -> Option<(u32, u32)> {
            let (major, minor) = version.strip_prefix("GLIBC_")?.split_once('.')?;
            Some((major.parse().ok()?, minor.split('.').next()?.parse().ok()?))
        };
        let words = symbols.split(|letter: char| letter.is_whitespace() || "()".contains(letter));
        let newest = words
            .filter_map(number)
            .max()
            .expect("it uses the C library");
        assert!(
            Some(newest) <= number(LIBC),
            "{newest:?} is newer than {LIBC}"
        );
    }
}
