//! Runs `nft`, which loads rules into the kernel.

use std::io;
use std::process::Stdio;

use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;

/// Name of the program, which must be in `PATH`.
pub(crate) const NFT: &str = "nft";

#[derive(Debug, thiserror::Error)]
pub(crate) enum NftError {
    /// The program is missing, or could not be run.
    #[error("cannot execute {NFT}")]
    Execute(#[source] io::Error),
    /// The kernel rejects the rules, with the program's message.
    #[error("{0}")]
    Refused(String),
}

/// Loads rules into the kernel, all or none.
///
/// # Errors
/// [`NftError`].
pub(crate) async fn give(rules: &str) -> Result<(), NftError> {
    read(&["-f", "-"], rules).await
}

/// Checks whether the kernel accepts rules, without loading them.
///
/// # Errors
/// [`NftError`].
pub(crate) async fn check(rules: &str) -> Result<(), NftError> {
    read(&["--check", "-f", "-"], rules).await
}

async fn read(options: &[&str], rules: &str) -> Result<(), NftError> {
    let mut nft = Command::new(NFT)
        .args(options)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .map_err(NftError::Execute)?;
    if let Some(mut input) = nft.stdin.take() {
        // A program that ends before it has read everything reports the reason.
        let _ = input.write_all(rules.as_bytes()).await;
    }
    finish(nft.wait_with_output().await)
}

/// Whether the kernel has a table of family `inet`.
///
/// # Errors
/// [`NftError`], also when the table does not exist.
pub(crate) async fn has_table(table: &str) -> Result<(), NftError> {
    let output = Command::new(NFT)
        .args(["list", "table", "inet", table])
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();
    finish(output.await)
}

fn finish(output: io::Result<std::process::Output>) -> Result<(), NftError> {
    let output = output.map_err(NftError::Execute)?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let line = said.lines().next().unwrap_or_default();
    Err(NftError::Refused(line.to_owned()))
}
