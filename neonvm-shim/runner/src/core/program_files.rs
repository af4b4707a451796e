//! Which files of programs in the guest does the runner report? Those that do not follow the
//! guest's size. The guest is not trusted: number, length and rate of its texts are bounded.

use protocol::runner::{ProgramFile, ProgramFileState};
use protocol::time::{Span, Timestamp};

/// Most files that are reported.
const MAX_FILES: usize = 8;
/// Most characters of a name …
const MAX_NAME: usize = 40;
/// … and of a text.
const MAX_DETAIL: usize = 300;
/// Shortest time between two changes of the report: each is a write of the VM's status.
const SHORTEST: Span = Span::from_secs(5);

/// The reported files.
#[derive(Debug, Default)]
pub struct ProgramFiles {
    shown: Vec<ProgramFile>,
    changed: Option<Timestamp>,
}

impl ProgramFiles {
    /// Takes what the guest reports. A change that comes too early is taken from a later report:
    /// the guest repeats its state at least once a minute.
    pub fn update(&mut self, now: Timestamp, reported: &[ProgramFile]) {
        let stands = |file: &&ProgramFile| {
            !matches!(
                file.state,
                ProgramFileState::Current | ProgramFileState::Waiting
            )
        };
        let files = reported.iter().filter(stands).take(MAX_FILES).map(bounded);
        let files: Vec<ProgramFile> = files.collect();
        let is_early = self.changed.is_some_and(|at| now.since(at) < SHORTEST);
        if files != self.shown && !is_early {
            self.shown = files;
            self.changed = Some(now);
        }
    }

    /// Files that do not follow the guest's size.
    #[must_use]
    pub fn shown(&self) -> &[ProgramFile] {
        &self.shown
    }
}

fn bounded(file: &ProgramFile) -> ProgramFile {
    let cut = |text: &str, most: usize| -> String {
        text.chars()
            .filter(|c| !c.is_control())
            .take(most)
            .collect()
    };
    ProgramFile {
        name: cut(&file.name, MAX_NAME),
        state: file.state,
        detail: cut(&file.detail, MAX_DETAIL),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(name: &str, state: ProgramFileState) -> ProgramFile {
        ProgramFile {
            name: name.to_owned(),
            state,
            detail: "why".to_owned(),
        }
    }

    fn at(seconds: u64) -> Timestamp {
        Timestamp(0) + Span::from_secs(seconds)
    }

    #[test]
    fn only_files_that_do_not_follow_are_reported() {
        let mut files = ProgramFiles::default();
        let check = file("check", ProgramFileState::CheckFailed);
        let reported = [
            file("current", ProgramFileState::Current),
            file("waiting", ProgramFileState::Waiting),
            check.clone(),
        ];
        files.update(at(0), &reported);
        assert_eq!(files.shown(), [check]);
        files.update(at(9), &[]);
        assert!(files.shown().is_empty());
    }

    #[test]
    fn guest_cannot_make_the_report_long_or_change_it_often() {
        let mut files = ProgramFiles::default();
        let long = ProgramFile {
            name: "n".repeat(1 << 20),
            state: ProgramFileState::Unknown,
            detail: "\u{1b}[2J\n".repeat(1 << 16),
        };
        files.update(at(0), &vec![long; 100]);
        assert_eq!(files.shown().len(), MAX_FILES);
        let first = &files.shown()[0];
        assert_eq!(
            (first.name.len(), first.detail.len()),
            (MAX_NAME, MAX_DETAIL)
        );
        assert!(!first.detail.contains(char::is_control));
        let other = file("other", ProgramFileState::Failed);
        files.update(at(4), std::slice::from_ref(&other));
        assert_eq!(files.shown().len(), MAX_FILES, "too early");
        files.update(at(5), std::slice::from_ref(&other));
        assert_eq!(files.shown(), [other]);
    }
}
