//! Runs one VM, from its directory to QEMU's end.

use std::fs::File;
use std::net::SocketAddrV4;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use daemon_kit::clock::Clock;
use nix::fcntl::{Flock, FlockArg};
use protocol::runner::{ExitReport, GUESTD_FORWARD, RunnerState};
use protocol::vm::CpuScalingMode;
use serde::Deserialize;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use super::control::{Handle, Token, bind_private, serve_pod, serve_private};
use super::guest_parts::GuestLink;
use super::init_script;
use super::initial_state::waiting_state;
use super::input::{INPUT_BACKLOG, Input, OnCancel};
use super::metrics::Metrics;
use super::process;
use super::record::{private_dir, read_json};
use super::run_error::{MAX_DIR_BYTES, RunError};
use super::traffic;
use crate::config::{CONFIG_FORMAT, RunnerConfig};
use crate::core::forwards;
use crate::core::paths::Paths;

mod arrival;
mod predecessor;
mod start;
mod supervise;

use predecessor::Found;

/// Reasons for which [`run`] returns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    /// QEMU has ended, with this report.
    Exited(ExitReport),
    /// The runner was cancelled and left QEMU running.
    Left,
}

/// Runs the VM of a directory (`config.json` in it) until QEMU ends or `cancel` fires: adopts a
/// running QEMU, else starts one. For a directory with a report it returns the report at once.
///
/// # Errors
/// [`RunError`]; nothing was started.
pub async fn run(
    dir: &Path,
    on_cancel: OnCancel,
    clock: Clock,
    cancel: CancellationToken,
) -> Result<End, RunError> {
    let dir = std::path::absolute(dir).map_err(|error| RunError::Dir(dir.to_owned(), error))?;
    if dir.as_os_str().len() > MAX_DIR_BYTES {
        return Err(RunError::TooLong(dir));
    }
    private_dir(&dir).map_err(|error| RunError::Dir(dir.clone(), error))?;
    let paths = Paths::new(dir);
    let _lock = lock(&paths)?;
    if let Some(report) = read_json(&paths.exit())? {
        return Ok(End::Exited(report));
    }
    let config = Arc::new(read_config(&paths)?);
    let port = u16::try_from(config.spec.runner_port).unwrap_or(0);
    let address = SocketAddrV4::new(config.pod_ip, port);
    let pod = TcpListener::bind(address)
        .await
        .map_err(|error| RunError::Bind(address.to_string(), error))?;
    let read =
        |path: &PathBuf| Token::new(path).map_err(|error| RunError::Token(path.clone(), error));
    let token = config.control_token.as_ref().map(read).transpose()?;
    let control = bind_private(&paths.control())
        .map_err(|error| RunError::Bind(paths.control().display().to_string(), error))?;
    let runner = Runner {
        config,
        paths,
        clock,
        on_cancel,
    };
    let found = runner.find()?;
    if let Found::Ended(report) = found {
        return Ok(End::Exited(report));
    }
    let (inputs, receiver) = mpsc::channel(INPUT_BACKLOG);
    let (metrics, registry) = Metrics::new(traffic::is_counted(&runner.config));
    let shown = traffic::route(registry, metrics.clone(), clock);
    let mut channels = Channels {
        inputs,
        receiver,
        metrics,
        state: watch::channel(waiting_state()).0,
        stop: CancellationToken::new(),
    };
    let guest_counts = runner.config.spec.cpu_scaling_mode == Some(CpuScalingMode::SysfsScaling);
    let handle = Handle {
        inputs: channels.inputs.clone(),
        state: channels.state.subscribe(),
        guest_counts,
        guest: GuestLink {
            address: SocketAddrV4::new(runner.config.pod_ip, GUESTD_FORWARD),
            key: runner.paths.guestd_key(),
        },
    };
    tokio::spawn(serve_private(
        control,
        handle.clone(),
        channels.stop.clone(),
    ));
    let ended = channels.stop.clone();
    tokio::spawn(serve_pod(pod, handle, token, shown, ended));
    if !matches!(found, Found::Running(_)) {
        forwards::check(&runner.config.spec)?;
        let script = init_script::run(&runner.config, &runner.paths.dir);
        tokio::select! {
            () = cancel.cancelled() => return Ok(End::Left),
            done = script => done?,
        }
    }
    // Held until QEMU has ended.
    let mut held = Vec::new();
    let (record, child) = match found {
        Found::Running(record) => (*record, None),
        Found::Nothing if runner.config.receive => {
            match runner.receive(&mut channels, &cancel).await? {
                Ok(started) => started,
                Err(end) => return Ok(end),
            }
        }
        _ => runner.start(&mut held).await?,
    };
    Ok(runner.supervise(record, child, channels, cancel).await)
}

/// The driver's inputs and outputs before it runs.
struct Channels {
    inputs: mpsc::Sender<Input>,
    receiver: mpsc::Receiver<Input>,
    state: watch::Sender<RunnerState>,
    metrics: Metrics,
    stop: CancellationToken,
}

/// Reads `config.json`. Its format is checked first, since another format has other members.
fn read_config(paths: &Paths) -> Result<RunnerConfig, RunError> {
    let path = paths.config();
    let format: ConfigFormat = read_json(&path)?.ok_or_else(|| RunError::NoConfig(path.clone()))?;
    if format.format != CONFIG_FORMAT {
        return Err(RunError::Format {
            path,
            found: format.format,
        });
    }
    read_json(&path)?.ok_or(RunError::NoConfig(path))
}

/// The only member that every format of `config.json` has.
#[derive(Debug, Deserialize)]
struct ConfigFormat {
    format: u32,
}

fn lock(paths: &Paths) -> Result<Flock<File>, RunError> {
    let file = process::append_file(&paths.lock())
        .map_err(|error| RunError::Dir(paths.dir.clone(), error))?;
    Flock::lock(file, FlockArg::LockExclusiveNonblock)
        .map_err(|_| RunError::Held(paths.dir.clone()))
}

struct Runner {
    config: Arc<RunnerConfig>,
    paths: Paths,
    clock: Clock,
    on_cancel: OnCancel,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::args::tests::config;
    use crate::shell::record::write_json;

    fn written(format: &serde_json::Value) -> (tempfile::TempDir, Paths) {
        let dir = tempfile::tempdir().unwrap();
        let paths = Paths::new(dir.path());
        let mut content = serde_json::to_value(config()).unwrap();
        content["format"] = format.clone();
        write_json(&paths.config(), &content).unwrap();
        (dir, paths)
    }

    #[test]
    fn config_of_this_format_is_read() {
        let (_dir, paths) = written(&CONFIG_FORMAT.into());
        assert_eq!(read_config(&paths).unwrap(), config());
    }

    #[test]
    fn config_of_another_format_is_refused_by_name() {
        for format in [0, CONFIG_FORMAT + 1] {
            let (_dir, paths) = written(&format.into());
            let error = read_config(&paths).unwrap_err().to_string();
            let path = paths.config().display().to_string();
            assert!(error.starts_with(&path), "{error}");
            assert!(error.contains(&format!("has format {format}")), "{error}");
            assert!(error.contains("reads format 1"), "{error}");
        }
    }

    #[test]
    fn format_is_refused_before_unknown_members() {
        let (_dir, paths) = written(&2.into());
        let mut content: serde_json::Value = read_json(&paths.config()).unwrap().unwrap();
        content["later"] = true.into();
        write_json(&paths.config(), &content).unwrap();
        let error = read_config(&paths).unwrap_err();
        assert!(
            matches!(error, RunError::Format { found: 2, .. }),
            "{error}"
        );
    }
}
