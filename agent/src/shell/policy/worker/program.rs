//! The program that asks policies: where it is, and its version.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use policy_contract::CONTRACT;
use policy_contract::frames::{contract_of, contract_word};
use tokio::process::Command;

const PROGRAM: &str = "bellows-policy";
/// Most characters of a version that are kept.
const VERSION_CHARS: usize = 96;
/// Time limit for the version.
const VERSION_LIMIT: Duration = Duration::from_secs(5);

/// The program, beside this one or on the PATH.
pub(in crate::shell::policy) fn find() -> Result<PathBuf, String> {
    let own = std::env::current_exe().ok();
    let beside = own.as_deref().and_then(|own| own.parent());
    let path = std::env::var_os("PATH").unwrap_or_default();
    let candidates = beside
        .map(PathBuf::from)
        .into_iter()
        .chain(std::env::split_paths(&path))
        .map(|folder| folder.join(PROGRAM));
    candidates
        .into_iter()
        .find(|file| file.is_file())
        .ok_or_else(|| {
            let beside = beside.map_or_else(String::new, |folder| {
                format!("in {} and ", folder.display())
            });
            format!("{PROGRAM} is missing: it was looked for {beside}on the PATH")
        })
}

/// What `--version` prints.
///
/// # Errors
/// The program cannot be run, or its contract is another one.
pub(super) async fn version(program: &Path) -> Result<String, String> {
    let output = Command::new(program)
        .arg(OsStr::new("--version"))
        .env_clear()
        .current_dir("/")
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();
    let failed = |why: String| format!("{} --version failed: {why}", program.display());
    let output = tokio::time::timeout(VERSION_LIMIT, output)
        .await
        .map_err(|_| failed("no answer".into()))?
        .map_err(|error| failed(error.to_string()))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text.lines().next().unwrap_or_default();
    let line: String = line.chars().take(VERSION_CHARS).collect();
    if contract_of(&line) == Some(CONTRACT) {
        return Ok(line);
    }
    Err(format!(
        "{} is another version, {line:?}: this agent needs {}, so install both of one release",
        program.display(),
        contract_word()
    ))
}
