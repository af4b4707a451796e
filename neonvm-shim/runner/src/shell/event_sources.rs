//! Tasks that feed a VM's driver with inputs: from QEMU's process, its monitor, and the guest's
//! daemon.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::process::Child;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::guest::Daemon;
use super::input::Input;
use super::process::ProcessId;
use super::qmp::ConnectError;
use super::{guest, qmp};

/// First pause between two attempts to connect to the monitor.
const QMP_AGAIN: Duration = Duration::from_millis(20);
/// Pause after [`QMP_QUICK_TRIES`] attempts.
const QMP_AGAIN_SLOW: Duration = Duration::from_millis(500);
/// Attempts with the short pause: QEMU makes its socket within a second.
const QMP_QUICK_TRIES: u32 = 250;
/// Missing greetings before an outage is reported, each after the greeting's timeout: QEMU on a
/// busy host may be late once.
const QMP_SILENCES: u32 = 2;

/// Failed attempts to connect to the monitor.
#[derive(Debug, Default)]
struct Outage {
    tries: u32,
    silences: u32,
    is_reported: bool,
}

impl Outage {
    /// Counts a failed attempt. Returns the reason once, when the outage counts as long.
    fn failed(&mut self, error: &ConnectError) -> Option<String> {
        self.tries += 1;
        self.silences += u32::from(matches!(error, ConnectError::Silent));
        let is_long = self.tries >= QMP_QUICK_TRIES || self.silences >= QMP_SILENCES;
        let is_due = is_long && !std::mem::replace(&mut self.is_reported, is_long);
        is_due.then(|| daemon_kit::chain(error))
    }

    fn pause(&self) -> Duration {
        if self.tries < QMP_QUICK_TRIES {
            QMP_AGAIN
        } else {
            QMP_AGAIN_SLOW
        }
    }
}

pub(super) async fn watch_process(
    child: Option<Child>,
    process: Option<ProcessId>,
    inputs: mpsc::Sender<Input>,
    stop: CancellationToken,
) {
    let code = if let Some(mut child) = child {
        tokio::select! {
            () = stop.cancelled() => return,
            status = child.wait() => status.ok().and_then(|status| status.code()),
        }
    } else {
        // An adopted QEMU is not a child.
        if let Some(process) = process {
            tokio::select! {
                () = stop.cancelled() => return,
                () = process.ended() => {}
            }
        }
        None
    };
    // The driver is gone only when the runner ends.
    let _ = inputs.send(Input::Ended(code)).await;
}

/// Keeps the monitor connected and passes its events on.
pub(super) async fn follow_monitor(
    socket: PathBuf,
    user: Option<u32>,
    inputs: mpsc::Sender<Input>,
    stop: CancellationToken,
) {
    let mut outage = Outage::default();
    loop {
        let connected = tokio::select! {
            () = stop.cancelled() => return,
            connected = qmp::connect(&socket, user) => connected,
        };
        match connected {
            Ok((qmp, mut events)) => {
                outage = Outage::default();
                info!(version = qmp.version, "monitor connected");
                if inputs.send(Input::QmpUp(Arc::new(qmp))).await.is_err() {
                    return;
                }
                while let Some(event) = events.recv().await {
                    if inputs.send(Input::Qmp(event)).await.is_err() {
                        return;
                    }
                }
                if inputs.send(Input::QmpDown).await.is_err() {
                    return;
                }
            }
            Err(error) => {
                if let Some(why) = outage.failed(&error) {
                    warn!(error = why, "failed to connect to QEMU's monitor");
                    if inputs.send(Input::QmpUnreached(why)).await.is_err() {
                        return;
                    }
                }
            }
        }
        let pause = outage.pause();
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(pause) => {}
        }
    }
}

/// Passes the reports of the guest's daemon on.
pub(super) async fn follow_guest(
    daemon: Daemon,
    inputs: mpsc::Sender<Input>,
    stop: CancellationToken,
) {
    let (sender, mut reports) = mpsc::channel(1);
    tokio::spawn(guest::watch(daemon, sender, stop.clone()));
    while let Some(report) = reports.recv().await {
        if inputs.send(Input::Guest(report)).await.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lasting_outage_is_reported_once() {
        let refused = || ConnectError::Connect(std::io::ErrorKind::ConnectionRefused.into());
        let mut starting = Outage::default();
        for _ in 1..QMP_QUICK_TRIES {
            assert_eq!(starting.failed(&refused()), None);
            assert_eq!(starting.pause(), QMP_AGAIN);
        }
        assert!(starting.failed(&refused()).is_some());
        assert_eq!(starting.pause(), QMP_AGAIN_SLOW);
        assert_eq!(starting.failed(&refused()), None);

        let mut held = Outage::default();
        assert_eq!(held.failed(&ConnectError::Silent), None);
        let why = held.failed(&ConnectError::Silent).expect("it lasts");
        assert!(why.contains("another client"), "{why}");
        assert_eq!(held.failed(&ConnectError::Silent), None);
    }
}
