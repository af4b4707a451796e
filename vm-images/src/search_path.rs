//! Search path of the host's programs.

use std::path::{Path, PathBuf};

/// Directories in which programs are looked up. The caller's `PATH` is ignored, so that a build
/// does not depend on it.
pub(crate) const SEARCH_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Path of a program of the host, by its name or its absolute path.
pub(crate) fn find(program: &str) -> Option<PathBuf> {
    if program.starts_with('/') {
        return Path::new(program).exists().then(|| PathBuf::from(program));
    }
    SEARCH_PATH
        .split(':')
        .map(|dir| Path::new(dir).join(program))
        .find(|path| path.exists())
}
