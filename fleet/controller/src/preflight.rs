//! `bellows-fleet preflight`: the chart asks it before an upgrade.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use daemon_kit::exit::Exit;
use fleet::{Findings, Location, Preflight, PreflightError};
use semver::Version;

/// Longest time for the whole question.
const LIMIT: Duration = Duration::from_secs(120);

#[expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command for people"
)]
pub(crate) fn run(control_plane: &Version, location: &Location, state_dir: &Path) -> ExitCode {
    let findings = match ask(control_plane, location, state_dir) {
        Ok(findings) => findings,
        Err((text, exit)) => {
            eprintln!("{text}");
            return exit.into();
        }
    };
    for (part, reason) in &findings.refused {
        eprintln!("{} {}: {reason}", part.instance, part.part);
    }
    for part in &findings.unknown {
        println!(
            "{} {}: version {} is no release of a channel",
            part.instance, part.part, part.version
        );
    }
    let refused = findings.refused.len();
    let (understood, unknown) = (findings.understood, findings.unknown.len());
    println!(
        "control plane {control_plane}: {understood} parts understood, {refused} not, {unknown} unknown"
    );
    if refused == 0 {
        return Exit::Drained.into();
    }
    eprintln!(
        "control plane {control_plane} does not understand {refused} parts: roll a release out to \
         them first that both control planes understand"
    );
    Exit::NotSo.into()
}

fn ask(
    control_plane: &Version,
    location: &Location,
    state_dir: &Path,
) -> Result<Findings, (String, Exit)> {
    let missing = |error: String| (error, Exit::Dependency);
    let _ = rustls::crypto::ring::default_provider().install_default();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| missing(format!("failed to start the runtime: {error}")))?;
    let made = std::fs::create_dir_all(state_dir).and_then(|()| tempfile::tempdir_in(state_dir));
    let folder = made.map_err(|error| {
        missing(format!(
            "failed to make a folder in {}: {error}",
            state_dir.display()
        ))
    })?;
    let asked = async {
        let client = api_client::infer().await.map_err(|error| {
            missing(format!(
                "no API server is configured: {}",
                daemon_kit::chain(&error)
            ))
        })?;
        let question = Preflight {
            client,
            location,
            control_plane,
            folder: folder.path(),
        };
        let answered = tokio::time::timeout(LIMIT, fleet::preflight(&question)).await;
        let late = |_| ("no findings in time: ask again".to_owned(), Exit::TryAgain);
        answered.map_err(late)?.map_err(|error| {
            let exit = match error {
                PreflightError::Release(_) => Exit::Dependency,
                PreflightError::Api(_) | PreflightError::Channel { .. } => Exit::TryAgain,
            };
            (error.to_string(), exit)
        })
    };
    runtime.block_on(asked)
}
