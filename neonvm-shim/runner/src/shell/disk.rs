//! The writable layer over an image's root disk, and programs that make disks.

use std::fs::File;
use std::path::Path;
use std::process::{Output, Stdio};
use std::time::Duration;

use rustix::thread::CapabilitySet;
use tokio::process::Command;

use super::confined;
use crate::config::RunnerConfig;

/// Time limit of such a program, which writes a few megabytes. Beyond it the disk hangs.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Errors of making a disk.
#[derive(Debug, thiserror::Error)]
pub enum DiskError {
    /// The program could not be executed.
    #[error("cannot execute {0}")]
    Execute(std::path::PathBuf, #[source] std::io::Error),
    /// The program of this name failed with these messages.
    #[error("{0}: {1}")]
    Refused(String, String),
    /// The disk's file cannot be written.
    #[error("cannot write its file")]
    Write(#[source] std::io::Error),
    /// The disk of a migrating guest is at another path.
    #[error("the guest's disk is not {0}, which stays on this machine")]
    Elsewhere(std::path::PathBuf),
    /// The program did not end in time.
    #[error("{0} did not end within {seconds} s", seconds = .1.as_secs())]
    Hung(String, Duration),
}

/// Size of the overlay in bytes: the spec's, but at least the image's.
#[must_use]
pub fn overlay_bytes(config: &RunnerConfig) -> u64 {
    let asked = config
        .spec
        .guest
        .root_disk
        .size
        .as_ref()
        .and_then(|size| size.as_u64());
    asked.unwrap_or(0).max(config.image.root_disk_bytes)
}

/// Makes a fresh overlay; an old one is replaced.
///
/// # Errors
/// [`DiskError`], for example when the disk is full.
pub async fn make_overlay(config: &RunnerConfig, overlay: &Path) -> Result<(), DiskError> {
    make_overlay_of(config, overlay, overlay_bytes(config)).await
}

/// Makes a fresh overlay of this size in bytes.
///
/// # Errors
/// [`DiskError`], for example when the disk is full.
pub async fn make_overlay_of(
    config: &RunnerConfig,
    overlay: &Path,
    bytes: u64,
) -> Result<(), DiskError> {
    let format = &config.image.root_disk_format;
    let mut words = ["create", "-q", "-f", "qcow2", "-F", format, "-b"]
        .map(str::to_owned)
        .to_vec();
    let place = |path: &Path| path.display().to_string();
    words.extend([
        place(&config.image.root_disk),
        place(overlay),
        bytes.to_string(),
    ]);
    run(&config.programs.qemu_img, &words).await
}

/// Runs a program that makes a disk to its end.
///
/// # Errors
/// [`DiskError`], with the program's own messages.
pub async fn run(program: &Path, words: &[String]) -> Result<(), DiskError> {
    let output = output(program, words).await?;
    succeeded(program, &output)
}

/// Runs a program with an open file as its standard input, within `limit`.
///
/// # Errors
/// [`DiskError`], with the program's own messages.
pub async fn run_on(
    program: &Path,
    words: &[String],
    input: File,
    limit: Duration,
) -> Result<(), DiskError> {
    let output = output_of(program, words, Stdio::from(input), limit).await?;
    succeeded(program, &output)
}

fn succeeded(program: &Path, output: &Output) -> Result<(), DiskError> {
    if output.status.success() {
        return Ok(());
    }
    Err(DiskError::Refused(name_of(program), messages(output)))
}

/// Runs a program and returns its output, whatever its exit status.
///
/// # Errors
/// [`DiskError::Execute`] and [`DiskError::Hung`].
pub async fn output(program: &Path, words: &[String]) -> Result<Output, DiskError> {
    output_of(program, words, Stdio::null(), TIMEOUT).await
}

async fn output_of(
    program: &Path,
    words: &[String],
    input: Stdio,
    limit: Duration,
) -> Result<Output, DiskError> {
    let mut command = Command::new(program);
    command
        .args(words)
        .stdin(input)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    let executed = |error| DiskError::Execute(program.to_owned(), error);
    // The program reads an image of foreign origin.
    let child = confined::spawn(&mut command, CapabilitySet::empty()).map_err(executed)?;
    tokio::time::timeout(limit, child.wait_with_output())
        .await
        .map_err(|_| DiskError::Hung(name_of(program), limit))?
        .map_err(executed)
}

fn name_of(program: &Path) -> String {
    let name = program.file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

/// Standard error of a program, cut to what a message can hold.
#[must_use]
pub fn messages(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stderr);
    text.trim().chars().take(500).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::args::tests::config;
    use protocol::quantity::Quantity;

    #[test]
    fn overlay_is_at_least_as_large_as_the_image() {
        let mut config = config();
        assert_eq!(overlay_bytes(&config), 1 << 30);
        config.spec.guest.root_disk.size = Some(Quantity::from_bytes(8 << 30));
        assert_eq!(overlay_bytes(&config), 8 << 30);
        config.spec.guest.root_disk.size = Some(Quantity::from_bytes(1 << 20));
        assert_eq!(overlay_bytes(&config), 1 << 30);
    }

    #[tokio::test]
    async fn missing_program_is_named() {
        let temp = tempfile::tempdir().unwrap();
        let error = make_overlay(&config(), &temp.path().join("o"))
            .await
            .unwrap_err();
        assert!(
            matches!(&error, DiskError::Execute(path, _) if path.ends_with("img")),
            "{error}"
        );
    }
}
