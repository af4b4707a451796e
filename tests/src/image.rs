//! `bellows image`, as tests use it.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use crate::bellows_bin;

/// Directory of the programs for guests: the given one, or beside ours, where `cargo xtask test`
/// builds them.
#[must_use]
pub fn guest_programs() -> Option<PathBuf> {
    let said = std::env::var_os("BELLOWS_GUEST_BINS").map(PathBuf::from);
    said.or_else(|| {
        let bellows = bellows_bin();
        let mut beside = bellows
            .ancestors()
            .map(|dir| dir.join("x86_64-unknown-linux-gnu/guest"));
        beside.find(|dir| dir.join("neonvmd").is_file())
    })
}

/// The program of this name for guests.
///
/// # Errors
/// When it is not built.
pub fn guest_program(name: &str) -> Result<Vec<u8>> {
    let folder = guest_programs().context(
        "no programs of guests: run `cargo xtask guest-bins`, or set BELLOWS_GUEST_BINS",
    )?;
    std::fs::read(folder.join(name)).with_context(|| name.to_owned())
}

/// Runs `bellows image` with these arguments and returns its output.
///
/// # Errors
///
/// If it fails. The message holds its error.
pub fn image(arguments: &[&str]) -> Result<String> {
    let mut command = Command::new(bellows_bin());
    if let Some(dir) = guest_programs() {
        command.env("BELLOWS_GUEST_BIN_DIR", dir);
    }
    let output = command.arg("image").args(arguments).output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "bellows image {arguments:?}: {said}"
    );
    Ok(String::from_utf8(output.stdout)?)
}
