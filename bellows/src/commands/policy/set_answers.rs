//! Answers about sets, from the journal's part `sets`. Answers that stayed the same have a line
//! now and then.

use protocol::journal::{Record, SetCount, SetsAnswered};
use protocol::policy::Role;
use protocol::time::WallTime;
use serde_json::{Value, json};

use crate::commands::journal::{micros, of_sets, read};
use crate::context::Context;
use crate::fail::Outcome;

/// A line of the journal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SetLine {
    /// Time of the answer, microseconds since 1970.
    pub(crate) at: i64,
    pub(crate) record: SetsAnswered,
}

/// What a version said about one set, and since when.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Standing {
    since: i64,
    line: SetLine,
    name: String,
}

/// All lines, oldest first. None in a cluster, whose controllers keep no journal.
pub(crate) fn all(context: &Context) -> Outcome<Vec<SetLine>> {
    let mut all = Vec::new();
    if context.asks_cluster() {
        return Ok(all);
    }
    for file in of_sets(context)? {
        let segment = read(file)?;
        let Some(head) = &segment.scan.head else {
            continue;
        };
        for line in segment.scan.lines {
            if let Ok(Record::SetsAnswered(record)) = line.record {
                all.push(SetLine {
                    at: micros(head.wall, record.t),
                    record: *record,
                });
            }
        }
    }
    all.sort_by_key(|line| line.at);
    Ok(all)
}

impl SetLine {
    fn time(&self) -> String {
        WallTime(self.at).to_micro_string()
    }

    pub(crate) fn value(&self) -> Value {
        let mut value = json!(self.record);
        if let Some(members) = value.as_object_mut() {
            members.remove("t");
        }
        value["at"] = json!(self.time());
        value
    }

    /// The whole line in words.
    pub(crate) fn sentence(&self) -> String {
        let record = &self.record;
        let role = match record.role {
            Role::Live => "decides",
            Role::Shadow => "is a candidate",
        };
        let begin = format!("{} {} {role}: ", self.time(), record.dg);
        if let Some(text) = self.fault() {
            return format!("{begin}no valid answer about {}: {text}", record.ns);
        }
        let sets = record.sets.iter();
        let sets = sets.map(|(name, set)| format!("{}/{name} {}", record.ns, counts(set)));
        let nodes = record.nodes.map(|nodes| {
            let why = record.why.as_deref().unwrap_or_default();
            format!("it wants {nodes} nodes ({why})")
        });
        let parts: Vec<String> = sets.chain(nodes).collect();
        if parts.is_empty() {
            return format!("{begin}no set of {} is named", record.ns);
        }
        begin + &parts.join("; ")
    }

    fn fault(&self) -> Option<String> {
        let fault = self.record.fault?.word();
        Some(match &self.record.note {
            Some(note) => format!("{fault}: {note}"),
            None => fault.to_owned(),
        })
    }
}

/// Count, version and command of an answer about a set.
fn counts(set: &SetCount) -> String {
    let mut text = format!("has {} members, wants {}", set.has, set.want);
    if let Some(to) = set.to {
        text += &format!(", gets {to}");
    }
    if let Some(version) = set.v {
        text += &format!(", version {version}");
    }
    if let Some(command) = &set.command {
        text += &format!(", command {command}");
    }
    text
}

/// What a role says about a set at the end of these lines. A line after which the set was not named
/// any more, and a fault, count too.
pub(crate) fn standing(
    lines: &[SetLine],
    role: Role,
    (namespace, name): (&str, &str),
    policy: &str,
) -> Option<Standing> {
    let is_of_it = |line: &&SetLine| {
        let record = &line.record;
        record.role == role && record.ns == namespace && record.name == policy
    };
    let mut own = lines.iter().rev().filter(is_of_it);
    let last = own.next()?;
    let said = |line: &SetLine| {
        let set = line.record.sets.get(name);
        let set = set.map(|set| (set.want, set.v, set.command.clone(), set.kv));
        (line.record.dg.clone(), line.record.fault, set)
    };
    let same = own.take_while(|line| said(line) == said(last));
    Some(Standing {
        since: same.last().unwrap_or(last).at,
        line: last.clone(),
        name: name.to_owned(),
    })
}

impl Standing {
    pub(crate) fn value(&self) -> Value {
        json!({
            "since": WallTime(self.since).to_micro_string(),
            "policy": self.line.record.name,
            "digest": self.line.record.dg,
            "fault": self.line.record.fault,
            "note": self.line.record.note,
            "answer": self.line.record.sets.get(&self.name),
            "last": self.line.time(),
        })
    }

    pub(crate) fn sentence(&self) -> String {
        let record = &self.line.record;
        let since = WallTime(self.since).to_micro_string();
        let version = match record.role {
            Role::Live => format!("Policy {} ({})", record.name, record.dg),
            Role::Shadow => format!("Candidate {} of policy {}", record.dg, record.name),
        };
        let (wants, keeps) = match record.role {
            Role::Live => ("wants", "it keeps its count"),
            Role::Shadow => ("would want", "that changes nothing"),
        };
        if let Some(text) = self.line.fault() {
            return format!("{version} has no valid answer since {since}, so {keeps}: {text}.");
        }
        let Some(set) = record.sets.get(&self.name) else {
            return format!("{version} does not name it since {since}, so {keeps}.");
        };
        let mut text = format!("{version} {wants} {} members since {since}", set.want);
        if let Some(version) = set.v {
            text += &format!(", version {version}");
        }
        if let Some(command) = &set.command {
            text += &format!(", command {command}");
        }
        match set.to.filter(|to| *to != set.want) {
            Some(to) => format!(
                "{text}; within its rates and limits it got {to} of {}.",
                set.has
            ),
            None => text + ".",
        }
    }
}

#[cfg(test)]
mod tests {
    use protocol::policy::Fault;

    use super::*;

    fn line(at: i64, role: Role, want: u32) -> SetLine {
        let set = SetCount {
            has: 2,
            to: (role == Role::Live).then_some(3),
            want,
            ..SetCount::default()
        };
        SetLine {
            at: at * 1_000_000,
            record: SetsAnswered {
                role,
                dg: "5be1a7c0".into(),
                fault: None,
                r#in: 1,
                name: "web".into(),
                nodes: None,
                note: None,
                ns: "a".into(),
                sets: [("web".to_owned(), set)].into(),
                t: 0,
                took: 400,
                why: None,
            },
        }
    }

    fn sentence(lines: &[SetLine], role: Role) -> Option<String> {
        standing(lines, role, ("a", "web"), "web").map(|one| one.sentence())
    }

    /// Requirement: V05
    #[test]
    fn v05_why_of_a_set_names_the_answer_and_since_when() {
        let mut lines = vec![
            line(1, Role::Live, 4),
            line(2, Role::Live, 5),
            line(3, Role::Shadow, 1),
            line(4, Role::Live, 5),
        ];
        let live = sentence(&lines, Role::Live).unwrap();
        assert_eq!(
            live,
            "Policy web (5be1a7c0) wants 5 members since 1970-01-01T00:00:02.000000Z; \
             within its rates and limits it got 3 of 2."
        );
        let shadow = sentence(&lines, Role::Shadow).unwrap();
        assert!(
            shadow.contains("would want 1 members since 1970-01-01T00:00:03"),
            "{shadow}"
        );
        let mut faulty = line(9, Role::Live, 5);
        faulty.record.sets.clear();
        faulty.record.fault = Some(Fault::Late);
        faulty.record.note = Some("no answer in 50 ms".into());
        lines.push(faulty);
        let live = sentence(&lines, Role::Live).unwrap();
        assert!(
            live.ends_with("keeps its count: late: no answer in 50 ms."),
            "{live}"
        );
        assert_eq!(standing(&lines, Role::Live, ("b", "web"), "web"), None);
        assert_eq!(standing(&lines, Role::Live, ("a", "web"), "api"), None);
    }

    #[test]
    fn line_is_a_sentence_about_each_set_that_it_names() {
        let mut one = line(1, Role::Live, 5);
        one.record.nodes = Some(7);
        one.record.why = Some("load".into());
        assert_eq!(
            one.sentence(),
            "1970-01-01T00:00:01.000000Z 5be1a7c0 decides: a/web has 2 members, wants 5, gets 3; \
             it wants 7 nodes (load)"
        );
        assert_eq!(one.value()["at"], "1970-01-01T00:00:01.000000Z");
        (one.record.nodes, one.record.sets) = (None, [].into());
        assert!(one.sentence().ends_with("no set of a is named"));
    }
}
