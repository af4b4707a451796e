//! Changes of packages, by apt alone. It takes the fleet's suite alone, and verifies what it
//! fetches by the suite's signature.

use std::path::{Path, PathBuf};
use std::process::Command;

use semver::Version;

use super::monitor::PACKAGE;
use super::{Error, output};

/// Source of the fleet's suite.
const SOURCE: &str = "/etc/apt/sources.list.d/bellows.sources";
/// Folder of kept packages below the state.
const KEPT: &str = "packages";

/// apt with the fleet's suite, and a folder for packages.
#[derive(Debug)]
pub(super) struct Apt {
    packages: PathBuf,
}

impl Apt {
    pub(super) fn new(state: &Path) -> Self {
        Self {
            packages: state.join(KEPT),
        }
    }

    fn command() -> Command {
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

    /// Reads the suite's lists.
    pub(super) fn refresh(&self) -> Result<(), Error> {
        if !Path::new(SOURCE).is_file() {
            return Err(Error::Machine(format!(
                "{SOURCE} is absent: it names the fleet's suite"
            )));
        }
        // Without it a suite that cannot be read is a warning.
        output(Self::command().arg("--error-on=any").arg("update"))?;
        Ok(())
    }

    /// Fetches the package of a version into the folder of kept packages.
    pub(super) fn fetch(&self, version: &Version) -> Result<(), Error> {
        std::fs::create_dir_all(&self.packages).map_err(|error| {
            let folder = self.packages.display();
            Error::Machine(format!("failed to create {folder}: {error}"))
        })?;
        let mut command = Self::command();
        command
            .current_dir(&self.packages)
            // The folder is root's alone, so no other user can fetch into it.
            .arg("--option=APT::Sandbox::User=root")
            .arg("download")
            .arg(format!("{PACKAGE}={version}"));
        output(&mut command)?;
        Ok(())
    }

    /// Has the package of a version at hand, by what was kept or from the suite.
    pub(super) fn keep(&self, version: &Version) -> Result<(), Error> {
        match self.kept(version) {
            Some(_) => Ok(()),
            None => self.fetch(version),
        }
    }

    /// Installs a version of the suite, a lower or the same one too.
    pub(super) fn install(&self, version: &Version) -> Result<(), Error> {
        let mut command = Self::command();
        command.args(["--reinstall", "--allow-downgrades", "install"]);
        output(command.arg(format!("{PACKAGE}={version}")))?;
        Ok(())
    }

    /// Installs the kept package of a version, without the network.
    pub(super) fn put_back(&self, version: &Version) -> Result<(), Error> {
        let package = self.kept(version).ok_or_else(|| {
            Error::Machine(format!("the package of {PACKAGE} {version} was not kept"))
        })?;
        let mut command = Command::new("dpkg");
        command.env("DEBIAN_FRONTEND", "noninteractive");
        command.args(["--force-confold", "--force-downgrade", "--install"]);
        output(command.arg(package))?;
        Ok(())
    }

    /// Removes kept packages of other versions.
    pub(super) fn forget_all_but(&self, versions: &[&Version]) {
        let wanted: Vec<PathBuf> = versions.iter().filter_map(|it| self.kept(it)).collect();
        let entries = std::fs::read_dir(&self.packages);
        for entry in entries.into_iter().flatten().flatten() {
            if !wanted.contains(&entry.path()) {
                // What stays takes room, no more.
                let _ = std::fs::remove_file(entry.path());
            }
        }
    }

    fn kept(&self, version: &Version) -> Option<PathBuf> {
        let entries = std::fs::read_dir(&self.packages).ok()?;
        let start = format!("{PACKAGE}_{version}_");
        let mut paths = entries.flatten().filter(|entry| {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            name.starts_with(&start) && name.ends_with(".deb")
        });
        paths.next().map(|entry| entry.path())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kept_packages_are_found_by_their_whole_version() {
        let state = tempfile::tempdir().expect("a folder");
        let apt = Apt::new(state.path());
        let (one, ten) = (Version::new(1, 0, 1), Version::new(1, 0, 10));
        assert!(apt.put_back(&one).is_err(), "nothing is kept");
        std::fs::create_dir(&apt.packages).expect("a folder");
        for version in [&one, &ten] {
            let name = format!("vm-monitor_{version}_amd64.deb");
            std::fs::write(apt.packages.join(name), "").expect("written");
        }
        let name = |path: PathBuf| path.file_name().expect("a name").to_owned();
        let kept = apt.kept(&one).map(name);
        assert_eq!(kept, Some("vm-monitor_1.0.1_amd64.deb".into()));
        apt.forget_all_but(&[&ten]);
        assert_eq!(apt.kept(&one), None);
        assert!(apt.kept(&ten).is_some());
    }
}
