//! Paths: the state directory of an instance, the cache directory of the user, and names of images.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use crate::fail::{Fail, Outcome};

/// Default state directory of root.
const SYSTEM_STATE_DIR: &str = "/var/lib/bellows";
/// Name of the image with QEMU and its libraries.
pub(crate) const RUNTIME_IMAGE: &str = "bellows/qemu";
/// Name of the image that `bellows vm create` uses by default.
pub(crate) const GUEST_IMAGE: &str = "bellows/postgres:15";

/// Paths inside a state directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StateDir(PathBuf);

impl StateDir {
    /// The given directory, else `/var/lib/bellows` for root, else `$XDG_STATE_HOME/bellows` or
    /// `~/.local/state/bellows`.
    ///
    /// # Errors
    ///
    /// If nothing is given and there is no home directory.
    pub(crate) fn choose(given: Option<&Path>) -> Outcome<Self> {
        choose_state_dir(given, nix::unistd::geteuid().is_root(), &|name| {
            std::env::var_os(name)
        })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// Lock file of `bellows up`. It holds the PID of that process.
    pub(crate) fn lock(&self) -> PathBuf {
        self.0.join("lock")
    }

    /// Block and node name, chosen at the first start.
    pub(crate) fn instance(&self) -> PathBuf {
        self.0.join("instance.json")
    }

    /// Socket of the admin API.
    pub(crate) fn admin_socket(&self) -> PathBuf {
        self.0.join("admin.sock")
    }

    /// Kubeconfig of the embedded API server.
    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.0.join("kubeconfig")
    }

    /// One directory per runner.
    pub(crate) fn vms(&self) -> PathBuf {
        self.0.join("vms")
    }

    /// Persistent root disks, one directory per VM.
    pub(crate) fn disks(&self) -> PathBuf {
        self.0.join("disks")
    }

    /// Directories of disks that were replaced or deleted.
    pub(crate) fn trash(&self) -> PathBuf {
        self.0.join("trash")
    }

    /// Known host keys of guests, one file per VM.
    pub(crate) fn ssh(&self) -> PathBuf {
        self.0.join("ssh")
    }

    /// The decision journals, one folder per component.
    pub(crate) fn journal(&self) -> PathBuf {
        self.0.join("journal")
    }

    /// Token for the metrics pages on the loopback.
    pub(crate) fn metrics_token(&self) -> PathBuf {
        self.0.join("metrics.token")
    }

    /// Key that derives the tokens of the guests' monitors.
    pub(crate) fn agent_key(&self) -> PathBuf {
        self.0.join("agent.key")
    }

    /// Log of a detached `bellows up`.
    pub(crate) fn log(&self) -> PathBuf {
        self.0.join("up.log")
    }

    /// Creates the directory with mode 0700.
    ///
    /// # Errors
    ///
    /// If it cannot be created.
    pub(crate) fn create(&self) -> Outcome {
        create_private_dir(&self.0)
    }
}

/// Creates a directory with mode 0700, and its parents.
pub(crate) fn create_private_dir(path: &Path) -> Outcome {
    use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
    let broken = |error: std::io::Error| {
        Fail::missing(format!(
            "directory {} cannot be made: {error}",
            path.display()
        ))
        .rule("bellows keeps its state in a directory of its own")
        .fix("run as root, or name a directory you may write: --state-dir DIR")
    };
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .map_err(broken)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o700)).map_err(broken)
}

fn choose_state_dir(
    given: Option<&Path>,
    is_root: bool,
    variable: &dyn Fn(&str) -> Option<OsString>,
) -> Outcome<StateDir> {
    if let Some(path) = given {
        if path.as_os_str().is_empty() {
            return Err(
                Fail::usage("--state-dir is empty").fix("name a directory, or leave it out")
            );
        }
        // Components with another working directory get the path too, so it must be absolute.
        return std::path::absolute(path)
            .map(StateDir)
            .map_err(|error| Fail::usage(format!("--state-dir {}: {error}", path.display())));
    }
    if is_root {
        return Ok(StateDir(PathBuf::from(SYSTEM_STATE_DIR)));
    }
    home_dir(variable, "XDG_STATE_HOME", ".local/state").map(|dir| StateDir(dir.join("bellows")))
}

pub(crate) fn cache_dir() -> Outcome<PathBuf> {
    home_dir(&|name| std::env::var_os(name), "XDG_CACHE_HOME", ".cache")
        .map(|dir| dir.join("bellows"))
}

/// Directory of the user's store of images.
pub(crate) fn store_dir() -> Outcome<PathBuf> {
    cache_dir().map(|dir| dir.join("store"))
}

/// An XDG directory: the variable if it is absolute, as its specification requires, else the
/// default below the home directory.
fn home_dir(
    variable: &dyn Fn(&str) -> Option<OsString>,
    name: &str,
    default: &str,
) -> Outcome<PathBuf> {
    if let Some(path) = variable(name)
        .map(PathBuf::from)
        .filter(|path| path.is_absolute())
    {
        return Ok(path);
    }
    variable("HOME")
        .map(PathBuf::from)
        .filter(|path| path.is_absolute())
        .map(|home| home.join(default))
        .ok_or_else(|| {
            Fail::usage("there is no home directory: HOME is not set")
                .fix(format!("set HOME, or {name}, or give --state-dir DIR"))
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(given: Option<&str>, is_root: bool, vars: &[(&str, &str)]) -> Result<String, Fail> {
        let lookup = |name: &str| {
            vars.iter()
                .find(|(key, _)| *key == name)
                .map(|(_, value)| OsString::from(value))
        };
        choose_state_dir(given.map(Path::new), is_root, &lookup)
            .map(|dir| dir.path().display().to_string())
    }

    #[test]
    fn state_dir_is_the_flag_then_the_system_then_xdg_then_home() {
        assert_eq!(chosen(Some("/x/y"), true, &[]).unwrap(), "/x/y");
        assert_eq!(
            chosen(None, true, &[("HOME", "/h")]).unwrap(),
            "/var/lib/bellows"
        );
        assert_eq!(
            chosen(None, false, &[("XDG_STATE_HOME", "/s")]).unwrap(),
            "/s/bellows"
        );
        assert_eq!(
            chosen(None, false, &[("XDG_STATE_HOME", "rel"), ("HOME", "/h")]).unwrap(),
            "/h/.local/state/bellows"
        );
        assert_eq!(chosen(None, false, &[]).unwrap_err().exit() as u8, 64);
        assert_eq!(chosen(Some(""), true, &[]).unwrap_err().exit() as u8, 64);
        assert!(chosen(Some("rel"), true, &[]).unwrap().starts_with('/'));
    }

    #[test]
    fn private_directories_are_0700_even_if_they_were_not() {
        use std::os::unix::fs::PermissionsExt;
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("a/b");
        std::fs::create_dir_all(&path).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        create_private_dir(&path).unwrap();
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o700);
    }
}
