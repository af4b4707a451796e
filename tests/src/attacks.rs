//! What an attacker tried and what came of it, as data: the attack tests print it as a table and
//! fail on every attempt that succeeded.

use std::fmt;

use serde::Serialize;

/// What an attempt led to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase", tag = "outcome", content = "detail")]
pub enum Outcome {
    /// The wall held. The text is what the attacker saw: an errno, a status or an answer.
    Refused(String),
    /// The attacker got what it wanted. The text says what.
    Succeeded(String),
}

/// One attempt of an attacker.
#[derive(Debug, Clone, Serialize)]
pub struct Attempt {
    /// The wall of the threat model that is attacked, for example `W2`.
    pub wall: &'static str,
    /// What was attacked: a port, a file or a member of an object.
    pub target: String,
    /// How it was attacked.
    pub how: String,
    /// What came of it.
    #[serde(flatten)]
    pub outcome: Outcome,
}

/// All attempts of one attacker.
#[derive(Debug, Serialize)]
pub struct Report {
    attacker: &'static str,
    attempts: Vec<Attempt>,
}

impl Report {
    /// An attacker that has tried nothing so far.
    #[must_use]
    pub fn new(attacker: &'static str) -> Self {
        Self {
            attacker,
            attempts: Vec::new(),
        }
    }

    /// Adds an attempt.
    pub fn record(
        &mut self,
        wall: &'static str,
        target: impl Into<String>,
        how: impl Into<String>,
        outcome: Outcome,
    ) {
        self.attempts.push(Attempt {
            wall,
            target: target.into(),
            how: how.into(),
            outcome,
        });
    }

    /// The attempts so far.
    #[must_use]
    pub fn attempts(&self) -> &[Attempt] {
        &self.attempts
    }

    /// Prints the table, and fails when nothing was tried or an attempt succeeded.
    ///
    /// # Panics
    /// When no attempt was recorded, or one succeeded: the message lists those.
    #[expect(clippy::print_stdout, reason = "the table is what the test shows")]
    pub fn finish(self) {
        println!("{self}");
        assert!(
            !self.attempts.is_empty(),
            "attacker {:?} tried nothing",
            self.attacker
        );
        let broken: Vec<&Attempt> = self
            .attempts
            .iter()
            .filter(|attempt| matches!(attempt.outcome, Outcome::Succeeded(_)))
            .collect();
        assert!(
            broken.is_empty(),
            "attacker {:?} got through {} of {} times: {broken:#?}",
            self.attacker,
            broken.len(),
            self.attempts.len()
        );
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "attacker: {}", self.attacker)?;
        for attempt in &self.attempts {
            let (word, detail) = match &attempt.outcome {
                Outcome::Refused(detail) => ("refused", detail),
                Outcome::Succeeded(detail) => ("SUCCEEDED", detail),
            };
            writeln!(
                f,
                "  {:<4} {word:<9} {:<44} {:<44} {detail}",
                attempt.wall, attempt.target, attempt.how
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(outcome: Outcome) -> Report {
        let mut report = Report::new("guest");
        report.record("W2", "127.0.0.1:22", "connect", outcome);
        report
    }

    #[test]
    fn report_passes_when_every_attempt_is_refused() {
        report(Outcome::Refused("ECONNREFUSED".into())).finish();
    }

    #[test]
    #[should_panic(expected = "got through 1 of 1 times")]
    fn report_fails_when_an_attempt_succeeds() {
        report(Outcome::Succeeded("a banner".into())).finish();
    }

    #[test]
    #[should_panic(expected = "tried nothing")]
    fn report_fails_when_nothing_was_tried() {
        Report::new("guest").finish();
    }
}
