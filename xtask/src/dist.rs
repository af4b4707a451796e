//! `cargo xtask dist`: packages of what is installed alone: `vm-monitor`, for guests that are not built here, and `bellows`, for
//! those who ask clusters and machines, plugin of kubectl too.
//!
//! The same binary makes the same package, byte for byte: names, owners, modes and times are fixed, and so is the
//! compression.

mod command;
mod monitor;
#[cfg(test)]
mod under_systemd;

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};
use clap::{Args, ValueEnum};

use crate::{build, shell};

/// Options of `dist`.
#[derive(Args)]
pub(crate) struct Options {
    /// Make only this package; all of them if not given
    #[arg(value_enum, value_name = "PACKAGE")]
    only: Option<Package>,
    /// Where the packages go; `dist` in the target directory if not given
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

/// What is packaged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Package {
    /// The monitor inside a VM
    VmMonitor,
    /// The command for people, as plugin of kubectl too
    Bellows,
}

/// The time of every file: the one of the images.
const EPOCH: &str = "1700000000";

/// Builds packages; prints where they are.
pub(crate) fn run(options: &Options) -> Result<()> {
    let out = match &options.out {
        Some(out) => out.clone(),
        None => shell::target_dir()?.join("dist"),
    };
    let root = shell::root();
    for package in [Package::VmMonitor, Package::Bellows] {
        if options.only.is_some_and(|only| only != package) {
            continue;
        }
        let made = match package {
            Package::VmMonitor => monitor::package(&build::whole_monitor()?, &root, &out)?,
            Package::Bellows => {
                let program = build::host_bins(build::Scope::Release)?;
                let folder = tempfile::tempdir()?;
                command::package(&stripped(&program, folder.path())?, &root, &out)?
            }
        };
        shell::say(&made.display().to_string());
    }
    Ok(())
}

/// A copy of a program without what only debuggers read.
fn stripped(program: &Path, folder: &Path) -> Result<PathBuf> {
    let to = folder.join(program.file_name().context("a program has a name")?);
    let mut command = Command::new("strip");
    command.arg("-o").arg(&to).arg(program);
    shell::output(&mut command).context("strip (package binutils) makes programs small")?;
    Ok(to)
}

/// A Debian package in the making.
struct Deb {
    name: &'static str,
    /// Relations to other packages, a line each.
    relations: &'static str,
    description: &'static str,
    /// Path, content and mode of each file; those below `DEBIAN/` are the package's own.
    files: Vec<(&'static str, Vec<u8>, u32)>,
    /// Where each link is, and what it says.
    links: Vec<(&'static str, &'static str)>,
}

impl Deb {
    /// Writes it into `out`; returns its path.
    fn write(self, out: &Path) -> Result<PathBuf> {
        let version = env!("CARGO_PKG_VERSION");
        let bytes: usize = self.files.iter().map(|(_, content, _)| content.len()).sum();
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
        for (name, content, mode) in self.files {
            put(tree.path(), name, &content, mode)?;
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

/// Unpacks a package below a folder; returns where.
#[cfg(test)]
fn unpack(package: &Path, folder: &Path) -> PathBuf {
    let to = folder.join("unpacked");
    let mut command = Command::new("dpkg-deb");
    command.arg("--extract").arg(package).arg(&to);
    shell::output(&mut command).expect("unpacked");
    to
}
