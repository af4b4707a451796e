//! The program of a version, checked before any object names it.

use std::io::Read as _;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use fleet_store::Programs;
use neonvm_parts::core::elf;
use protocol::parts::PROGRAM_BYTES;
use tokio::io::AsyncReadExt as _;

use crate::context::Context;
use crate::fail::{Fail, Outcome};

/// Longest run of a program that prints its version.
const VERSION_WITHIN: Duration = Duration::from_secs(10);
/// Most bytes of that output that are read.
const VERSION_BYTES: u64 = 4096;

/// The programs of this machine's instance.
///
/// # Errors
/// 64 in a cluster, where no program of ours keeps them.
pub(super) fn programs(context: &Context) -> Outcome<Programs> {
    if context.asks_cluster() {
        return Err(Fail::usage("programs of a cluster cannot be kept here")
            .rule("bellows up brings programs to guests from its own state directory")
            .fix("give the order on the machine of bellows up, without --kubeconfig"));
    }
    Ok(Programs::of_state_dir(context.state()?.path()))
}

/// Checks a program. Nothing is kept.
///
/// # Errors
/// 64 with the rule that the file breaks.
pub(super) async fn check(file: &Path, version: &str) -> Outcome {
    let shown = file.display();
    let refused = |what: String| Fail::usage(format!("--program {shown}: {what}"));
    let head = head_of(file).map_err(|error| refused(error.to_string()))?;
    elf::check(&head, elf::MACHINE).map_err(|rule| {
        refused(rule.to_owned())
            .rule("a guest runs a static ELF program of this kind of machine")
            .fix("build it statically: cargo xtask guest-bins")
    })?;
    let printed = version_of(file).await.map_err(|error| {
        refused(error)
            .rule("a part prints NAME VERSION when it is run with --version")
            .fix("name the program of a part: vm-monitor or neonvmd")
    })?;
    if printed != version {
        return Err(
            refused(format!("it prints version {printed}, not {version}"))
                .rule("--to names the version that the program prints by --version")
                .fix(format!("take --to {printed}, or the file of {version}")),
        );
    }
    Ok(())
}

fn head_of(file: &Path) -> std::io::Result<Vec<u8>> {
    let source = std::fs::File::open(file)?;
    let metadata = source.metadata()?;
    if !metadata.is_file() {
        return Err(std::io::Error::other("it must be a file"));
    }
    if metadata.len() > PROGRAM_BYTES {
        let text = format!("it has {} bytes, above 32 MiB: strip it", metadata.len());
        return Err(std::io::Error::other(text));
    }
    let mut head = Vec::new();
    let most = u64::try_from(elf::HEAD_BYTES).unwrap_or(u64::MAX);
    source.take(most).read_to_end(&mut head)?;
    Ok(head)
}

/// The second word of what the program prints, as `vm-monitor 1.2.3`.
async fn version_of(file: &Path) -> Result<String, String> {
    let path = std::fs::canonicalize(file).map_err(|error| error.to_string())?;
    let mut command = tokio::process::Command::new(path);
    command
        .arg("--version")
        .env_clear()
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true);
    let mut child = command
        .spawn()
        .map_err(|error| format!("it cannot be run: {error}"))?;
    let mut printed = Vec::new();
    if let Some(stdout) = child.stdout.take() {
        let mut bounded = stdout.take(VERSION_BYTES);
        let reading = bounded.read_to_end(&mut printed);
        let seconds = VERSION_WITHIN.as_secs();
        tokio::time::timeout(VERSION_WITHIN, reading)
            .await
            .map_err(|_| format!("it prints no version within {seconds} s"))?
            .map_err(|error| error.to_string())?;
    }
    let printed = String::from_utf8_lossy(&printed);
    let version = printed.split_whitespace().nth(1);
    version
        .map(str::to_owned)
        .ok_or_else(|| "it prints no version".to_owned())
}

/// Keeps a checked program, and returns its SHA-256.
pub(super) fn keep(context: &Context, file: &Path) -> Outcome<String> {
    programs(context)?.keep(file).map_err(|error| {
        Fail::missing(format!(
            "program {} cannot be kept: {error}",
            file.display()
        ))
        .rule("programs are kept in fleet/programs of the state directory")
        .fix("see whether the directory is yours, and its disk has room")
    })
}
