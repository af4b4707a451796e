//! Records of changes: a line of the journal's part `fleet`, a log line and a count of each.
//!
//! A line follows what it is about, so a process that ends in between leaves no line. The objects
//! have the state all the same.

use daemon_kit::clock::Clock;
use daemon_kit::journal::Journal;
use protocol::journal::Action as Line;

use crate::changes::Change;
use crate::metrics::Metrics;

/// Author of the lines.
const AUTHOR: &str = "fleet";
/// Most bytes of a text in a line.
const MAX_TEXT_BYTES: usize = 1_000;

/// Writer of records. Without a journal it writes log lines and counts alone.
#[derive(Debug, Clone)]
pub(crate) struct Records {
    pub(crate) journal: Option<Journal>,
    pub(crate) clock: Clock,
    pub(crate) metrics: Metrics,
}

impl Records {
    pub(crate) fn tell(&self, change: &Change) {
        self.metrics.count(change);
        let Change {
            kind,
            on,
            to,
            why,
            failure,
            ..
        } = change;
        let kind = kind.as_str();
        match failure {
            None => tracing::info!(kind, on, to, why, "fleet changed"),
            Some(failure) => tracing::warn!(kind, on, to, why, failure, "fleet change failed"),
        }
        let Some(journal) = &self.journal else {
            return;
        };
        // The journal counts a line that it loses.
        drop(journal.append_action(line(change, self.clock.now().0)));
    }
}

fn line(change: &Change, t: u64) -> Line {
    let text = |text: &str| (!text.is_empty()).then(|| shortened(text));
    Line {
        by: AUTHOR.to_owned(),
        what: format!("fleet {}", change.kind.as_str()),
        on: text(&change.on),
        to: text(&change.to),
        why: text(&change.why),
        ok: Some(change.failure.is_none()),
        note: change.failure.as_deref().map(shortened),
        t,
        ..Line::default()
    }
}

/// One line of printable text: a guest wrote some of it.
fn shortened(text: &str) -> String {
    let mut text = text.replace(char::is_control, " ");
    text.truncate(text.floor_char_boundary(MAX_TEXT_BYTES));
    text
}

#[cfg(test)]
mod tests;
