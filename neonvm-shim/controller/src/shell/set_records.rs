//! Records of sets: lines of the journal's part `sets` on one machine, log lines everywhere.
//!
//! A line follows what it is about, so a process that ends in between leaves no line. The status of
//! the set has the state all the same.

use daemon_kit::clock::Clock;
use daemon_kit::journal::Journal;
use protocol::journal::{Action as Line, Record};

use crate::core::Refusal;
use crate::core::set::{Action, Change, SetKey};

/// Author of the lines.
const AUTHOR: &str = "controller";
/// Most bytes of a text in a line.
const MAX_TEXT_BYTES: usize = 1_000;

/// Writer of records. Without a journal it writes log lines alone.
#[derive(Debug, Clone)]
pub(super) struct SetRecords {
    pub(super) journal: Option<Journal>,
    pub(super) clock: Clock,
}

/// A change of a member that is under way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct MemberChange {
    what: &'static str,
    member: String,
    why: String,
}

impl MemberChange {
    /// `None` for an action that changes no member.
    pub(super) fn of(action: &Action) -> Option<Self> {
        let (what, member, why) = match action {
            Action::Create { name, why, .. } => ("set member create", name, why),
            Action::Delete { name, why, .. } => ("set member delete", name, why),
            Action::WriteStatus { .. } | Action::WriteMembers { .. } => return None,
        };
        Some(Self {
            what,
            member: member.clone(),
            why: why.to_string(),
        })
    }
}

impl SetRecords {
    /// Records a change of a set.
    pub(super) fn changed(&self, set: &SetKey, change: &Change) {
        let (namespace, name) = set;
        tracing::info!(namespace, set = name, change = %change, "set changed");
        let (what, note) = match change {
            Change::Count { .. } => ("set count", None),
            Change::Halted { why, .. } => ("set upgrade", Some(why)),
            _ => ("set upgrade", None),
        };
        self.write(Line {
            what: what.to_owned(),
            on: Some(format!("{namespace}/{name}")),
            to: Some(change.to_string()),
            ok: Some(note.is_none()),
            note: note.map(|why| shortened(why)),
            ..Line::default()
        });
    }

    /// Records the end of a change of a member.
    pub(super) fn ended(&self, set: &SetKey, change: MemberChange, failure: Option<&Refusal>) {
        let note = failure.map(|refusal| match refusal {
            Refusal::Failed { message, .. } => shortened(message),
            Refusal::Conflict => "the object has changed".to_owned(),
            Refusal::Gone => "the object is gone".to_owned(),
        });
        self.write(Line {
            what: change.what.to_owned(),
            on: Some(format!("{}/{}", set.0, change.member)),
            to: Some(format!("of set {}", set.1)),
            why: Some(change.why),
            ok: Some(note.is_none()),
            note,
            ..Line::default()
        });
    }

    fn write(&self, line: Line) {
        let Some(journal) = &self.journal else {
            return;
        };
        let line = Line {
            by: AUTHOR.to_owned(),
            t: self.clock.now().0,
            ..line
        };
        // The journal counts a line that it loses.
        drop(journal.append(&Record::Action(line), false));
    }
}

fn shortened(text: &str) -> String {
    text[..text.floor_char_boundary(MAX_TEXT_BYTES)].to_owned()
}

#[cfg(test)]
mod tests {
    use daemon_kit::journal::{Identity, Limits, files};
    use protocol::units::Resources;

    use super::*;
    use crate::core::set::Reason;

    /// Requirement: V15
    #[tokio::test]
    async fn v15_journal_has_each_change_of_a_set_with_its_reason() {
        let folder = tempfile::tempdir().expect("a folder");
        let clock = Clock::new();
        let identity = Identity {
            part: "sets".into(),
            node: "n".into(),
            build: "test".into(),
            compute_unit: Resources::default(),
            run: 1,
        };
        let limits = Limits::default();
        let journal = Journal::open(folder.path(), identity, limits, clock, Vec::new());
        let journal = journal.expect("a journal");
        let records = SetRecords {
            journal: Some(journal.clone()),
            clock,
        };
        let set = ("a".to_owned(), "web".to_owned());
        records.changed(&set, &Change::Count { from: 1, to: 2 });
        let action = Action::Create {
            name: "web-1".into(),
            vm: serde_json::Value::Null,
            why: Reason::Count { wanted: 2 },
        };
        let change = MemberChange::of(&action).expect("a change");
        records.ended(&set, change.clone(), None);
        let refusal = Refusal::Failed {
            message: "quota".into(),
            permanent: true,
        };
        records.ended(&set, change, Some(&refusal));
        let why = "ä".repeat(MAX_TEXT_BYTES);
        records.changed(&set, &Change::Halted { to: 2, why });
        journal.close().await;

        let files = files::list(folder.path()).expect("files");
        let bytes = files::read(&files[0].path).expect("bytes");
        let scan = protocol::journal::scan(&bytes);
        let lines = scan.lines.iter().filter_map(|line| match &line.record {
            Ok(Record::Action(line)) => Some(line.clone()),
            _ => None,
        });
        let lines: Vec<Line> = lines.collect();
        let texts = lines.iter().map(|line| {
            let text = |value: &Option<String>| value.clone().unwrap_or_default();
            let (on, why) = (text(&line.on), text(&line.why));
            format!("{} {on} ({why}) {:?}", line.what, line.ok)
        });
        assert_eq!(
            texts.collect::<Vec<_>>(),
            [
                "set count a/web () Some(true)",
                "set member create a/web-1 (2 members are wanted) Some(true)",
                "set member create a/web-1 (2 members are wanted) Some(false)",
                "set upgrade a/web () Some(false)",
            ]
        );
        assert_eq!(lines[0].to.as_deref(), Some("1 to 2 members"));
        assert_eq!(lines[2].note.as_deref(), Some("quota"));
        let long = lines[3].note.as_ref().map(String::len);
        assert_eq!(long, Some(MAX_TEXT_BYTES));
    }
}
