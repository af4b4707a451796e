//! What is in a package, whatever its format. Names, owners, modes and times are fixed, so that the
//! same files make the same package.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

/// The time of every file: the one of the images.
pub(super) const EPOCH: &str = "1700000000";
/// Folder of what is Debian's own: scripts and the list of settings.
pub(super) const DEBIAN: &str = "DEBIAN/";

/// A package in the making.
pub(super) struct Recipe<'a> {
    pub(super) name: &'static str,
    pub(super) version: &'a str,
    /// Relations to other packages in Debian's words, a line each.
    pub(super) debian: &'static str,
    /// Relations to other packages in rpm's words, a line each.
    pub(super) rpm: &'static str,
    /// A line, then a text whose lines begin with a space.
    pub(super) description: &'static str,
    /// Path, content and mode of each file; those below [`DEBIAN`] are the package's own.
    pub(super) files: Vec<(String, Vec<u8>, u32)>,
    /// Folder of the package, and the folder whose files go there, with mode 644.
    pub(super) folders: Vec<(&'static str, PathBuf)>,
    /// Where each link is, and what it says.
    pub(super) links: Vec<(&'static str, &'static str)>,
}

impl Recipe<'_> {
    /// All files, those of folders included.
    pub(super) fn all_files(&self) -> Result<Vec<(String, Vec<u8>, u32)>> {
        let mut files = self.files.clone();
        for (to, from) in &self.folders {
            files.extend(files_of(to, from)?);
        }
        Ok(files)
    }

    /// Makes the links in a tree.
    pub(super) fn link(&self, tree: &Path) -> Result<()> {
        for (name, to) in &self.links {
            let path = tree.join(name);
            symlink(to, &path).with_context(|| format!("cannot create {}", path.display()))?;
        }
        Ok(())
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
