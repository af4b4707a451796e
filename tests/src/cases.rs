//! A test program whose cases share a world that is slow to create. The world is created before the
//! first case and dropped after the last.
//!
//! The program accepts the arguments of `cargo test`: names to run, `--exact`, `--skip NAME`,
//! `--list`. Cases run one after the other.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::time::Instant;

use anyhow::Result;

/// A case: its name, and its body on a world. It fails by an error or by a panic.
pub type Case<'a, W> = (
    &'static str,
    Box<dyn FnOnce(&'a W) -> Pin<Box<dyn Future<Output = Result<()>> + Send + 'a>> + 'a>,
);

/// Selection of cases on the command line.
#[derive(Debug, Default)]
pub struct Wanted {
    names: Vec<String>,
    skipped: Vec<String>,
    exact: bool,
    list: bool,
}

impl Wanted {
    /// Parses the command line.
    #[must_use]
    pub fn from_args() -> Self {
        let mut wanted = Self::default();
        let mut args = std::env::args().skip(1);
        while let Some(arg) = args.next() {
            match arg.as_str() {
                "--exact" => wanted.exact = true,
                "--list" => wanted.list = true,
                "--skip" => wanted.skipped.extend(args.next()),
                // These options have a value and no effect.
                "--test-threads" | "--format" | "--color" | "-Z" => drop(args.next()),
                flag if flag.starts_with('-') => {}
                _ => wanted.names.push(arg),
            }
        }
        wanted
    }

    /// Whether a case of that name is to run.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        let is = |text: &String| {
            if self.exact {
                name == text
            } else {
                name.contains(text.as_str())
            }
        };
        (self.names.is_empty() || self.names.iter().any(is)) && !self.skipped.iter().any(is)
    }

    /// Prints the names if the list is requested. Returns the names to run.
    #[must_use]
    pub fn choose(&self, names: &[&'static str]) -> Vec<&'static str> {
        let chosen = names.iter().copied().filter(|name| self.has(name));
        if self.list {
            chosen.for_each(|name| say(&format!("{name}: test")));
            return Vec::new();
        }
        chosen.collect()
    }
}

/// What the cases share. If it is missing, `find` records the case as skipped, or panics if it must
/// run. `find` is called for each case, so that all are recorded.
#[must_use]
pub fn shared<T>(cases: &[&'static str], find: impl Fn(&'static str) -> Option<T>) -> Option<T> {
    let mut refused = None;
    for case in cases {
        match catch_unwind(AssertUnwindSafe(|| find(case))) {
            Ok(Some(found)) => return Some(found),
            Ok(None) => {}
            Err(panic) => refused = Some(panic),
        }
    }
    refused.map(|panic| resume_unwind(panic))
}

/// Runs cases and prints their results. Returns whether all passed. `explain` adds details after a
/// failure.
pub async fn run<'a, W>(
    world: &'a W,
    cases: Vec<Case<'a, W>>,
    explain: impl Fn() -> String,
) -> bool {
    let all = Instant::now();
    let (mut passed, mut failed) = (0_u32, Vec::new());
    for (name, case) in cases {
        let began = Instant::now();
        let run = AssertUnwindSafe(case(world));
        let ended = futures::FutureExt::catch_unwind(run).await;
        let seconds = began.elapsed().as_secs_f64();
        let problem = match ended {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(format!("{error:#}")),
            // The panic's message is on stderr already.
            Err(_) => Some("it panicked".to_owned()),
        };
        match problem {
            None => {
                passed += 1;
                say(&format!("test {name} ... ok ({seconds:.1} s)"));
            }
            Some(problem) => {
                say(&format!(
                    "test {name} ... FAILED ({seconds:.1} s)\n{problem}\n{}",
                    explain()
                ));
                failed.push(name);
            }
        }
    }
    let verdict = if failed.is_empty() { "ok" } else { "FAILED" };
    say(&format!(
        "\ntest result: {verdict}. {passed} passed; {} failed; finished in {:.2}s",
        failed.len(),
        all.elapsed().as_secs_f64()
    ));
    failed.is_empty()
}

#[expect(clippy::print_stdout, reason = "what a test program prints")]
fn say(line: &str) {
    println!("{line}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_choose_cases() {
        let words = |names: &[&str], skipped: &[&str], exact| Wanted {
            names: names.iter().map(|name| (*name).to_owned()).collect(),
            skipped: skipped.iter().map(|name| (*name).to_owned()).collect(),
            exact,
            list: false,
        };
        let all = ["pods_run", "pods_talk"];
        assert_eq!(words(&[], &[], false).choose(&all), all);
        assert_eq!(words(&["talk"], &[], false).choose(&all), ["pods_talk"]);
        assert_eq!(
            words(&["pods"], &["run"], false).choose(&all),
            ["pods_talk"]
        );
        assert!(words(&["pods"], &[], true).choose(&all).is_empty());
    }

    #[test]
    fn every_case_is_asked_for_what_is_missing() {
        let asked = std::cell::RefCell::new(Vec::new());
        let find = |case| {
            asked.borrow_mut().push(case);
            assert_ne!(case, "must_run");
            (case == "found").then_some(case)
        };
        assert_eq!(shared(&["a", "b"], find), None);
        let refused = catch_unwind(AssertUnwindSafe(|| shared(&["must_run", "c"], find)));
        assert!(refused.is_err());
        assert_eq!(shared(&["found", "d"], find), Some("found"));
        assert_eq!(*asked.borrow(), ["a", "b", "must_run", "c", "found"]);
    }

    #[tokio::test]
    async fn a_case_that_fails_fails_the_program_and_not_the_next_case() {
        let world = std::sync::atomic::AtomicU32::new(0);
        let count = |world: &std::sync::atomic::AtomicU32| {
            world.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        };
        let cases: Vec<Case<'_, _>> = vec![
            (
                "fails",
                Box::new(move |world| {
                    Box::pin(async move {
                        count(world);
                        anyhow::bail!("no")
                    })
                }),
            ),
            (
                "passes",
                Box::new(move |world| {
                    Box::pin(async move {
                        count(world);
                        Ok(())
                    })
                }),
            ),
        ];
        assert!(!run(&world, cases, String::new).await);
        assert_eq!(world.into_inner(), 2);
    }
}
