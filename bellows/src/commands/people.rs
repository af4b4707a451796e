//! Actions of people, changes of sets by the controller and of the fleet by its driver, from the
//! journal's parts `people`, `sets` and `fleet`.

use std::collections::BTreeSet;

use protocol::journal::{Action, Record};
use protocol::time::WallTime;
use serde_json::{Value, json};

use super::journal::{calendar, of_people, read};
use crate::context::Context;
use crate::fail::Outcome;

/// An action, with its outcome once that is recorded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Done {
    at: String,
    action: Action,
}

impl Done {
    pub(crate) fn value(&self) -> Value {
        let mut value = serde_json::to_value(&self.action).unwrap_or_default();
        if let Some(members) = value.as_object_mut() {
            members.remove("t");
        }
        value["at"] = json!(self.at);
        value
    }

    /// Whether it was done at a time or before.
    pub(crate) fn is_before(&self, until: WallTime) -> bool {
        self.at <= until.to_micro_string()
    }

    pub(crate) fn sentence(&self) -> String {
        let action = &self.action;
        let object = [&action.on, &action.to].map(|word| {
            let word = word.as_deref().unwrap_or_default();
            if word.is_empty() {
                String::new()
            } else {
                format!(" {word}")
            }
        });
        let why = action
            .why
            .as_ref()
            .map_or_else(String::new, |why| format!(" ({why})"));
        let outcome = match (action.ok, &action.note) {
            (Some(true), _) => "done".to_owned(),
            (Some(false), Some(note)) => format!("failed: {note}"),
            (Some(false), None) => "failed".to_owned(),
            (None, _) => "its outcome is not recorded".to_owned(),
        };
        format!(
            "{} {}: {}{}{why}: {outcome}",
            self.at,
            action.by,
            action.what,
            object.concat()
        )
    }
}

/// Actions on these objects, oldest first.
pub(crate) fn on(context: &Context, objects: &BTreeSet<String>) -> Outcome<Vec<Done>> {
    let mut all = all(context)?;
    all.retain(|done| {
        let on = done.action.on.as_ref();
        on.is_some_and(|on| objects.contains(on))
    });
    Ok(all)
}

/// All actions, oldest first.
pub(crate) fn all(context: &Context) -> Outcome<Vec<Done>> {
    let mut all = Vec::new();
    let mut run = None;
    for file in of_people(context)? {
        let segment = read(file)?;
        let Some(head) = &segment.scan.head else {
            continue;
        };
        let is_same_run = run.replace(head.run) == Some(head.run);
        let records = segment.scan.lines.iter();
        let records = records.filter_map(|line| line.record.as_ref().ok());
        let mut is_first = !is_same_run;
        for record in records {
            if let Record::Action(action) = record {
                add(&mut all, is_first, calendar(head.wall, action.t), action);
                is_first = false;
            }
        }
    }
    all.sort_by(|one, other| one.at.cmp(&other.at));
    Ok(all)
}

/// Adds a record. One with an outcome completes the record before it, which is of the same run
/// unless `is_first`.
fn add(all: &mut Vec<Done>, is_first: bool, at: String, action: &Action) {
    let begun = all.last_mut().filter(|_| !is_first && action.ok.is_some());
    match begun.filter(|begun| begun.action.ok.is_none()) {
        Some(begun) => {
            begun.action.ok = action.ok;
            begun.action.note.clone_from(&action.note);
        }
        None => all.push(Done {
            at,
            action: action.clone(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn action(ok: Option<bool>, note: Option<&str>) -> Action {
        Action {
            by: "ann (uid 1000)".into(),
            what: "policy apply".into(),
            note: note.map(str::to_owned),
            ok,
            on: Some("db".into()),
            to: Some("5be1a7c0".into()),
            why: Some("a try".into()),
            ..Action::default()
        }
    }

    fn sentences(records: &[(bool, Action)]) -> Vec<String> {
        let mut all = Vec::new();
        for (is_first, action) in records {
            add(&mut all, *is_first, "10:00".into(), action);
        }
        all.iter().map(Done::sentence).collect()
    }

    #[test]
    fn outcome_completes_the_action_of_its_own_run() {
        let records = [
            (true, action(None, None)),
            (true, action(None, None)),
            (false, action(Some(true), None)),
            (true, action(None, None)),
            (false, action(Some(false), Some("policy db: full"))),
        ];
        let begin = "10:00 ann (uid 1000): policy apply db 5be1a7c0 (a try): ";
        let expected = [
            format!("{begin}its outcome is not recorded"),
            format!("{begin}done"),
            format!("{begin}failed: policy db: full"),
        ];
        assert_eq!(sentences(&records), expected);
    }

    #[test]
    fn outcome_without_its_action_stands_alone() {
        let records = [(true, action(None, None)), (true, action(Some(true), None))];
        assert_eq!(sentences(&records).len(), 2);
    }
}
