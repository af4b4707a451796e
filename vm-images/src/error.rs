//! Errors of a build. Each message names the object, the broken rule and the fix.

use std::io;
use std::path::{Path, PathBuf};

// One line each: a group would name `container` itself, whose modules use this one.
use crate::container::ConfigError;
use crate::container::LayerError;
use crate::container::MergeError;
use crate::container::SpecError;
use crate::recipe::RecipeError;
use crate::store::StoreError;

/// A build failed. The cache is as it was before.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// The recipe is malformed.
    #[error("the recipe cannot be used")]
    Recipe(#[from] RecipeError),
    /// The cache cannot be used.
    #[error("the image cache cannot be used")]
    Store(#[from] StoreError),
    /// The archive of a container image cannot be used.
    #[error("{} cannot be the base of a guest", path.display())]
    Archive {
        /// Path of the archive or directory.
        path: PathBuf,
        /// What is wrong with the archive.
        #[source]
        source: ConfigError,
    },
    /// A layer of the container image is damaged or unreadable, or the layers do not fit the disk.
    #[error("the layers of the image cannot be used")]
    Layer(#[from] LayerError),
    /// The image specification cannot be used.
    #[error("the specification of the image cannot be used")]
    Spec(#[from] SpecError),
    /// A Dockerfile line of the specification cannot be run.
    #[error("the specification of the image cannot be carried out")]
    Merge(#[from] MergeError),
    /// The image lacks a user or group.
    #[error("the image has no {what}: name one that its /etc/passwd and /etc/group hold")]
    Unknown {
        /// Kind and name of the missing entry, for example `user "app"`.
        what: String,
    },
    /// The process is not root. Builds set the owners of files.
    #[error(
        "building an image needs root, for the owners of its files: run the same command with sudo"
    )]
    NotRoot,
    /// The machine is not x86-64.
    #[error(
        "this machine is {found}, images are built on and for x86_64 only: build on such a machine"
    )]
    Architecture {
        /// Architecture of the machine.
        found: String,
    },
    /// A program of the host is missing.
    #[error(
        "{tool} is not installed, it is needed {why}: apt-get install --no-install-recommends {package}"
    )]
    MissingTool {
        /// Name of the program, or path of the file.
        tool: String,
        /// Purpose of the program in a build, worded to follow `it is needed`.
        why: String,
        /// Debian package that has it.
        package: String,
    },
    /// Programs of an image cannot be confined on this machine.
    #[error(
        "programs of an image cannot be kept apart from this machine ({why}), and are not run \
         otherwise: apt-get install bubblewrap (0.5 or newer), allow user namespaces with sysctl -w \
         user.max_user_namespaces=10000 kernel.unprivileged_userns_clone=1 \
         kernel.apparmor_restrict_unprivileged_userns=0 (those that there are), and build outside of \
         containers without the capability SYS_ADMIN"
    )]
    Unconfined {
        /// Message of the program that failed.
        why: String,
    },
    /// No Debian mirror is known.
    #[error(
        "no Debian mirror is known: {looked_in} names none with the component main; \
         add one there or give a mirror to the build"
    )]
    NoMirror {
        /// Directory that was searched.
        looked_in: PathBuf,
    },
    /// The mirror cannot be reached.
    #[error(
        "{what} failed because the Debian mirror cannot be reached ({detail}): check the network and \
         that `apt-get update` works on this machine; a build from the cache needs no network"
    )]
    Network {
        /// The failed request.
        what: String,
        /// First error of apt, without host names.
        detail: String,
    },
    /// The mirror lacks packages of the recipe.
    #[error(
        "the packages of the recipe cannot be had from {suite} ({detail}): correct `debian.packages`"
    )]
    Packages {
        /// Code name of the Debian release, for example `bookworm`.
        suite: String,
        /// First error of apt, or that the recipe lists no release.
        detail: String,
    },
    /// The disk has no space for a build.
    #[error(
        "no space left under {}: a build needs {need_mib} MiB, {free_mib} MiB are free; \
         free some or collect old images", path.display()
    )]
    DiskFull {
        /// Path in the file system that has too little space.
        path: PathBuf,
        /// Free space that a build needs there, MiB; an estimate when a write failed.
        need_mib: u64,
        /// Free space there at the time of the error, MiB; 0 if it is not known.
        free_mib: u64,
    },
    /// A program of the host failed.
    #[error("{tool} failed while {step} ({status}); its last words: {tail}")]
    ToolFailed {
        /// Name or path of the program that was run.
        tool: String,
        /// Purpose of the run.
        step: String,
        /// Exit status or signal, as the system names it.
        status: String,
        /// End of its standard error, at most 2 KiB, host names removed.
        tail: String,
    },
    /// A program for the guest cannot be used.
    #[error("{} {rule}", path.display())]
    Binary {
        /// Path of the program in the directory given to the build.
        path: PathBuf,
        /// The broken rule and its fix.
        rule: &'static str,
    },
    /// The packages lack a file that the recipe needs.
    #[error(
        "{path} is not in the packages of the recipe, it is needed {why}: add the package that has it"
    )]
    NotInPackages {
        /// Path in the guest or runtime.
        path: String,
        /// Purpose of the file in a build, worded to follow `it is needed`.
        why: String,
    },
    /// QEMU in the packages is too old.
    #[error(
        "the packages hold QEMU {found}, the recipe needs at least {needed}: choose a newer suite"
    )]
    QemuTooOld {
        /// Version in the packages.
        found: String,
        /// The recipe's `runtime.qemu_at_least`, a major version.
        needed: u32,
    },
    /// A file that a build step made is malformed.
    #[error("{} is not a {expected}: {problem}", path.display())]
    Format {
        /// Path of the malformed file.
        path: PathBuf,
        /// Expected kind of file.
        expected: &'static str,
        /// The problem that was found.
        problem: String,
    },
    /// Reading or writing a file failed.
    #[error("cannot {action} {}", path.display())]
    Io {
        /// Verb of the failed operation, for example `read`, worded to follow `cannot`.
        action: &'static str,
        /// File or directory that the operation was on.
        path: PathBuf,
        /// Error of the operating system.
        #[source]
        source: io::Error,
    },
}

/// Names the file in an I/O error.
pub(crate) trait IoContext<T> {
    /// `action` is a verb: `cannot {action} {path}`.
    fn at(self, action: &'static str, path: &Path) -> Result<T, BuildError>;
}

impl<T> IoContext<T> for io::Result<T> {
    fn at(self, action: &'static str, path: &Path) -> Result<T, BuildError> {
        self.map_err(|source| match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => disk_full(path, 0),
            _ => BuildError::Io {
                action,
                path: path.to_owned(),
                source,
            },
        })
    }
}

/// Space in MiB that an error reports if the need is unknown: the largest built-in image with its
/// layers.
const BUILD_MIB: u64 = 2048;

/// The error for a full disk, with the space that is free now. `need_mib` is 0 if unknown.
pub(crate) fn disk_full(path: &Path, need_mib: u64) -> BuildError {
    BuildError::DiskFull {
        path: path.to_owned(),
        need_mib: if need_mib == 0 { BUILD_MIB } else { need_mib },
        free_mib: free_mib(path).unwrap_or(0),
    }
}

/// Checks that the file system of `path` has `need_mib` MiB free.
///
/// # Errors
///
/// [`BuildError::DiskFull`].
pub(crate) fn need_disk_space(path: &Path, need_mib: u64) -> Result<(), BuildError> {
    match free_mib(path) {
        Some(free_mib) if free_mib < need_mib => Err(BuildError::DiskFull {
            path: path.to_owned(),
            need_mib,
            free_mib,
        }),
        _ => Ok(()),
    }
}

/// Free MiB on the file system of `path`, or of its nearest parent that exists.
pub(crate) fn free_mib(path: &Path) -> Option<u64> {
    let existing = path.ancestors().find(|p| p.exists())?;
    let stat = nix::sys::statvfs::statvfs(existing).ok()?;
    Some(stat.blocks_available().saturating_mul(stat.fragment_size()) >> 20)
}
