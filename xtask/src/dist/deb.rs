//! Debian packages.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};

use super::recipe::{DEBIAN, EPOCH, Recipe, put};
use crate::shell;

impl Recipe<'_> {
    /// Writes the Debian package into `out`; returns its path.
    pub(super) fn deb(&self, out: &Path) -> Result<PathBuf> {
        let (name, version) = (self.name, self.version);
        let files = self.all_files()?;
        let bytes: usize = files.iter().map(|(_, content, _)| content.len()).sum();
        let tree = tempfile::tempdir()?;
        let control = format!(
            "Package: {name}\n\
             Version: {version}\n\
             Architecture: amd64\n\
             Maintainer: Bellows maintainers <maintainers@bellows.invalid>\n\
             Installed-Size: {}\n\
             {}\n\
             Section: admin\n\
             Priority: optional\n\
             Description: {}\n",
            bytes.div_ceil(1024),
            self.debian,
            self.description,
        );
        let place = format!("{DEBIAN}control");
        put(tree.path(), &place, control.as_bytes(), 0o644)?;
        for (name, content, mode) in files {
            put(tree.path(), &name, &content, mode)?;
        }
        self.link(tree.path())?;
        fs::create_dir_all(out).with_context(|| format!("cannot create {}", out.display()))?;
        let package = out.join(format!("{name}_{version}_amd64.deb"));
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
