//! `cargo xtask dist`: packages of what is installed alone: `vm-monitor`, for guests that are not
//! built here, `bellows-updater`, which upgrades it, and `bellows`, for those who ask clusters and
//! machines, plugin of kubectl too.
//!
//! Beside each package is a list of the crates in each of its programs (`CRATE_VERSION.cdx.json`,
//! CycloneDX).
//!
//! The same binary makes the same package, byte for byte: names, owners, modes and times are fixed,
//! and so is the compression.

mod command;
mod deb;
#[cfg(test)]
mod joined;
mod monitor;
mod recipe;
mod rpm;
mod sbom;
#[cfg(test)]
mod suite;
#[cfg(test)]
mod under_systemd;
mod updater;
#[cfg(test)]
mod upgraded_by_dnf;
#[cfg(test)]
mod upgraded_under_systemd;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use clap::{Args, ValueEnum};

use crate::{build, shell};

/// Options of `dist`.
#[derive(Args)]
pub(crate) struct Options {
    /// Make only this package; all of them if not given
    #[arg(value_enum, value_name = "PACKAGE")]
    only: Option<Package>,
    /// Format of the packages
    #[arg(long, value_enum, default_value_t = Format::Deb)]
    format: Format,
    /// Where the packages go; `dist` in the target directory if not given
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

/// Format of the packages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// For Debian and its relatives
    Deb,
    /// For Fedora and its relatives: vm-monitor and bellows-updater
    Rpm,
}

/// What is packaged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Package {
    /// The monitor inside a VM
    VmMonitor,
    /// What upgrades the monitor inside a VM
    BellowsUpdater,
    /// The command for people, as plugin of kubectl too
    Bellows,
}

impl Package {
    fn has(self, format: Format) -> bool {
        format == Format::Deb || self != Self::Bellows
    }
}

/// Builds packages; prints where they are.
pub(crate) fn run(options: &Options) -> Result<()> {
    let out = match &options.out {
        Some(out) => out.clone(),
        None => shell::target_dir()?.join("dist"),
    };
    let root = shell::root();
    let wanted = |package: &Package| match options.only {
        Some(only) => only == *package,
        None => package.has(options.format),
    };
    for package in [
        Package::VmMonitor,
        Package::BellowsUpdater,
        Package::Bellows,
    ]
    .into_iter()
    .filter(wanted)
    {
        ensure!(
            package.has(options.format),
            "bellows has no RPM package: its program needs Debian's libraries"
        );
        let folder = tempfile::tempdir()?;
        let program = match package {
            Package::VmMonitor => build::whole_monitor()?,
            Package::BellowsUpdater => updater::program(&build::updater()?, options.format),
            Package::Bellows => {
                let bellows = build::host_bins(build::Scope::Release)?;
                stripped(&bellows.with_file_name(command::POLICY), folder.path())?;
                stripped(&bellows, folder.path())?
            }
        };
        for made in made(package, options.format, &program, &root, &out)? {
            shell::say(&made.display().to_string());
        }
    }
    Ok(())
}

/// Makes the package of a program, and the lists of what its programs are made of.
fn made(
    package: Package,
    format: Format,
    program: &Path,
    checkout: &Path,
    out: &Path,
) -> Result<Vec<PathBuf>> {
    let version = env!("CARGO_PKG_VERSION");
    let (crates, recipe): (&[&str], _) = match package {
        Package::VmMonitor => (
            &["vm-monitor"],
            monitor::recipe(version, program, checkout)?,
        ),
        Package::BellowsUpdater => (
            &["bellows-updater"],
            updater::recipe(version, program, checkout)?,
        ),
        Package::Bellows => (
            &["bellows", "policy-cli"],
            command::recipe(program, checkout)?,
        ),
    };
    let package = match format {
        Format::Deb => recipe.deb(out)?,
        Format::Rpm => recipe.rpm(out)?,
    };
    let lists = crates.iter().map(|name| sbom::write(name, out));
    std::iter::once(Ok(package)).chain(lists).collect()
}

/// A copy of a program without what only debuggers read.
fn stripped(program: &Path, folder: &Path) -> Result<PathBuf> {
    let to = folder.join(program.file_name().context("a program has a name")?);
    let mut command = Command::new("strip");
    command.arg("-o").arg(&to).arg(program);
    shell::output(&mut command).context("strip (package binutils) makes programs small")?;
    Ok(to)
}

/// Unpacks a package below a folder; returns where.
#[cfg(test)]
fn unpack(package: &Path, folder: &Path) -> PathBuf {
    let to = folder.join("unpacked");
    let mut command = Command::new("dpkg-deb");
    command.arg("--extract").arg(package).arg(&to);
    shell::output(&mut command).expect("unpacked");
    to
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;

    use serde_json::Value;

    use super::*;

    /// Each crate of a program has a name, a version, a licence and a checksum, and what it needs
    /// is in the list too.
    #[test]
    fn package_comes_with_a_list_of_its_crates() {
        let folder = tempfile::tempdir().expect("a folder");
        let program = folder.path().join("program");
        fs::write(&program, vec![7; 5000]).expect("written");
        let made = made(
            Package::VmMonitor,
            Format::Deb,
            &program,
            &shell::root(),
            folder.path(),
        );
        let made: [PathBuf; 2] = made.expect("made").try_into().expect("two files");
        let [package, list] = made;
        assert!(package.is_file());
        let text = fs::read_to_string(list).expect("a list");
        let list: Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(
            (&list["bomFormat"], &list["specVersion"]),
            (&"CycloneDX".into(), &"1.5".into())
        );
        let program = &list["metadata"]["component"];
        assert_eq!(program["name"], "vm-monitor");
        let components = list["components"].as_array().expect("components");
        let mut known = BTreeSet::from([program["bom-ref"].as_str().expect("a reference")]);
        for component in components {
            let text = |pointer: &str| component.pointer(pointer).and_then(Value::as_str);
            for member in ["/name", "/version", "/purl", "/licenses/0/expression"] {
                assert!(
                    text(member).is_some_and(|text| !text.is_empty()),
                    "{component}"
                );
            }
            let is_ours = ["protocol", "transport"].contains(&text("/name").expect("a name"));
            let checksum = text("/hashes/0/content").map(str::len);
            assert_eq!(
                checksum,
                if is_ours { None } else { Some(64) },
                "{component}"
            );
            assert!(
                known.insert(text("/bom-ref").expect("a reference")),
                "{component}"
            );
        }
        for dependency in list["dependencies"].as_array().expect("dependencies") {
            let needs = dependency["dependsOn"].as_array().expect("a list");
            assert!(
                needs
                    .iter()
                    .all(|it| known.contains(it.as_str().unwrap_or_default()))
            );
        }
        let has = |name: &str| components.iter().any(|component| component["name"] == name);
        assert!(has("tokio") && has("rustls") && has("protocol"));
        assert!(
            !has("proptest") && !has("kube"),
            "tests and other programs are not in it"
        );
    }
}
