//! What an upgrade needs of a package manager.

use std::marker::PhantomData;
use std::path::{Path, PathBuf};
use std::process::Command;

use semver::Version;

use super::{Error, output};

/// Name of the monitor's package.
pub(super) const PACKAGE: &str = "vm-monitor";
/// Folder of kept packages below the state.
const KEPT: &str = "packages";

/// The database of installed packages.
pub trait Database {
    /// Version of the installed monitor. `None` if it is not installed, or its version is no
    /// semantic one.
    ///
    /// # Errors
    /// The database of packages cannot be read.
    fn installed() -> Result<Option<Version>, Error>;
}

/// A package manager. It takes the fleet's suite alone, and verifies what it fetches by the suite's
/// signature. A program is built for one, and has no other one to fall back to.
pub trait Manager: Database {
    /// Source of the fleet's suite.
    const SOURCE: &str;

    /// The command that reads the suite's lists.
    fn refresh() -> Command;

    /// The command that fetches the monitor of a version into its working directory.
    fn fetch(version: &Version) -> Command;

    /// The command that installs a version of the suite over the installed one, a lower or the same
    /// one too.
    fn install(version: &Version, installed: Option<&Version>) -> Command;

    /// The command that installs a package file, without the network.
    fn put_back(package: &Path) -> Command;

    /// Whether a file of this name is the monitor's package of a version.
    fn is_package(name: &str, version: &Version) -> bool;
}

/// A package manager with a folder of packages.
#[derive(Debug)]
pub(super) struct Packages<M> {
    folder: PathBuf,
    manager: PhantomData<M>,
}

impl<M: Manager> Packages<M> {
    pub(super) fn new(state: &Path) -> Self {
        Self {
            folder: state.join(KEPT),
            manager: PhantomData,
        }
    }

    /// Reads the suite's lists.
    pub(super) fn refresh(&self) -> Result<(), Error> {
        let source = M::SOURCE;
        if !Path::new(source).is_file() {
            return Err(Error::Machine(format!(
                "{source} is absent: it names the fleet's suite"
            )));
        }
        output(&mut M::refresh())?;
        Ok(())
    }

    /// Fetches the package of a version into the folder.
    pub(super) fn fetch(&self, version: &Version) -> Result<(), Error> {
        std::fs::create_dir_all(&self.folder).map_err(|error| {
            let folder = self.folder.display();
            Error::Machine(format!("failed to create {folder}: {error}"))
        })?;
        output(M::fetch(version).current_dir(&self.folder))?;
        Ok(())
    }

    /// Has the package of a version at hand, by what was kept or from the suite.
    pub(super) fn keep(&self, version: &Version) -> Result<(), Error> {
        match self.kept(version) {
            Some(_) => Ok(()),
            None => self.fetch(version),
        }
    }

    /// Installs a version of the suite.
    pub(super) fn install(&self, version: &Version) -> Result<(), Error> {
        output(&mut M::install(version, M::installed()?.as_ref()))?;
        Ok(())
    }

    /// Installs the kept package of a version, without the network.
    pub(super) fn put_back(&self, version: &Version) -> Result<(), Error> {
        let package = self.kept(version).ok_or_else(|| {
            Error::Machine(format!("the package of {PACKAGE} {version} was not kept"))
        })?;
        output(&mut M::put_back(&package))?;
        Ok(())
    }

    /// Removes kept packages of other versions.
    pub(super) fn forget_all_but(&self, versions: &[&Version]) {
        let wanted: Vec<PathBuf> = versions.iter().filter_map(|it| self.kept(it)).collect();
        let entries = std::fs::read_dir(&self.folder);
        for entry in entries.into_iter().flatten().flatten() {
            if !wanted.contains(&entry.path()) {
                // What stays takes room, no more.
                let _ = std::fs::remove_file(entry.path());
            }
        }
    }

    fn kept(&self, version: &Version) -> Option<PathBuf> {
        let entries = std::fs::read_dir(&self.folder).ok()?;
        let mut paths = entries
            .flatten()
            .filter(|entry| M::is_package(&entry.file_name().to_string_lossy(), version));
        paths.next().map(|entry| entry.path())
    }
}

#[cfg(test)]
mod tests {
    use super::super::apt::Apt;
    use super::super::dnf::Dnf;
    use super::*;

    fn found_by_their_whole_version<M: Manager>(names: [&str; 2]) {
        let state = tempfile::tempdir().expect("a folder");
        let packages = Packages::<M>::new(state.path());
        let (one, ten) = (Version::new(1, 0, 1), Version::new(1, 0, 10));
        assert!(packages.put_back(&one).is_err(), "nothing is kept");
        std::fs::create_dir(&packages.folder).expect("a folder");
        for name in names {
            std::fs::write(packages.folder.join(name), "").expect("written");
        }
        assert_eq!(packages.kept(&one), Some(packages.folder.join(names[0])));
        packages.forget_all_but(&[&ten]);
        assert_eq!(packages.kept(&one), None);
        assert!(packages.kept(&ten).is_some());
    }

    #[test]
    fn kept_packages_are_found_by_their_whole_version() {
        found_by_their_whole_version::<Apt>([
            "vm-monitor_1.0.1_amd64.deb",
            "vm-monitor_1.0.10_amd64.deb",
        ]);
        found_by_their_whole_version::<Dnf>([
            "vm-monitor-1.0.1-1.x86_64.rpm",
            "vm-monitor-1.0.10-1.x86_64.rpm",
        ]);
    }
}
