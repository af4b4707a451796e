//! Progress of the benchmark on stderr: each step when it begins, and again while it lasts.

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use anyhow::Result;

/// Between two lines about a step that lasts.
const EVERY: Duration = Duration::from_secs(5);

pub(crate) struct Progress(Sender<String>);

impl Progress {
    pub(crate) fn start() -> Result<Self> {
        let (to, from) = channel::<String>();
        let tell = move || {
            let mut step = "start".to_owned();
            let mut since = Instant::now();
            loop {
                match from.recv_timeout(EVERY) {
                    Ok(next) => {
                        eprintln!("==> {next}");
                        (step, since) = (next, Instant::now());
                    }
                    Err(RecvTimeoutError::Timeout) => {
                        eprintln!("    {step}: {} s", since.elapsed().as_secs());
                    }
                    Err(RecvTimeoutError::Disconnected) => return,
                }
            }
        };
        std::thread::Builder::new()
            .name("progress".into())
            .spawn(tell)?;
        Ok(Self(to))
    }

    /// The step that begins now.
    pub(crate) fn step(&self, what: impl Into<String>) {
        // A line that is not shown changes no measurement.
        let _ = self.0.send(what.into());
    }
}
