//! The program `bellows-policy`, which alone links Lua.

use std::ffi::OsString;
use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;

use tempfile::NamedTempFile;

use crate::fail::{Fail, Outcome};

const PROGRAM: &str = "bellows-policy";

/// Path of the program: beside this one, else on the PATH.
///
/// # Errors
///
/// 69 if it is in neither place.
pub(crate) fn find() -> Outcome<PathBuf> {
    let own = std::env::current_exe().ok();
    let beside = own.as_deref().and_then(|own| own.parent());
    let path = std::env::var_os("PATH").unwrap_or_default();
    beside
        .map(PathBuf::from)
        .into_iter()
        .chain(std::env::split_paths(&path))
        .map(|folder| folder.join(PROGRAM))
        .find(|file| file.is_file())
        .ok_or_else(|| {
            let folder = beside.map_or_else(String::new, |folder| folder.display().to_string());
            Fail::missing(format!("{PROGRAM} is missing"))
                .rule(format!("it is looked for in {folder} and on the PATH"))
                .fix("build it: cargo build -p policy-cli")
        })
}

/// A temporary file that the program reads.
pub(super) fn input(text: &str) -> Outcome<NamedTempFile> {
    let failed = |error: std::io::Error| Fail::bug(format!("no temporary file: {error}"));
    let mut file = NamedTempFile::new().map_err(failed)?;
    file.write_all(text.as_bytes()).map_err(failed)?;
    Ok(file)
}

/// Replaces this process with the program. Returns only if that fails.
pub(super) fn replace(command: &str, arguments: &[OsString]) -> Outcome {
    let program = find()?;
    let error = std::process::Command::new(&program)
        .arg(command)
        .args(arguments)
        .exec();
    Err(Fail::missing(format!(
        "{} cannot be run: {error}",
        program.display()
    )))
}
