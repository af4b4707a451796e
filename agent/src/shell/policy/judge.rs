//! Judges the hours of candidates: runs `bellows-policy judge` over this agent's journal, one hour
//! of one candidate at a time. What it says and what was counted is in the agent's state.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{MutexGuard, PoisonError};
use std::time::Duration;

use policy_contract::Digest;
use policy_contract::tally::{Evidence, VersionReport};
use tokio::process::Command;
use tokio_util::sync::CancellationToken;

use super::runtime::{PolicyRuntime, STARVED_FOR};
use super::sources;
use super::worker::find_program;
use crate::core::tallies::{Job, Moment, Tallies, Version};
use crate::shell::journal::PART;

/// Between two looks for an hour that ended.
const LOOK_EVERY: Duration = Duration::from_secs(30);
/// Time limit of one run.
const LIMIT: Duration = Duration::from_secs(60);
/// Longest text of a failure, characters.
const MAX_TEXT: usize = 200;

impl PolicyRuntime {
    pub(super) fn tallies(&self) -> MutexGuard<'_, Tallies> {
        self.0
            .tallies
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn moment(&self) -> Moment {
        Moment {
            now: self.0.clock.now(),
            wall: self.0.clock.wall(),
        }
    }

    /// Whether no VM of the node was refused a size of late.
    pub(super) fn has_headroom(&self) -> bool {
        let now = self.0.clock.now();
        let nodes = self.nodes();
        let mut shortages = nodes.values().flatten();
        shortages.all(|(at, units)| now.since(*at) >= STARVED_FOR || units.0 == 0)
    }

    /// What this agent reports of each version.
    pub(in crate::shell) fn reports(&self) -> Vec<VersionReport> {
        let links = [&self.0.live, &self.0.shadow];
        let problem = |digest: &Digest| {
            // Texts quote sources, and the pods of a cluster may read the reports.
            let aside = links.iter().find_map(|link| link.set_aside(digest));
            aside.map(|(fault, _)| fault.word().to_owned())
        };
        let mut reports = self.tallies().reports(self.moment(), problem);
        let worker = self.worker_problem();
        for report in &mut reports {
            report.cut_limits = self.cut_limits_of(&report.policy);
            // It is no fault of the version, so it is no alarm.
            report.problem = report.problem.take().or_else(|| worker.clone());
        }
        reports
    }

    /// Follows the versions of all policies, and no others.
    pub(super) fn follow_versions(&self) {
        let known = self.0.known.borrow();
        let mut used = BTreeMap::new();
        for versions in known.policies.values().filter_map(|one| one.as_ref().ok()) {
            let live = versions.live.iter().map(|policy| (policy, false));
            let candidate = versions.candidate.iter().map(|policy| (policy, true));
            for (policy, is_candidate) in live.chain(candidate) {
                used.insert(policy.version(), is_candidate);
            }
        }
        drop(known);
        self.tallies().follow(self.moment(), &used);
    }
}

/// Judges hours as they end, until cancelled. Without a journal there is nothing to do.
pub(super) async fn run(
    runtime: PolicyRuntime,
    journal: Option<PathBuf>,
    program: Option<PathBuf>,
    cancel: CancellationToken,
) {
    let Some(journal) = journal else { return };
    loop {
        tokio::select! {
            () = tokio::time::sleep(LOOK_EVERY) => {}
            () = cancel.cancelled() => return,
        }
        loop {
            let moment = runtime.moment();
            let Some(job) = runtime.tallies().next_job(moment.wall) else {
                break;
            };
            let result = tokio::select! {
                result = judge(&job, &journal, program.as_deref()) => result,
                () = cancel.cancelled() => return,
            };
            let Version { policy, digest } = &job.version;
            let (digest, from) = (digest.short(), job.from.to_string());
            match &result {
                Ok(_) => tracing::info!(policy, digest, from, "an hour is judged"),
                Err(problem) => tracing::warn!(policy, digest, from, problem, "no judgement"),
            }
            let now = runtime.moment().now;
            runtime.tallies().judged(now, &job, result);
        }
    }
}

/// Runs the program over one hour.
async fn judge(job: &Job, journal: &Path, program: Option<&Path>) -> Result<Evidence, String> {
    let program = program.map_or_else(find_program, |path| Ok(path.to_owned()))?;
    let source = sources::path_of(&journal.join(sources::FOLDER), &job.version.digest);
    let mut command = Command::new(&program);
    command.arg("judge").arg("--policy").arg(source);
    command.args(["--from", &job.from.to_string(), "--to", &job.to.to_string()]);
    for vm in &job.vms {
        command.args(["--vm", vm]);
    }
    for vm in &job.decided {
        command.args(["--canary", vm]);
    }
    let output = command
        .arg(journal.join(PART))
        .env_clear()
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .output();
    let output = tokio::time::timeout(LIMIT, output)
        .await
        .map_err(|_| {
            format!(
                "bellows-policy judge had no result within {} s",
                LIMIT.as_secs()
            )
        })?
        .map_err(|error| format!("{} could not be started: {error}", program.display()))?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr);
        let text: String = text.trim().chars().take(MAX_TEXT).collect();
        tracing::warn!(text, "bellows-policy judge has failed");
        return Err(format!("bellows-policy judge ended with {}", output.status));
    }
    let evidence: Evidence = serde_json::from_slice(&output.stdout)
        .map_err(|error| format!("bellows-policy judge gave no figures: {error}"))?;
    if evidence.candidate.vm_hours > 0.0 {
        Ok(evidence)
    } else {
        Err("the journal shows no time of the hour".to_owned())
    }
}
