//! Attempts of an attacker and their outcomes. Attack tests print them as a table, and fail if an
//! attempt succeeded.

use std::fmt;

use serde::Serialize;

/// Outcome of an attempt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase", tag = "outcome", content = "detail")]
pub enum Outcome {
    /// The attempt was refused. Holds what the attacker saw: an errno, a status or a response.
    Refused(String),
    /// The attempt succeeded. Holds what the attacker got.
    Succeeded(String),
}

/// One attempt of an attacker.
#[derive(Debug, Clone, Serialize)]
pub struct Attempt {
    /// The wall of the threat model that is attacked, for example `W2`.
    pub wall: &'static str,
    /// Attacked port, file or member of an object.
    pub target: String,
    /// Method of the attack.
    pub how: String,
    /// Result of the attempt.
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
    /// A report without attempts.
    #[must_use]
    pub fn new(attacker: &'static str) -> Self {
        Self {
            attacker,
            attempts: Vec::new(),
        }
    }

    /// Adds an attempt and its outcome.
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

    /// Attempts in their order.
    #[must_use]
    pub fn attempts(&self) -> &[Attempt] {
        &self.attempts
    }

    /// Prints the table and checks it.
    ///
    /// # Panics
    ///
    /// If no attempt was recorded, or one succeeded. The message lists those.
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
