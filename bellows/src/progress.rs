//! Progress of work that takes more than two seconds. A terminal shows one line that is rewritten,
//! other outputs get a plain line now and then.

use std::io::{IsTerminal, Write};
use std::time::Duration;

use daemon_kit::clock::Clock;
use protocol::time::{Span, Timestamp};

/// Time before the first line.
const QUIET: Span = Span::from_secs(2);
/// Shortest interval between two lines on a terminal.
const REWRITE: Span = Span::from_millis(100);
/// Shortest interval between two equal lines elsewhere.
const REPEAT: Span = Span::from_secs(15);
/// Most characters on the rewritten line.
const WIDTH: usize = 110;

/// The progress line of one piece of work.
pub(crate) struct Progress {
    clock: Clock,
    began: Timestamp,
    last_shown: Option<Timestamp>,
    last_text: String,
    terminal: bool,
    dirty: bool,
}

impl Progress {
    pub(crate) fn new() -> Self {
        let clock = Clock::new();
        let terminal = std::io::stderr().is_terminal();
        Self {
            began: clock.now(),
            clock,
            last_shown: None,
            last_text: String::new(),
            terminal,
            dirty: false,
        }
    }

    /// Sets the text of the line. Calls may come at any rate.
    pub(crate) fn say(&mut self, text: &str) {
        let now = self.clock.now();
        let elapsed = now.since(self.began);
        if !is_due(
            elapsed,
            self.last_shown.map(|at| now.since(at)),
            text != self.last_text,
            self.terminal,
        ) {
            return;
        }
        let line = format!("{text} ({} s)", elapsed.as_millis() / 1000);
        let mut stderr = std::io::stderr().lock();
        if self.terminal {
            let shown: String = line.chars().take(WIDTH).collect();
            let _ = write!(stderr, "\r\u{1b}[2K{shown}");
            let _ = stderr.flush();
            self.dirty = true;
        } else {
            let _ = writeln!(stderr, "{line}");
        }
        self.last_shown = Some(now);
        text.clone_into(&mut self.last_text);
    }

    pub(crate) fn elapsed(&self) -> Duration {
        self.clock.now().since(self.began).to_duration()
    }

    /// Removes the line from the terminal.
    pub(crate) fn clear(&mut self) {
        if self.dirty {
            let mut stderr = std::io::stderr().lock();
            let _ = write!(stderr, "\r\u{1b}[2K");
            let _ = stderr.flush();
            self.dirty = false;
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.clear();
    }
}

fn is_due(elapsed: Span, since_shown: Option<Span>, changed: bool, terminal: bool) -> bool {
    if elapsed < QUIET {
        return false;
    }
    match since_shown {
        None => true,
        Some(since) if terminal => since >= REWRITE,
        Some(since) => changed || since >= REPEAT,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_is_silent_for_two_seconds_and_rare_after() {
        let secs = Span::from_secs;
        assert!(!is_due(secs(1), None, true, true));
        assert!(is_due(secs(2), None, true, false));
        assert!(!is_due(secs(3), Some(secs(1)), false, false));
        assert!(is_due(secs(3), Some(secs(1)), true, false));
        assert!(is_due(secs(30), Some(secs(15)), false, false));
        assert!(!is_due(secs(3), Some(Span::from_millis(10)), true, true));
    }
}
