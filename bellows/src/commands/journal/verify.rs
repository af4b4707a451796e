//! `bellows journal verify`: is every line whole, and does everything follow what was before it?

use std::path::Path;

use daemon_kit::journal::ActionChain;
use daemon_kit::journal::files::SegmentFile;
use protocol::journal::{Head, Record, Scan, hash_text};

use super::segment::read;
use crate::fail::{Fail, Outcome};
use crate::terminal::{err, out};

/// What was read so far of the part that is read.
struct Chains {
    part: Option<String>,
    /// Number of the segment before, and the hash of its last line.
    before: Option<(u64, u32)>,
    run: Option<u64>,
    actions: ActionChain,
}

impl Chains {
    const fn new() -> Self {
        Self {
            part: None,
            before: None,
            run: None,
            actions: ActionChain::of_running(),
        }
    }

    /// Begins with a segment. Each part has a chain of its own, and so has each run in it.
    fn begin(&mut self, head: Option<&Head>) {
        let part = head.map(|head| head.part.clone());
        if part != self.part {
            *self = Self {
                part,
                ..Self::new()
            };
        }
        let Some(head) = head else {
            return;
        };
        if self.run.replace(head.run) != Some(head.run) {
            let has_all = self.before.is_some() || head.prev.is_none();
            self.actions = match has_all {
                true => ActionChain::of_new_run(),
                false => ActionChain::of_running(),
            };
        }
    }
}

pub(super) fn run(found: Vec<SegmentFile>) -> Outcome {
    let (mut problems, mut lines, mut gaps) = (0_u64, 0, 0);
    let count = found.len();
    let mut chains = Chains::new();
    let mut found = found.into_iter().peekable();
    while let Some(file) = found.next() {
        let folder = file.path.parent().map(Path::to_owned);
        let is_followed = found
            .peek()
            .is_some_and(|next| next.path.parent() == folder.as_deref());
        let segment = read(file)?;
        let (name, scan) = (segment.file.path.display(), &segment.scan);
        let mut faults: Vec<String> = scan
            .damages
            .iter()
            .map(|one| daemon_kit::chain(one))
            .collect();
        chains.begin(scan.head.as_ref());
        for line in &scan.lines {
            match &line.record {
                Err(error) => faults.push(format!("the line at byte {}: {error}", line.offset)),
                Ok(Record::Gap(gap)) => {
                    gaps += 1;
                    out(&format!("{name}: a gap of {} ({:?})", gap.n, gap.why));
                }
                Ok(Record::Action(action)) if !chains.actions.follows(action) => {
                    faults.push(format!(
                        "the line at byte {} does not follow the action before it: a line was \
                         cut, moved or edited",
                        line.offset
                    ));
                }
                Ok(_) => {}
            }
        }
        // The last line of a folder's newest segment may be incomplete.
        if scan.torn > 0 && is_followed {
            faults.push(format!("{} bytes at its end are no line", scan.torn));
        }
        faults.extend(broken_link(scan, chains.before));
        chains.before = scan.head.as_ref().map(|head| head.seq).zip(scan.last);
        lines += scan.lines.len();
        for fault in faults {
            problems += 1;
            err(&format!("{name}: {fault}"));
        }
    }
    if problems > 0 {
        return Err(Fail::not_so(format!(
            "the journal is damaged in {problems} places"
        )));
    }
    out(&format!(
        "{count} segments, {lines} lines, {gaps} gaps: every line and every link is good"
    ));
    Ok(())
}

/// How a segment does not follow the one before, given by its number and the hash of its last line.
fn broken_link(scan: &Scan, before: Option<(u64, u32)>) -> Option<String> {
    let link = scan.head.as_ref()?.prev?;
    let (seq, hash) = before?;
    if link.seq != seq {
        return Some(format!(
            "segment {} before it is missing; the one before is {seq}",
            link.seq
        ));
    }
    (link.h != hash).then(|| {
        format!(
            "its chain names {} as the end of segment {seq}, which ends in {}",
            hash_text(link.h),
            hash_text(hash)
        )
    })
}

#[cfg(test)]
mod tests {
    use daemon_kit::clock::Clock;
    use daemon_kit::journal::{Identity, Journal, Limits, files};
    use protocol::journal::{Action, crc};
    use protocol::units::Resources;

    use super::*;

    /// Writes a run with this many actions.
    async fn write(folder: &Path, run: u64, count: u64) {
        let identity = Identity {
            part: "fleet".into(),
            node: "n".into(),
            build: "test".into(),
            compute_unit: Resources::default(),
            run,
        };
        let journal = Journal::open(
            folder,
            identity,
            Limits::default(),
            Clock::new(),
            Vec::new(),
        );
        let journal = journal.expect("a journal");
        for t in 0..count {
            let action = Action {
                by: "fleet".to_owned(),
                what: "fleet turn".to_owned(),
                on: Some(format!("default/vm-{t}")),
                t,
                ..Action::default()
            };
            assert!(journal.append_action(action).is_some(), "it has room");
        }
        journal.close().await;
    }

    fn verified(folder: &Path) -> Outcome {
        run(files::list(folder).expect("files"))
    }

    /// A line with another name and a checksum that holds.
    fn edited(line: &str) -> String {
        let (_, json) = line.split_once(' ').expect("a checksum and a text");
        let json = json.replace("default/vm-", "default/xx-");
        format!("{} {json}", hash_text(crc(0, json.as_bytes())))
    }

    /// Plants faults in the newest segment, one after the other, and returns their number. Nothing
    /// of the run follows its last line.
    fn plant(folder: &Path) -> usize {
        let newest = files::list(folder).expect("files").pop();
        let path = newest.expect("a segment").path;
        let text = std::fs::read_to_string(&path).expect("it is not packed so far");
        let whole: Vec<&str> = text.lines().collect();
        let mut planted = 0;
        for at in 1..whole.len() - 1 {
            let mut cut = whole.clone();
            cut.remove(at);
            let mut moved = whole.clone();
            moved.swap(at, at + 1);
            let of_edit = edited(whole[at]);
            let mut of_edited = whole.clone();
            of_edited[at] = &of_edit;
            for lines in [cut, moved, of_edited] {
                std::fs::write(&path, lines.join("\n") + "\n").expect("written");
                assert!(verified(folder).is_err(), "line {at}: {lines:?}");
                planted += 1;
            }
        }
        std::fs::write(&path, &text).expect("written");
        planted
    }

    /// Requirement: B49
    #[tokio::test]
    async fn cut_moved_or_edited_line_of_a_journal_is_found() {
        let folder = tempfile::tempdir().expect("a folder");
        for run in 1..3 {
            write(folder.path(), run, 4).await;
            assert_eq!(verified(folder.path()), Ok(()));
            assert_eq!(plant(folder.path()), 3 * 3);
            assert_eq!(verified(folder.path()), Ok(()));
        }
    }

    /// Segments that are no longer kept are no fault.
    ///
    /// Requirement: B49
    #[tokio::test]
    async fn journal_whose_first_segments_are_gone_is_good() {
        let folder = tempfile::tempdir().expect("a folder");
        write(folder.path(), 1, 4).await;
        write(folder.path(), 2, 3).await;
        let segments = files::list(folder.path()).expect("files");
        std::fs::remove_file(&segments[0].path).expect("removed");
        assert_eq!(verified(folder.path()), Ok(()));
    }
}
