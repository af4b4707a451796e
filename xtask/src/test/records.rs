//! The records of a run: tests that did not run, which fail the run unless they may be left out,
//! attempts of tests that may be run again, and waits.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use test_records::{Attempt, Missing, Record, Skip, Wait};

use crate::shell;

/// How many waits are printed.
const SHOWN_WAITS: usize = 10;

/// The file of one run, and the keys that tests may lack in it.
pub(super) struct Records {
    file: tempfile::NamedTempFile,
    may_skip: Vec<Missing>,
}

impl Records {
    /// An empty file.
    ///
    /// # Errors
    /// As the file system says.
    pub(super) fn new(may_skip: &[Missing]) -> Result<Self> {
        let file = tempfile::Builder::new()
            .prefix("bellows-records-")
            .tempfile();
        Ok(Self {
            file: file.context("no file for the records")?,
            may_skip: may_skip.to_vec(),
        })
    }

    fn path(&self) -> &Path {
        self.file.path()
    }

    /// Has the tests of a command write to the file.
    pub(super) fn give_to(&self, command: &mut Command) {
        command
            .env(test_records::FILE, self.path())
            .env(test_records::MAY_SKIP, Missing::list(&self.may_skip));
    }

    /// Whether tests may lack this.
    pub(super) fn may_skip(&self, missing: Missing) -> bool {
        self.may_skip.contains(&missing)
    }

    /// Records what this program itself leaves out.
    ///
    /// # Errors
    /// As the file system says.
    pub(super) fn skip(&self, skip: Skip) -> Result<()> {
        test_records::append(self.path(), &Record::Skip(skip)).context("no record is written")
    }

    /// Prints all records.
    ///
    /// # Errors
    /// A test did not run that may not be left out, or the file is damaged or gone.
    pub(super) fn close(self) -> Result<()> {
        let text = std::fs::read_to_string(self.path())
            .context("the records are gone: nobody knows which tests ran")?;
        let judged = judge(&text, &self.may_skip)?;
        judged.lines.iter().for_each(|line| shell::say(line));
        if judged.refused.is_empty() {
            return Ok(());
        }
        bail!(
            "{} tests did not run: they need {}; provide it, or leave it out by `--may-skip`",
            judged.refused.values().sum::<usize>(),
            Missing::list(&judged.refused.into_keys().collect::<Vec<_>>())
        )
    }
}

/// What is printed of a run's records, and what may not be left out of it.
#[derive(Debug, Default)]
struct Judged {
    lines: Vec<String>,
    /// How many tests lack what may not be missing.
    refused: BTreeMap<Missing, usize>,
}

fn judge(text: &str, may_skip: &[Missing]) -> Result<Judged> {
    let records = test_records::read(text).context("the records of the tests are damaged")?;
    let (mut skips, mut attempts, mut waits) = (Vec::new(), Vec::new(), Vec::new());
    for record in records {
        match record {
            Record::Skip(skip) => skips.push(skip),
            Record::Attempt(attempt) => attempts.push(attempt),
            Record::Wait(wait) => waits.push(wait),
        }
    }
    skips.sort();
    skips.dedup();
    let mut judged = Judged::default();
    let count = skips.len();
    judged.lines.push(format!("\n==> tests left out: {count}"));
    for skip in skips {
        let is_allowed = may_skip.contains(&skip.missing);
        let word = if is_allowed { "allowed" } else { "NOT ALLOWED" };
        judged.lines.push(format!("    {word}: {skip}"));
        if !is_allowed {
            *judged.refused.entry(skip.missing).or_default() += 1;
        }
    }
    judged.lines.extend(retries(&attempts));
    judged.lines.extend(longest_waits(waits));
    Ok(judged)
}

/// The waits that came nearest to their bounds.
fn longest_waits(mut waits: Vec<Wait>) -> Vec<String> {
    if waits.is_empty() {
        return Vec::new();
    }
    let share = |wait: &Wait| 100 * wait.millis / wait.bound_millis.max(1);
    waits.sort_by_key(|wait| std::cmp::Reverse(share(wait)));
    let mut lines = vec![format!(
        "\n==> waits: {}, nearest to their bounds:",
        waits.len()
    )];
    lines.extend(waits.iter().take(SHOWN_WAITS).map(|wait| {
        format!(
            "    {} % of {} s: {}",
            share(wait),
            wait.bound_millis / 1_000,
            wait.step
        )
    }));
    lines
}

/// How often tests that may be run again were.
fn retries(attempts: &[Attempt]) -> Vec<String> {
    if attempts.is_empty() {
        return Vec::new();
    }
    let mut by_test: BTreeMap<&str, Vec<&Attempt>> = BTreeMap::new();
    for attempt in attempts {
        by_test.entry(&attempt.test).or_default().push(attempt);
    }
    let is_retried = |attempt: &&Attempt| attempt.retried_for.is_some();
    let all = rate(attempts.iter().filter(is_retried).count(), attempts.len());
    let mut lines = vec![format!(
        "\n==> retried for a guest that QEMU without KVM broke: {all}"
    )];
    for (test, attempts) in by_test {
        let panics: Vec<&str> = attempts
            .iter()
            .filter_map(|attempt| attempt.retried_for.as_deref())
            .collect();
        let rate = rate(panics.len(), attempts.len());
        lines.push(format!("    {test}: {rate}"));
        lines.extend(panics.iter().map(|panic| format!("        {panic}")));
    }
    lines
}

fn rate(retried: usize, attempts: usize) -> String {
    format!(
        "{retried} of {attempts} attempts ({} %)",
        100 * retried / attempts
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(record: &Record) -> String {
        format!("{}\n", serde_json::to_string(record).expect("encodes"))
    }

    fn skip(test: &str, missing: Missing) -> String {
        line(&Record::Skip(Skip {
            missing,
            test: test.to_owned(),
            reason: "it is not here".to_owned(),
        }))
    }

    fn attempt(number: u32, retried_for: Option<&str>) -> String {
        line(&Record::Attempt(Attempt {
            test: "moves".to_owned(),
            number,
            retried_for: retried_for.map(str::to_owned),
        }))
    }

    #[test]
    fn tests_that_may_be_left_out_are_listed() {
        let text = skip("b", Missing::Vsock) + &skip("a", Missing::Psi) + &skip("a", Missing::Psi);
        let judged = judge(&text, &[Missing::Psi, Missing::Vsock]).expect("is read");
        assert!(judged.refused.is_empty(), "{judged:?}");
        assert_eq!(
            judged.lines,
            [
                "\n==> tests left out: 2",
                "    allowed: SKIP(missing: psi): a: it is not here",
                "    allowed: SKIP(missing: vsock): b: it is not here",
            ]
        );
    }

    #[test]
    fn tests_that_may_not_be_left_out_are_counted_by_what_they_need() {
        let text = [
            skip("a", Missing::Cluster),
            skip("b", Missing::Cluster),
            skip("c", Missing::Root),
            skip("d", Missing::Psi),
        ];
        let judged = judge(&text.concat(), &[Missing::Psi]).expect("is read");
        assert_eq!(
            judged.refused.into_iter().collect::<Vec<_>>(),
            [(Missing::Cluster, 2), (Missing::Root, 1)]
        );
        let refused = |line: &&String| line.starts_with("    NOT ALLOWED: SKIP");
        assert_eq!(judged.lines.iter().filter(refused).count(), 3);
    }

    #[test]
    fn damaged_line_is_no_verdict() {
        let text = skip("a", Missing::Psi);
        let (cut, _) = text.split_at(20);
        let error = judge(&format!("{text}{cut}"), &Missing::ALL).expect_err("is damaged");
        assert!(format!("{error:#}").contains("line 2"), "{error:#}");
    }

    #[test]
    fn run_without_records_has_left_nothing_out() {
        let judged = judge("", &[]).expect("is read");
        assert!(judged.refused.is_empty());
        assert_eq!(judged.lines, ["\n==> tests left out: 0"]);
    }

    #[test]
    fn retries_are_told_with_their_rate() {
        let text = attempt(1, Some("Kernel panic")) + &attempt(2, None) + &attempt(1, None);
        let judged = judge(&text, &[]).expect("is read");
        assert!(judged.refused.is_empty());
        assert_eq!(
            judged.lines[1..],
            [
                "\n==> retried for a guest that QEMU without KVM broke: 1 of 3 attempts (33 %)",
                "    moves: 1 of 3 attempts (33 %)",
                "        Kernel panic",
            ]
        );
    }

    #[test]
    fn waits_nearest_to_their_bounds_are_shown() {
        let wait = |step: &str, millis| {
            line(&Record::Wait(Wait {
                step: step.to_owned(),
                millis,
                bound_millis: 60_000,
            }))
        };
        let many: String = (0..30).map(|number| wait("fast", number)).collect();
        let judged = judge(&(many + &wait("slow", 45_000)), &[]).expect("is read");
        assert_eq!(judged.lines[1], "\n==> waits: 31, nearest to their bounds:");
        assert_eq!(judged.lines[2], "    75 % of 60 s: slow");
        assert_eq!(judged.lines.len(), 2 + SHOWN_WAITS);
    }

    #[test]
    fn closed_run_fails_for_what_is_not_allowed_and_for_a_file_that_is_gone() {
        let root = || Skip {
            missing: Missing::Root,
            test: "a".to_owned(),
            reason: "it is not here".to_owned(),
        };
        let records = Records::new(&[Missing::Root]).expect("a file");
        records.skip(root()).expect("written");
        records.close().expect("is allowed");
        let records = Records::new(&[Missing::Psi]).expect("a file");
        records.skip(root()).expect("written");
        let error = records.close().expect_err("is not allowed");
        assert!(error.to_string().contains("root"), "{error:#}");
        let records = Records::new(&Missing::ALL).expect("a file");
        std::fs::remove_file(records.path()).expect("it is there");
        assert!(records.close().is_err());
    }
}
