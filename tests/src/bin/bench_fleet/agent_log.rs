//! When the agent had no connection to the monitor, by its log lines. They have microseconds.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use jiff::Timestamp;
use serde::Deserialize;

const UP: &str = "connected to the monitor";
const RESTARTING: &str = "the monitor changes its program";
const DOWN: &str = "no connection to the monitor";

/// A line of the log of `bellows up`.
#[derive(Deserialize)]
struct Line {
    timestamp: Timestamp,
    message: String,
}

/// The log of `bellows up`, read as it grows.
pub(super) struct AgentLog {
    path: PathBuf,
    /// Bytes of whole lines that were read.
    read: u64,
    /// When the agent lost its connection; `None` while it has one.
    down_since: Option<Timestamp>,
    /// Connections so far.
    pub(super) connections: u64,
    /// Time without a connection so far, milliseconds.
    pub(super) without_ms: f64,
    /// Dials so far that failed.
    pub(super) failed_dials: u64,
}

impl AgentLog {
    pub(super) fn new(path: PathBuf) -> Self {
        Self {
            path,
            read: 0,
            down_since: None,
            connections: 0,
            without_ms: 0.0,
            failed_dials: 0,
        }
    }

    /// Reads the lines that were added.
    pub(super) fn follow(&mut self) -> Result<()> {
        let mut file = File::open(&self.path).context("the log of bellows up")?;
        file.seek(SeekFrom::Start(self.read))?;
        let mut text = Vec::new();
        file.read_to_end(&mut text)?;
        let whole = text.iter().rposition(|byte| *byte == b'\n');
        let whole = &text[..whole.map_or(0, |end| end + 1)];
        self.read += u64::try_from(whole.len())?;
        for line in whole.split(|byte| *byte == b'\n') {
            // Lines of other programs are no JSON.
            if let Ok(line) = serde_json::from_slice(line) {
                self.take(&line);
            }
        }
        Ok(())
    }

    fn take(&mut self, line: &Line) {
        match line.message.as_str() {
            UP => {
                self.connections += 1;
                if let Some(since) = self.down_since.take() {
                    let without = line.timestamp.duration_since(since);
                    self.without_ms += without.as_secs_f64() * 1e3;
                }
            }
            RESTARTING => self.down_since = Some(line.timestamp),
            // A dial that fails while there is no connection has the same line as a loss.
            DOWN if self.down_since.is_some() => self.failed_dials += 1,
            DOWN => self.down_since = Some(line.timestamp),
            _ => {}
        }
    }
}
