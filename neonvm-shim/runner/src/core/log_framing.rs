//! Splits a guest's output into lines for the log of its pod (docs/compatibility/neonvm.md §3.8).
//! LineFramer are complete, of bounded length, and emitted in time.

use protocol::time::{Span, Timestamp};

/// Longest line in bytes, which container runtimes keep in one piece. A longer one is split.
pub const LINE_BYTES: usize = 16 << 10;
/// How long an unfinished line, such as a prompt, may wait for its end.
pub const UNFINISHED: Span = Span::from_secs(3);

/// Line splitter of one stream.
#[derive(Debug, Default)]
pub struct LineFramer {
    /// The unfinished line; shorter than [`LINE_BYTES`].
    rest: Vec<u8>,
    /// When a byte was last added to `rest`.
    since: Timestamp,
    /// The beginning of the current line was already emitted.
    goes_on: bool,
}

impl LineFramer {
    /// Consumes `bytes` and appends the lines that they finish, each with a newline, to `out`.
    pub fn take(&mut self, now: Timestamp, bytes: &[u8], out: &mut Vec<u8>) {
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            let (text, is_end) = match piece.split_last() {
                Some((b'\n', text)) => (text, true),
                _ => (piece, false),
            };
            self.extend(text, out);
            if is_end {
                self.end(out);
            }
        }
        self.since = now;
    }

    fn extend(&mut self, mut text: &[u8], out: &mut Vec<u8>) {
        while !text.is_empty() {
            let room = LINE_BYTES - self.rest.len();
            let (fits, more) = text.split_at(room.min(text.len()));
            self.rest.extend_from_slice(fits);
            text = more;
            if self.rest.len() == LINE_BYTES {
                self.put(out);
                self.goes_on = true;
            }
        }
    }

    /// A line of exactly the longest length has been emitted already.
    fn end(&mut self, out: &mut Vec<u8>) {
        // Serial consoles end a line with a carriage return before the newline.
        if self.rest.last() == Some(&b'\r') {
            self.rest.pop();
        }
        if !(self.rest.is_empty() && self.goes_on) {
            self.put(out);
        }
        self.goes_on = false;
    }

    fn put(&mut self, out: &mut Vec<u8>) {
        out.append(&mut self.rest);
        out.push(b'\n');
    }

    /// When [`Self::poll`] emits the unfinished line. `None` without one.
    #[must_use]
    pub fn poll_deadline(&self) -> Option<Timestamp> {
        (!self.rest.is_empty()).then(|| self.since + UNFINISHED)
    }

    /// Appends the unfinished line to `out`, if it is due.
    pub fn poll(&mut self, now: Timestamp, out: &mut Vec<u8>) {
        if self.poll_deadline().is_some_and(|due| due <= now) {
            self.finish(out);
            self.goes_on = true;
        }
    }

    /// Appends the unfinished line to `out` at the end of the stream.
    pub fn finish(&mut self, out: &mut Vec<u8>) {
        if !self.rest.is_empty() {
            self.put(out);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NOW: Timestamp = Timestamp(5_000_000);

    fn taken(lines: &mut LineFramer, text: &str) -> String {
        let mut out = Vec::new();
        lines.take(NOW, text.as_bytes(), &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn lines_are_emitted_whole_for_any_chunks() {
        let mut lines = LineFramer::default();
        assert_eq!(taken(&mut lines, "[ 0.1] one\r\ntw"), "[ 0.1] one\n");
        assert_eq!(taken(&mut lines, "o\r"), "");
        assert_eq!(taken(&mut lines, "\n\nthree\n"), "two\n\nthree\n");
        assert_eq!(lines.poll_deadline(), None);
    }

    #[test]
    fn unfinished_line_is_emitted_in_time_and_continued() {
        let mut lines = LineFramer::default();
        let mut out = Vec::new();
        assert_eq!(taken(&mut lines, "login: "), "");
        lines.poll(NOW, &mut out);
        assert!(out.is_empty(), "it may yet end");
        let due = lines.poll_deadline().expect("it waits");
        lines.poll(due, &mut out);
        assert_eq!(out, b"login: \n");
        assert_eq!(lines.poll_deadline(), None);
        assert_eq!(taken(&mut lines, "\nroot\n"), "root\n", "no empty line");
        assert_eq!(taken(&mut lines, "last"), "");
        out.clear();
        lines.finish(&mut out);
        assert_eq!(out, b"last\n");
    }

    #[test]
    fn long_line_is_split() {
        let mut lines = LineFramer::default();
        let long = "x".repeat(LINE_BYTES);
        assert_eq!(taken(&mut lines, &long), format!("{long}\n"));
        assert_eq!(taken(&mut lines, "\nnext\n"), "next\n");
        let text = format!("{long}y\n");
        assert_eq!(taken(&mut lines, &text), format!("{long}\ny\n"));
    }

    proptest! {
        /// All bytes but newlines are kept, and no line exceeds its bound.
        #[test]
        fn no_byte_is_lost_and_no_line_is_too_long(
            pieces in proptest::collection::vec("[a\n]{0,40}|a{30000}", 0..12)
        ) {
            let mut lines = LineFramer::default();
            let mut out = Vec::new();
            for piece in &pieces {
                lines.take(NOW, piece.as_bytes(), &mut out);
            }
            lines.finish(&mut out);
            let letters = |bytes: &[u8]| bytes.iter().filter(|byte| **byte == b'a').count();
            prop_assert_eq!(letters(&out), letters(pieces.concat().as_bytes()));
            prop_assert!(out.is_empty() || out.ends_with(b"\n"));
            prop_assert!(out.split(|byte| *byte == b'\n').all(|line| line.len() <= LINE_BYTES));
        }
    }
}
