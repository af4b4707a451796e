//! Packages by dnf alone.

use std::cmp::Ordering;
use std::path::Path;
use std::process::Command;

use semver::Version;

use super::packages::{Database, Manager, PACKAGE};
use super::{Error, output};

/// Name of the suite, in its file and to dnf.
const SUITE: &str = "bellows";

/// The package manager of Fedora and its relatives.
#[derive(Debug)]
pub enum Dnf {}

fn dnf() -> Command {
    let mut command = Command::new("dnf");
    command.args([
        "--quiet",
        "--assumeyes",
        "--disablerepo=*",
        &format!("--enablerepo={SUITE}"),
        // The signature of the suite covers each of its packages.
        &format!("--setopt={SUITE}.repo_gpgcheck=1"),
        &format!("--setopt={SUITE}.skip_if_unavailable=0"),
        "--setopt=install_weak_deps=0",
    ]);
    command
}

/// The version as rpm writes it: before a release comes `~`, since `-` ends a version.
fn written(version: &Version) -> String {
    version.to_string().replace('-', "~")
}

impl Database for Dnf {
    fn installed() -> Result<Option<Version>, Error> {
        let mut query = Command::new("rpm");
        query.args(["--query", "--all", "--queryformat=%{NAME} %{VERSION}\n"]);
        // With `--all` a name is a pattern, and the query does not fail if nothing has it.
        Ok(installed_of(&output(query.arg(PACKAGE))?))
    }
}

impl Manager for Dnf {
    const SOURCE: &str = "/etc/yum.repos.d/bellows.repo";

    fn refresh() -> Command {
        let mut command = dnf();
        command.args(["--refresh", "makecache"]);
        command
    }

    fn fetch(version: &Version) -> Command {
        let mut command = dnf();
        command.arg("download");
        command.arg(format!("{PACKAGE}-{}", written(version)));
        command
    }

    fn install(version: &Version, installed: Option<&Version>) -> Command {
        let verb = match installed.map(|installed| version.cmp(installed)) {
            None | Some(Ordering::Greater) => "install",
            Some(Ordering::Equal) => "reinstall",
            Some(Ordering::Less) => "downgrade",
        };
        let mut command = dnf();
        command.arg(verb);
        command.arg(format!("{PACKAGE}-{}", written(version)));
        command
    }

    fn put_back(package: &Path) -> Command {
        let mut command = Command::new("rpm");
        command.args(["--upgrade", "--oldpackage", "--replacepkgs"]);
        command.arg(package);
        command
    }

    fn is_package(name: &str, version: &Version) -> bool {
        name.starts_with(&format!("{PACKAGE}-{}-", written(version))) && name.ends_with(".rpm")
    }
}

/// Finds our package in lines of name and version.
fn installed_of(listing: &str) -> Option<Version> {
    listing.lines().find_map(|line| {
        let version = line.strip_prefix(PACKAGE)?.strip_prefix(' ')?;
        Version::parse(&version.replace('~', "-")).ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn installed_version_is_the_one_of_our_package() {
        let early = Version::parse("1.2.3-rc.1").expect("a version");
        let rows = [
            ("vm-monitor 1.2.3\n", Some(Version::new(1, 2, 3))),
            ("vm-monitor 1.2.3~rc.1\n", Some(early)),
            ("vm-monitor-x 1.2.3\n", None),
            ("vm-monitor 1.2\n", None),
            ("", None),
        ];
        for (line, expected) in rows {
            assert_eq!(installed_of(line), expected, "{line}");
        }
    }

    #[test]
    fn verb_is_that_of_the_order_of_versions() {
        let [low, high] = [1, 2].map(|major| Version::new(major, 0, 0));
        for (installed, verb) in [
            (None, "install"),
            (Some(&low), "install"),
            (Some(&high), "reinstall"),
            (Some(&Version::new(2, 0, 1)), "downgrade"),
        ] {
            let command = Dnf::install(&high, installed);
            assert!(command.get_args().any(|arg| arg == verb), "{installed:?}");
        }
    }
}
