//! Packages by apt alone.

use std::path::Path;
use std::process::Command;

use semver::Version;

use super::packages::{Database, Manager, PACKAGE};
use super::{Error, output};

const SOURCE: &str = "/etc/apt/sources.list.d/bellows.sources";

/// The package manager of Debian.
#[derive(Debug)]
pub enum Apt {}

fn apt() -> Command {
    let mut command = Command::new("apt-get");
    command.env("DEBIAN_FRONTEND", "noninteractive").args([
        "--quiet=2",
        "--yes",
        "--no-install-recommends",
        "--option",
        &format!("Dir::Etc::sourcelist={SOURCE}"),
        "--option=Dir::Etc::sourceparts=-",
        "--option=APT::Get::List-Cleanup=0",
        "--option=Dpkg::Options::=--force-confold",
        // Another run of apt holds the lock for a while.
        "--option=DPkg::Lock::Timeout=300",
    ]);
    command
}

impl Database for Apt {
    fn installed() -> Result<Option<Version>, Error> {
        let mut query = Command::new("dpkg-query");
        query.args([
            "--show",
            "--showformat=${db:Status-Abbrev}${Package} ${Version}\n",
        ]);
        // Without a name it lists all packages, and does not fail if ours is absent.
        Ok(installed_of(&output(&mut query)?))
    }
}

impl Manager for Apt {
    const SOURCE: &str = SOURCE;

    fn refresh() -> Command {
        let mut command = apt();
        // Without it a suite that cannot be read is a warning.
        command.args(["--error-on=any", "update"]);
        command
    }

    fn fetch(version: &Version) -> Command {
        let mut command = apt();
        // The folder is root's alone, so no other user can fetch into it.
        command.args(["--option=APT::Sandbox::User=root", "download"]);
        command.arg(format!("{PACKAGE}={version}"));
        command
    }

    fn install(version: &Version, _installed: Option<&Version>) -> Command {
        let mut command = apt();
        command.args(["--reinstall", "--allow-downgrades", "install"]);
        command.arg(format!("{PACKAGE}={version}"));
        command
    }

    fn put_back(package: &Path) -> Command {
        let mut command = Command::new("dpkg");
        command.env("DEBIAN_FRONTEND", "noninteractive");
        command.args(["--force-confold", "--force-downgrade", "--install"]);
        command.arg(package);
        command
    }

    fn is_package(name: &str, version: &Version) -> bool {
        name.starts_with(&format!("{PACKAGE}_{version}_")) && name.ends_with(".deb")
    }
}

/// Finds our package in lines of three letters of state, name and version.
fn installed_of(listing: &str) -> Option<Version> {
    listing.lines().find_map(|line| {
        let (state, rest) = line.split_at_checked(3)?;
        let (name, version) = rest.trim_start().split_once(' ')?;
        let is_ours = state.as_bytes()[1] == b'i' && name == PACKAGE;
        is_ours.then(|| Version::parse(version).ok()).flatten()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn installed_version_is_the_one_of_our_package() {
        let other = "ii bash 5.2\nii vm-monitor-x 3.0.0\n";
        let rows = [
            ("ii vm-monitor 1.2.3\n", Some(Version::new(1, 2, 3))),
            ("hi vm-monitor 1.2.3\n", Some(Version::new(1, 2, 3))),
            ("rc vm-monitor 1.2.3\n", None),
            ("iU vm-monitor 1.2.3\n", None),
            ("ii vm-monitor 1:2-3\n", None),
            ("\n", None),
        ];
        for (line, expected) in rows {
            assert_eq!(installed_of(&format!("{other}{line}")), expected, "{line}");
        }
    }
}
