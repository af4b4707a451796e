//! Progress of anything that takes more than two seconds: one line that rewrites itself on a
//! terminal, a plain line now and then elsewhere.

use std::io::{IsTerminal, Write};
use std::time::Duration;

use daemon_kit::clock::Clock;
use protocol::time::{Span, Timestamp};

/// Nothing is shown before this.
const QUIET: Span = Span::from_secs(2);
/// On a terminal the line is rewritten at most this often.
const REWRITE: Span = Span::from_millis(100);
/// Elsewhere an unchanged message is repeated at most this often.
const REPEAT: Span = Span::from_secs(15);
/// Longest message shown on the rewritten line, characters.
const WIDTH: usize = 110;

/// Shows that something goes on.
pub(crate) struct Progress {
    clock: Clock,
    began: Timestamp,
    last_shown: Option<Timestamp>,
    last_text: String,
    terminal: bool,
    dirty: bool,
}

impl Progress {
    /// Starts counting now.
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

    /// Says what goes on now. Call it as often as you like.
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

    /// Time since the start.
    pub(crate) fn elapsed(&self) -> Duration {
        self.clock.now().since(self.began).to_duration()
    }

    /// Removes the rewritten line.
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
    fn nothing_is_said_in_the_first_two_seconds_and_little_after() {
        let secs = Span::from_secs;
        assert!(!is_due(secs(1), None, true, true));
        assert!(is_due(secs(2), None, true, false));
        assert!(!is_due(secs(3), Some(secs(1)), false, false));
        assert!(is_due(secs(3), Some(secs(1)), true, false));
        assert!(is_due(secs(30), Some(secs(15)), false, false));
        assert!(!is_due(secs(3), Some(Span::from_millis(10)), true, true));
    }
}
