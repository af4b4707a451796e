//! The lock on a state directory. The kernel releases it when its holder dies.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Seek, Write};

use crate::fail::{Fail, Outcome};
use crate::places::StateDir;

/// The lock, held while this value lives.
#[derive(Debug)]
pub(crate) struct StateLock(#[expect(dead_code, reason = "the open file is the lock")] File);

/// Holder of the lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Holder {
    Nobody,
    /// A process. `None` between its taking of the lock and its writing of the PID.
    Process(Option<i32>),
}

impl StateLock {
    /// Takes the lock without waiting.
    ///
    /// # Errors
    ///
    /// 75 if another process holds it, 69 if the file cannot be opened.
    pub(crate) fn take(state: &StateDir) -> Outcome<Self> {
        let path = state.lock();
        let broken = |error: std::io::Error| Fail::missing(format!("{}: {error}", path.display()));
        let mut file = open(state, true).map_err(broken)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(held(state, read_pid(&mut file))),
            Err(TryLockError::Error(error)) => return Err(broken(error)),
        }
        file.set_len(0).map_err(broken)?;
        writeln!(file, "{}", std::process::id()).map_err(broken)?;
        Ok(Self(file))
    }
}

/// Reads who holds the lock. Takes it only for a moment.
pub(crate) fn holder(state: &StateDir) -> Holder {
    let Ok(mut file) = open(state, false) else {
        return Holder::Nobody;
    };
    match file.try_lock_shared() {
        Ok(()) | Err(TryLockError::Error(_)) => Holder::Nobody,
        Err(TryLockError::WouldBlock) => Holder::Process(read_pid(&mut file)),
    }
}

fn open(state: &StateDir, create: bool) -> std::io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt;
    OpenOptions::new()
        .read(true)
        .write(create)
        .create(create)
        .truncate(false)
        .mode(0o600)
        .open(state.lock())
}

fn read_pid(file: &mut File) -> Option<i32> {
    let mut text = String::new();
    file.rewind().ok()?;
    file.take(32).read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}

fn held(state: &StateDir, pid: Option<i32>) -> Fail {
    let who = pid.map_or_else(
        || "another process".to_owned(),
        |pid| format!("process {pid}"),
    );
    Fail::try_again(format!(
        "{} is in use: {who} holds {}",
        state.path().display(),
        state.lock().display()
    ))
    .rule("one `bellows up` owns a state directory")
    .fix("end it with `bellows down`, or give this one another --state-dir")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lock_names_its_holder_and_can_be_taken_after_release() {
        let dir = tempfile::tempdir().unwrap();
        let state = StateDir::choose(Some(dir.path())).unwrap();
        assert_eq!(holder(&state), Holder::Nobody);
        let lock = StateLock::take(&state).unwrap();
        let me = i32::try_from(std::process::id()).unwrap();
        assert_eq!(holder(&state), Holder::Process(Some(me)));
        let fail = StateLock::take(&state).unwrap_err();
        assert_eq!(fail.exit() as u8, 75);
        assert!(
            fail.what().contains(&format!("process {me} holds")),
            "{fail}"
        );
        drop(lock);
        assert_eq!(holder(&state), Holder::Nobody);
        StateLock::take(&state).unwrap();
    }

    #[test]
    fn a_dead_holders_text_does_not_lock() {
        let dir = tempfile::tempdir().unwrap();
        let state = StateDir::choose(Some(dir.path())).unwrap();
        std::fs::write(state.lock(), "4194304000\n").unwrap();
        assert_eq!(holder(&state), Holder::Nobody);
        let _lock = StateLock::take(&state).unwrap();
        let text = std::fs::read_to_string(state.lock()).unwrap();
        assert_eq!(text.trim(), std::process::id().to_string());
    }
}
