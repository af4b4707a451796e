//! What the past would have been with the newest version of a policy: the report of `bellows policy
//! report --html`, made by a process of its own.
//!
//! One report at a time is made, at the lowest priority and within a time limit. Its processes end
//! with this one. The last report is kept.

use std::path::Path;
use std::process::Stdio;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use tokio::process::Command;

use crate::context::Context;
use crate::fail::{Fail, Outcome};

/// Longest time for a report.
pub(super) const LIMIT: Duration = Duration::from_secs(300);
/// Most bytes of a text that is kept for a page.
const SHOWN_BYTES: usize = 32 << 10;

/// The report that is made or was made last.
#[derive(Debug, Clone)]
pub(super) struct Job {
    pub(super) policy: String,
    /// Label of the time that it covers.
    pub(super) label: &'static str,
    pub(super) begun: Instant,
    /// `None` while it is made.
    pub(super) report: Option<Report>,
}

#[derive(Debug, Clone, Default)]
pub(super) struct Report {
    /// Why there is none, or why it does not judge.
    pub(super) problem: Option<String>,
    pub(super) model: String,
    pub(super) recorded: String,
}

/// The only report, and the process group that makes it.
#[derive(Debug, Default)]
pub(super) struct Reports {
    job: Mutex<Option<Job>>,
    group: Mutex<Option<Pid>>,
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Reports {
    /// The report that is made or was made last.
    pub(super) fn last(&self) -> Option<Job> {
        lock(&self.job).clone()
    }

    /// Begins a report. Returns whether none is under way.
    pub(super) fn begin(&self, policy: &str, label: &'static str) -> bool {
        let mut job = lock(&self.job);
        let is_free = job.as_ref().is_none_or(|job| job.report.is_some());
        if is_free {
            *job = Some(Job {
                policy: policy.to_owned(),
                label,
                begun: Instant::now(),
                report: None,
            });
        }
        is_free
    }

    /// Makes the report that was begun, over a span such as `24h`.
    pub(super) async fn make(&self, context: &Context, policy: &str, span: &str) {
        let report = self.made(context, policy, span).await;
        let report = report.unwrap_or_else(|fail| Report {
            problem: Some(fail.what().to_owned()),
            ..Report::default()
        });
        self.end(report);
    }

    fn end(&self, report: Report) {
        if let Some(job) = lock(&self.job).as_mut() {
            job.report = Some(report);
        }
    }

    /// Ends the processes of a report that is under way.
    pub(super) fn stop(&self) {
        if let Some(group) = lock(&self.group).take() {
            // They may have ended by themselves.
            let _ = killpg(group, Signal::SIGKILL);
        }
    }

    async fn made(&self, context: &Context, policy: &str, span: &str) -> Outcome<Report> {
        let failed = |error: std::io::Error| Fail::bug(format!("no report is made: {error}"));
        let page = tempfile::NamedTempFile::new().map_err(failed)?;
        let mut command = command(context, policy, span, page.path())?;
        let child = command.spawn().map_err(failed)?;
        let leader = child.id().and_then(|id| i32::try_from(id).ok());
        *lock(&self.group) = leader.map(Pid::from_raw);
        let Ok(output) = tokio::time::timeout(LIMIT, child.wait_with_output()).await else {
            self.stop();
            let what = format!("it took more than {} s", LIMIT.as_secs());
            return Err(Fail::try_again(what).fix("choose a shorter time"));
        };
        // Its number may be another's from now on.
        *lock(&self.group) = None;
        let output = output.map_err(failed)?;
        let is_judged = output.status.success();
        Ok(Report {
            problem: (!is_judged).then(|| "the report says why it does not judge".to_owned()),
            model: shown(&output.stderr),
            recorded: shown(&output.stdout),
        })
    }
}

/// `bellows policy report` at the lowest priority, as a process group of its own.
fn command(context: &Context, policy: &str, span: &str, page: &Path) -> Outcome<Command> {
    let own = std::env::current_exe()
        .map_err(|error| Fail::bug(format!("this program is not known: {error}")))?;
    let mut command = Command::new("nice");
    command
        .args(["-n", "19"])
        .arg(own)
        .args(["policy", "report", "--since", span, "--html"])
        .arg(page)
        .arg("--state-dir")
        .arg(context.state()?.path())
        .args(["--color", "never", "--", policy])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0);
    Ok(command)
}

/// Text for a page, cut at a line if it is too long.
fn shown(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let mut kept = String::new();
    for line in text.lines() {
        if kept.len() + line.len() > SHOWN_BYTES {
            kept.push_str("… the rest is not shown here\n");
            break;
        }
        kept.push_str(line);
        kept.push('\n');
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_report_at_a_time_is_made_and_the_last_is_kept() {
        let reports = Reports::default();
        assert!(reports.begin("db", "the last day") && !reports.begin("web", "the last day"));
        reports.end(Report {
            model: "error 0.1 %".into(),
            ..Report::default()
        });
        let job = reports.last().expect("a report");
        let model = job.report.map(|report| report.model);
        assert_eq!(
            (&*job.policy, model.as_deref()),
            ("db", Some("error 0.1 %"))
        );
        assert!(reports.begin("web", "the last day"));
    }

    #[test]
    fn long_text_is_cut_at_a_line() {
        let line = format!("{}\n", "x".repeat(1_000));
        let text = shown(line.repeat(100).as_bytes());
        assert!(text.len() < SHOWN_BYTES + 100 && text.ends_with("not shown here\n"));
        assert_eq!(shown(b"a\nb\n"), "a\nb\n");
    }
}
