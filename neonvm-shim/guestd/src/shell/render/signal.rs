//! Tells a program that its file has changed.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use http_body_util::Empty;
use hyper::Request;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rustix::process::{Pid, PidfdFlags, pidfd_open, pidfd_send_signal};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::command;
use super::destination::Rights;
use super::inputs::bounded;
use crate::core::render::unit::{Loopback, Signal};

/// Longest wait for the answer to a `POST`.
const LIMIT: Duration = Duration::from_secs(10);
/// Longest pid file in bytes.
const MAX_PIDFILE: usize = 4096;

/// Sends the signal of a unit.
///
/// # Errors
/// The program did not get it, in a line.
pub(super) async fn send(signal: &Signal, rights: Rights) -> Result<(), String> {
    match signal {
        Signal::Pidfile(path) => hang_up(path, rights.user),
        Signal::Command(argv) => command::run(argv, rights)
            .await
            .map_err(|error| error.to_string()),
        Signal::Http(Loopback { address, path }) => {
            let posted = timeout(LIMIT, post(*address, path)).await;
            let said = |error| format!("POST http://{address}{path}: {error}");
            posted
                .unwrap_or_else(|_| Err(format!("no answer within {} s", LIMIT.as_secs())))
                .map_err(said)
        }
    }
}

/// Sends SIGHUP to the process that a pid file names, if it is one of the unit's owner: the file's
/// writer must not choose another user's process.
fn hang_up(path: &Path, owner: u32) -> Result<(), String> {
    let shown = path.display();
    let text =
        bounded(path, MAX_PIDFILE).map_err(|error| format!("failed to read {shown}: {error}"))?;
    let text = String::from_utf8_lossy(&text);
    let number: Option<i32> = text
        .split_whitespace()
        .next()
        .and_then(|word| word.parse().ok());
    let pid = number.filter(|number| *number > 1).and_then(Pid::from_raw);
    let pid = pid.ok_or_else(|| format!("{shown} has no process id"))?;
    // The descriptor keeps the number from meaning another process after the check.
    let process = pidfd_open(pid, PidfdFlags::empty()).map_err(|error| {
        format!(
            "process {pid} of {shown}: {error}",
            pid = pid.as_raw_nonzero()
        )
    })?;
    let status = fs::read_to_string(format!("/proc/{}/status", pid.as_raw_nonzero()));
    if status.ok().as_deref().and_then(user_of) != Some(owner) {
        let number = pid.as_raw_nonzero();
        return Err(format!(
            "process {number} of {shown} is not one of the unit's owner"
        ));
    }
    pidfd_send_signal(process, rustix::process::Signal::HUP)
        .map_err(|error| format!("failed to signal the process of {shown}: {error}"))
}

/// Effective user of a process, by the text of its `/proc/PID/status`.
fn user_of(status: &str) -> Option<u32> {
    let users = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    users.split_whitespace().nth(1)?.parse().ok()
}

async fn post(address: SocketAddr, path: &str) -> Result<(), String> {
    let stream = TcpStream::connect(address)
        .await
        .map_err(|error| error.to_string())?;
    let (mut client, connection) = http1::handshake(TokioIo::new(stream))
        .await
        .map_err(|error| error.to_string())?;
    let request = Request::post(path).header("host", address.to_string());
    let request = request
        .body(Empty::<bytes::Bytes>::new())
        .map_err(|error| error.to_string())?;
    // Ends with the client, when this function returns.
    tokio::spawn(connection);
    // The status is enough: the body is not read.
    let answer = client
        .send_request(request)
        .await
        .map_err(|error| error.to_string())?;
    match answer.status() {
        status if status.is_success() => Ok(()),
        status => Err(status.to_string()),
    }
}

#[cfg(test)]
mod tests;
