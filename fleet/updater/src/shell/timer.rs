//! The schedule of the timer of upgrades, as a drop-in below `/run`.

use std::io::ErrorKind;
use std::process::Command;

use super::files::{self, Files};
use super::{Error, output};
use crate::core::schedule::{MAX_BYTES, Schedule};

const TIMER: &str = "bellows-upgrade.timer";

/// Whether a schedule is in force.
#[must_use]
pub fn is_scheduled(files: &Files) -> bool {
    files.drop_in.exists()
}

/// Brings the schedule that was written into force, or takes it out of force if its file is gone.
/// Returns whether the timer changed.
///
/// # Errors
/// The schedule is refused, or a call failed. The schedule of before is then in force.
pub fn set(files: &Files) -> Result<bool, Error> {
    let path = files.schedule.display();
    let refused = |reason: String| Error::Input(format!("{path}: {reason}"));
    let text =
        files::read(&files.schedule, MAX_BYTES).map_err(|error| refused(error.to_string()))?;
    let Some(text) = text else {
        return clear(files);
    };
    let schedule = Schedule::parse(&text).map_err(|error| refused(error.to_string()))?;
    let mut analyze = Command::new("systemd-analyze");
    output(analyze.arg("calendar").arg("--").args(schedule.lines()))
        .map_err(|error| refused(error.to_string()))?;
    let drop_in = schedule.drop_in();
    if files::read(&files.drop_in, 2 * MAX_BYTES)?.as_deref() == Some(drop_in.as_bytes()) {
        return Ok(false);
    }
    files::replace(&files.drop_in, drop_in.as_bytes(), 0o644, 0o755)?;
    restart()?;
    Ok(true)
}

/// Takes the schedule out of force, so that the timer has its own times. Returns whether there was
/// one.
///
/// # Errors
/// A call failed.
pub fn clear(files: &Files) -> Result<bool, Error> {
    match std::fs::remove_file(&files.drop_in) {
        Ok(()) => {}
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
        Err(error) => {
            let path = files.drop_in.display();
            return Err(Error::Machine(format!("failed to remove {path}: {error}")));
        }
    }
    restart()?;
    Ok(true)
}

/// A timer that nobody enabled stays off.
fn restart() -> Result<(), Error> {
    output(Command::new("systemctl").arg("daemon-reload"))?;
    output(Command::new("systemctl").args(["try-restart", "--no-block", TIMER]))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Requirement: R30
    #[test]
    fn refused_schedule_leaves_the_one_of_before() {
        let folder = tempfile::tempdir().expect("a folder");
        let files = Files {
            schedule: folder.path().join("schedule"),
            drop_in: folder.path().join("timer.d/10-window.conf"),
            ..Files::default()
        };
        assert!(!set(&files).expect("nothing to do"), "there is none");
        std::fs::create_dir(folder.path().join("timer.d")).expect("a folder");
        std::fs::write(&files.drop_in, "before").expect("written");
        for bad in [&b"*-*-* 02:00:00 UTC\nUnit=x"[..], &[b'x'; 513], b""] {
            std::fs::write(&files.schedule, bad).expect("written");
            let error = set(&files).expect_err("refused");
            assert!(matches!(error, Error::Input(_)), "{error}");
        }
        let kept = std::fs::read_to_string(&files.drop_in).expect("there");
        assert_eq!(kept, "before");
        assert!(is_scheduled(&files));
    }

    #[test]
    fn clear_without_a_schedule_calls_nothing() {
        let folder = tempfile::tempdir().expect("a folder");
        let files = Files {
            drop_in: folder.path().join("none"),
            ..Files::default()
        };
        assert!(!clear(&files).expect("nothing to do"));
    }
}
