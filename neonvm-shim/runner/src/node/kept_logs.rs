//! Keeps the logs of failed VMs in `failed/` of the state directory.

use std::path::Path;

use protocol::runner::{ExitReason, ExitReport};

use crate::shell::record::private_dir;

/// Number of failed VMs whose logs are kept.
const KEPT_LOGS: usize = 16;

/// Keeps the logs of a failed VM: the controller deletes its pod at once, and with it all evidence.
pub(super) fn keep_logs(state_dir: &Path, dir: &Path, end: Option<&ExitReport>) {
    let failed = end.is_some_and(|report| !report.success && report.reason != ExitReason::Killed);
    let (true, Some(name)) = (failed, dir.file_name()) else {
        return;
    };
    let root = state_dir.join("failed");
    let to = root.join(name);
    // Failures here must not delay the pod's end.
    if private_dir(&to).is_err() {
        return;
    }
    for file in [
        "console.log",
        "console.log.1",
        "guest.log",
        "guest.log.1",
        "qemu.log",
        "runner.log",
        "exit.json",
        "runner.json",
    ] {
        let _ = std::fs::rename(dir.join(file), to.join(file));
    }
    let Ok(entries) = std::fs::read_dir(&root) else {
        return;
    };
    let mut kept: Vec<_> = entries
        .flatten()
        .filter_map(|entry| Some((entry.metadata().ok()?.modified().ok()?, entry.path())))
        .collect();
    kept.sort();
    let surplus = kept.len().saturating_sub(KEPT_LOGS);
    for (_, path) in kept.into_iter().take(surplus) {
        let _ = std::fs::remove_dir_all(path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logs_of_failures_are_kept_and_bounded() {
        let temp = tempfile::tempdir().unwrap();
        let report = |success, reason| ExitReport {
            success,
            reason,
            code: None,
            message: String::new(),
        };
        for n in 0..KEPT_LOGS + 3 {
            let dir = temp.path().join(format!("vms/default_p{n}"));
            std::fs::create_dir_all(&dir).unwrap();
            std::fs::write(dir.join("console.log"), "x").unwrap();
            keep_logs(
                temp.path(),
                &dir,
                Some(&report(false, ExitReason::GuestPanic)),
            );
        }
        let kept = || {
            std::fs::read_dir(temp.path().join("failed"))
                .unwrap()
                .count()
        };
        assert_eq!(kept(), KEPT_LOGS);
        let dir = temp.path().join("vms/default_good");
        std::fs::create_dir_all(&dir).unwrap();
        keep_logs(
            temp.path(),
            &dir,
            Some(&report(true, ExitReason::Requested)),
        );
        assert!(!temp.path().join("failed/default_good").exists());
    }
}
