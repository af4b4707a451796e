//! `cargo xtask dist`: packages of what is installed alone. Now one: `vm-monitor`, for guests that are not built here.
//!
//! The same binary makes the same package, byte for byte: names, owners, modes and times are fixed, and so is the
//! compression.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use clap::Args;

use crate::{build, shell};

/// Options of `dist`.
#[derive(Args)]
pub(crate) struct Options {
    /// Where the packages go; `dist` in the target directory if not given
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

/// The time of every file: the one of the images.
const EPOCH: &str = "1700000000";

/// Where the unit expects the program, and where a package has to put it.
const BY_HAND: &str = "/usr/local/bin/vm-monitor";
const PACKAGED: &str = "/usr/bin/vm-monitor";

/// Builds every package; prints where they are.
pub(crate) fn run(options: &Options) -> Result<()> {
    let out = match &options.out {
        Some(out) => out.clone(),
        None => shell::target_dir()?.join("dist"),
    };
    let program = build::whole_monitor()?;
    let package = vm_monitor(&program, &shell::root(), &out)?;
    shell::say(&package.display().to_string());
    Ok(())
}

/// The Debian package of a static `vm-monitor`.
fn vm_monitor(program: &Path, checkout: &Path, out: &Path) -> Result<PathBuf> {
    let version = env!("CARGO_PKG_VERSION");
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
    let control = control(version, program.len());
    let files: [(&str, Vec<u8>, u32); 9] = [
        ("DEBIAN/control", control.into_bytes(), 0o644),
        (
            "DEBIAN/postinst",
            read("debian/postinst")?.into_bytes(),
            0o755,
        ),
        ("DEBIAN/prerm", read("debian/prerm")?.into_bytes(), 0o755),
        ("DEBIAN/postrm", read("debian/postrm")?.into_bytes(), 0o755),
        (PACKAGED, program, 0o755),
        (
            "usr/lib/systemd/system/vm-monitor.service",
            unit.replace(BY_HAND, PACKAGED).into_bytes(),
            0o644,
        ),
        (
            "usr/lib/sysusers.d/vm-monitor.conf",
            read("vm-monitor.sysusers")?.into_bytes(),
            0o644,
        ),
        (
            "usr/share/doc/vm-monitor/examples/vm-monitor.openrc",
            read("vm-monitor.openrc")?
                .replace(BY_HAND, PACKAGED)
                .into_bytes(),
            0o755,
        ),
        ("usr/share/doc/vm-monitor/copyright", license, 0o644),
    ];
    let tree = tempfile::tempdir()?;
    for (name, content, mode) in files {
        put(tree.path(), name, &content, mode)?;
    }
    fs::create_dir_all(out).with_context(|| format!("cannot create {}", out.display()))?;
    let package = out.join(format!("vm-monitor_{version}_amd64.deb"));
    let mut command = Command::new("dpkg-deb");
    command
        .env("SOURCE_DATE_EPOCH", EPOCH)
        .args(["--root-owner-group", "-Zxz", "--build"])
        .arg(tree.path())
        .arg(&package);
    // Its own line about what it does is ours to say.
    shell::output(&mut command).context("dpkg-deb (package dpkg) makes the package")?;
    Ok(package)
}

fn control(version: &str, bytes: usize) -> String {
    format!(
        "Package: vm-monitor\n\
         Version: {version}\n\
         Architecture: amd64\n\
         Maintainer: Bellows maintainers <maintainers@bellows.invalid>\n\
         Installed-Size: {}\n\
         Recommends: systemd\n\
         Section: admin\n\
         Priority: optional\n\
         Description: in-VM monitor of Bellows, the live vertical autoscaler\n \
         Watches the memory of a cgroup, agrees to shrinks of its VM or refuses them,\n \
         and asks for growth before memory runs out.\n",
        bytes.div_ceil(1024)
    )
}

/// A file of the tree, and the folders on the way to it, with modes that do not depend on who builds.
fn put(tree: &Path, name: &str, content: &[u8], mode: u32) -> Result<()> {
    let path = tree.join(name.trim_start_matches('/'));
    let folders = path.parent().context("a folder")?;
    fs::create_dir_all(folders)?;
    for folder in folders
        .ancestors()
        .take_while(|folder| folder.starts_with(tree))
    {
        fs::set_permissions(folder, fs::Permissions::from_mode(0o755))?;
    }
    fs::write(&path, content)?;
    fs::set_permissions(&path, fs::Permissions::from_mode(mode))?;
    Ok(())
}

#[cfg(test)]
mod under_systemd;

#[cfg(test)]
mod tests {
    use super::*;

    fn listing(package: &Path, what: &str) -> String {
        shell::output(Command::new("dpkg-deb").arg(what).arg(package)).expect("it reads")
    }

    #[test]
    fn n46_the_package_has_what_the_unit_starts_and_is_the_same_each_time() {
        if !shell::on_path("dpkg-deb") {
            println!("SKIP(missing: dpkg-deb): n46_the_package_has_what_the_unit_starts");
            return;
        }
        let folder = tempfile::tempdir().expect("a folder");
        let program = folder.path().join("program");
        fs::write(&program, vec![7; 5000]).expect("written");
        let build = |name: &str| {
            let out = folder.path().join(name);
            vm_monitor(&program, &shell::root(), &out).expect("built")
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
        assert!(control.contains("Installed-Size: 5\n"), "{control}");
        let unpacked = folder.path().join("unpacked");
        let mut unpack = Command::new("dpkg-deb");
        unpack.arg("--extract").arg(&first).arg(&unpacked);
        shell::output(&mut unpack).expect("unpacked");
        let unit = unpacked.join("usr/lib/systemd/system/vm-monitor.service");
        let unit = fs::read_to_string(unit).expect("there");
        assert!(unit.contains("\nExecStart=/usr/bin/vm-monitor\n"), "{unit}");
    }

    /// What systemd itself says of the unit: nothing in it is unknown or wrong, and little is open to the program.
    #[test]
    fn systemd_finds_the_unit_sound_and_well_shut() {
        if !shell::on_path("systemd-analyze") {
            println!("SKIP(missing: systemd-analyze): systemd_finds_the_unit_sound_and_well_shut");
            return;
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

    #[test]
    fn n46_the_packages_scripts_are_sound_shell() {
        for name in ["postinst", "prerm", "postrm"] {
            let path = shell::root().join("vm-monitor/dist/debian").join(name);
            let status = Command::new("sh").arg("-n").arg(&path).status();
            assert!(status.expect("a shell").success(), "{name}");
        }
    }
}
