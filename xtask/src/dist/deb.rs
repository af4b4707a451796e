//! Debian packages. Names, owners, modes and times are fixed, so that the same files make the same
//! package.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::shell;

/// The time of every file: the one of the images.
const EPOCH: &str = "1700000000";

/// A Debian package in the making.
pub(super) struct Deb<'a> {
    pub(super) name: &'static str,
    pub(super) version: &'a str,
    /// Relations to other packages, a line each.
    pub(super) relations: &'static str,
    pub(super) description: &'static str,
    /// Path, content and mode of each file; those below `DEBIAN/` are the package's own.
    pub(super) files: Vec<(String, Vec<u8>, u32)>,
    /// Folder of the package, and the folder whose files go there, with mode 644.
    pub(super) folders: Vec<(&'static str, PathBuf)>,
    /// Where each link is, and what it says.
    pub(super) links: Vec<(&'static str, &'static str)>,
}

impl Deb<'_> {
    /// Writes it into `out`; returns its path.
    pub(super) fn write(self, out: &Path) -> Result<PathBuf> {
        let version = self.version;
        let mut files = self.files;
        for (to, from) in &self.folders {
            files.extend(files_of(to, from)?);
        }
        let bytes: usize = files.iter().map(|(_, content, _)| content.len()).sum();
        let tree = tempfile::tempdir()?;
        let control = format!(
            "Package: {}\n\
             Version: {version}\n\
             Architecture: amd64\n\
             Maintainer: Bellows maintainers <maintainers@bellows.invalid>\n\
             Installed-Size: {}\n\
             {}\n\
             Section: admin\n\
             Priority: optional\n\
             Description: {}\n",
            self.name,
            bytes.div_ceil(1024),
            self.relations,
            self.description,
        );
        put(tree.path(), "DEBIAN/control", control.as_bytes(), 0o644)?;
        for (name, content, mode) in files {
            put(tree.path(), &name, &content, mode)?;
        }
        for (name, to) in self.links {
            let path = tree.path().join(name);
            symlink(to, &path).with_context(|| format!("cannot create {}", path.display()))?;
        }
        fs::create_dir_all(out).with_context(|| format!("cannot create {}", out.display()))?;
        let package = out.join(format!("{}_{version}_amd64.deb", self.name));
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
}

/// The files of a folder, by name, as files of a package.
fn files_of(to: &str, from: &Path) -> Result<Vec<(String, Vec<u8>, u32)>> {
    let failed = || format!("cannot read {}", from.display());
    let entries = fs::read_dir(from).with_context(failed)?;
    let mut files = Vec::new();
    for entry in entries {
        let entry = entry.with_context(failed)?;
        let name = entry.file_name();
        let content = fs::read(entry.path()).with_context(failed)?;
        files.push((format!("{to}/{}", name.display()), content, 0o644));
    }
    files.sort();
    Ok(files)
}

/// A file of the tree, and the folders on the way to it, with modes that do not depend on who
/// builds.
pub(super) fn put(tree: &Path, name: &str, content: &[u8], mode: u32) -> Result<()> {
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
