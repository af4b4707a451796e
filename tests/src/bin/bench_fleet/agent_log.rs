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

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn time_between_loss_and_next_connection_is_summed_and_failed_dials_are_counted() {
        let mut file = tempfile::NamedTempFile::new().expect("a file");
        let mut log = AgentLog::new(file.path().to_owned());
        let mut say = |text: &str| {
            file.write_all(text.as_bytes()).expect("written");
            log.follow().expect("read");
            (log.connections, log.without_ms, log.failed_dials)
        };
        let line = |time: &str, message: &str| {
            let time = format!("2026-11-30T06:00:{time}Z");
            format!("{{\"timestamp\":\"{time}\",\"level\":\"INFO\",\"message\":\"{message}\"}}\n")
        };
        assert_eq!(say(&line("00.000000", UP)), (1, 0.0, 0));
        let lost = line("01.000500", RESTARTING) + "no JSON\n" + &line("01.100000", DOWN);
        assert_eq!(say(&lost), (1, 0.0, 1));
        let found = line("01.250500", UP);
        let (begin, end) = found.split_at(20);
        assert_eq!(say(begin), (1, 0.0, 1), "a line that is not whole is left");
        assert_eq!(say(end), (2, 250.0, 1));
        let again = line("02.000000", DOWN) + &line("02.500000", UP);
        assert_eq!(say(&again), (3, 750.0, 1));
    }
}
