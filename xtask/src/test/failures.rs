//! What failed among thousands of lines of tests, for the end of the output: where a log is cut,
//! its middle goes first.

/// Lines that are kept of one failure.
const KEPT: usize = 200;

/// Collects the output of failed tests.
#[derive(Debug, Default)]
pub(super) struct Failures {
    lines: Vec<String>,
    /// Lines that may still be taken of the failure that is told; 0 between failures.
    left: usize,
}

impl Failures {
    /// The lines of failed tests, in the order in which they came.
    pub(super) fn lines(&self) -> &[String] {
        &self.lines
    }

    /// Takes the next line of the output.
    pub(super) fn hear(&mut self, line: &str) {
        let failed = line.starts_with("test ") && line.contains(" ... FAILED");
        if failed || line == "failures:" {
            self.left = KEPT;
        } else if line.starts_with("test ") {
            self.left = 0;
        }
        if self.left > 0 && !is_frame(line) {
            self.left -= 1;
            self.lines.push(line.to_owned());
        }
    }
}

/// Whether a line belongs to a stack trace: the number and name of a frame, or its place.
fn is_frame(line: &str) -> bool {
    let Some(words) = line.strip_prefix("  ") else {
        return false;
    };
    let words = words.trim_start();
    let (first, rest) = words.split_once(' ').unwrap_or((words, ""));
    let number = first.strip_suffix(':').unwrap_or_default();
    let is_numbered = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    is_numbered || (first == "at" && rest.contains(".rs:"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(output: &str) -> Vec<String> {
        let mut failures = Failures::default();
        output.lines().for_each(|line| failures.hear(line));
        failures.lines
    }

    #[test]
    fn failed_unit_test_is_kept_with_its_output() {
        let output = "\
running 2 tests
test sizes_hold ... ok
test words_hold ... FAILED

failures:

---- words_hold stdout ----
left: 1
right: 2

failures:
    words_hold

test result: FAILED. 1 passed; 1 failed; 0 ignored
test other ... ok";
        let kept = kept(output);
        assert!(kept.contains(&"left: 1".to_owned()), "{kept:?}");
        assert!(!kept.iter().any(|line| line.contains("ok")), "{kept:?}");
    }

    #[test]
    fn failed_case_is_kept_with_its_problem() {
        let output = "\
test pods_run ... FAILED (3.0 s)
pod a is not there
the last words of the agent
test pods_talk ... ok (1.0 s)

test result: FAILED. 1 passed; 1 failed";
        assert_eq!(
            kept(output),
            [
                "test pods_run ... FAILED (3.0 s)",
                "pod a is not there",
                "the last words of the agent"
            ]
        );
    }

    #[test]
    fn stack_trace_of_a_failure_is_left_out() {
        let output = "\
test rollout ... FAILED (3.0 s)
   state of pod 3: lost
    at the end of its life
Stack backtrace:
   0: anyhow::error::msg
             at /src/lib.rs:690:13
  15: core::ops::function::FnOnce::call_once
the last words of the agent";
        let problem = [
            "test rollout ... FAILED (3.0 s)",
            "   state of pod 3: lost",
            "    at the end of its life",
            "Stack backtrace:",
            "the last words of the agent",
        ];
        assert_eq!(kept(output), problem);
    }

    #[test]
    fn tests_that_pass_leave_nothing() {
        assert!(kept("running 1 test\ntest a ... ok\n\ntest result: ok. 1 passed").is_empty());
    }

    #[test]
    fn endless_failure_is_cut() {
        let output = format!("test a ... FAILED\n{}", "word\n".repeat(3 * KEPT));
        assert_eq!(kept(&output).len(), KEPT);
    }
}
