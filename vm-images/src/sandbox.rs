//! Runs programs of an image isolated from the machine that builds.
//!
//! bubblewrap gives them the image's tree as root directory, their own namespaces (user, mount,
//! pid, ipc, uts, network, cgroup), no capability of the machine, `no_new_privs`, and a filter of
//! system calls ([`filter`]). A user of the image has another ID on the machine: [`owners`] changes
//! the owners of the tree there and back.
//!
//! The image cannot influence the programs that prepare this. They get a clean environment, and
//! bubblewrap sets the image's variables last. When the first program ends, the kernel ends all
//! others in its pid namespace before the build continues.

mod cell;
mod filter;
mod owners;

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use crate::error::{BuildError, IoContext};
use crate::tool::Tool;
use cell::TREE;
pub(crate) use cell::{Cell, Identity};

/// User that owns nothing.
const NOBODY: u32 = 65534;

/// Devices and shared memory. They do not become part of the image.
const DEVICES: [&str; 6] = ["--dev", "/dev", "--perms", "1777", "--tmpfs", "/dev/shm"];

/// An image's tree whose programs may run. Only they may write to the tree until
/// [`Sandbox::close`].
pub(crate) struct Sandbox {
    root: PathBuf,
}

impl Sandbox {
    /// Changes the owners of the tree to the IDs that its programs have on this machine.
    pub(crate) fn open(root: &Path) -> Result<Self, BuildError> {
        device_directory(root)?;
        owners::move_in(root)?;
        Ok(Self {
            root: root.to_owned(),
        })
    }

    /// A program of the image, by its path there. It can write to the tree only.
    pub(crate) fn tool(
        &self,
        who: &Identity,
        program: &str,
        step: impl Into<String>,
    ) -> Result<Tool, BuildError> {
        let view = ["--bind", TREE, "/"].iter().chain(&DEVICES);
        let cell = Cell::new(who, &self.root, view.map(OsString::from))?;
        Ok(Tool::new(program, step).confined(cell))
    }

    /// Changes the owners back to the IDs of the image. A tree that is not closed is unusable.
    pub(crate) fn close(self) -> Result<(), BuildError> {
        owners::move_out(&self.root)
    }
}

/// A program below `tree` that can only read. It sees the tree at its path on the machine, and the
/// machine's programs, which a wrapper script needs.
pub(crate) fn reading(
    tree: &Path,
    program: &Path,
    step: impl Into<String>,
) -> Result<Tool, BuildError> {
    let at = std::path::absolute(tree).at("find", tree)?;
    let own = ["/usr", "/bin", "/lib", "/lib64"].map(|dir| ["--ro-bind-try", dir, dir]);
    let mut view: Vec<OsString> = own
        .iter()
        .flatten()
        .chain(&DEVICES)
        .map(OsString::from)
        .collect();
    // Some programs read their own path from it.
    view.extend(["--proc", "/proc"].map(OsString::from));
    view.extend(["--ro-bind".into(), TREE.into(), at.into()]);
    let cell = Cell::new(&nobody(), tree, view.into_iter())?;
    Ok(Tool::new(&program.to_string_lossy(), step).confined(cell))
}

/// Why programs of images cannot be isolated on this machine. `None` if they can.
#[must_use]
pub fn sandbox_refused() -> Option<String> {
    let attempt = || -> Result<(), BuildError> {
        let tool = reading(
            Path::new("/usr"),
            Path::new("/bin/true"),
            "running a program apart from this machine",
        )?;
        tool.run(&mut crate::progress::Reporter::new(&mut |_| {}))
    };
    attempt().err().map(|error| match error {
        BuildError::Unconfined { why } => why,
        other => other.to_string(),
    })
}

fn nobody() -> Identity {
    Identity {
        uid: NOBODY,
        gid: NOBODY,
        groups: Vec::new(),
    }
}

/// Creates `/dev`, where bubblewrap mounts devices. It would follow a link there.
fn device_directory(root: &Path) -> Result<(), BuildError> {
    let place = root.join("dev");
    match fs::create_dir(&place) {
        Ok(()) => fs::set_permissions(&place, fs::Permissions::from_mode(0o755))
            .at("change the mode of", &place),
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
            if place.symlink_metadata().at("read", &place)?.is_dir() {
                return Ok(());
            }
            Err(BuildError::Format {
                path: PathBuf::from("/dev"),
                expected: "directory",
                problem:
                    "programs of the image cannot be given devices there: make it a directory \
                          in the image"
                        .to_owned(),
            })
        }
        Err(error) => Err(error).at("create", &place),
    }
}
