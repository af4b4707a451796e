//! The report of a policy of sets: what its versions answered last, by its status, and the answers
//! that the journal has.

use std::collections::BTreeMap;

use protocol::policy::Role;
use serde::Serialize;
use serde_json::{Value, json};

use super::ReportArgs;
use super::coverage::Coverage;
use crate::api::Kind;
use crate::commands::policy::set_answers::{self, SetLine};
use crate::commands::policy::sets;
use crate::context::Context;
use crate::fail::Outcome;
use crate::output::{Format, print_value};
use crate::terminal::out;

/// Answers of the journal that a report lists.
const LISTED: usize = 10;

/// Recorded answers of one version in one role.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Counts {
    /// Answers that differ from the one before, and those that were written again.
    answers: u64,
    faults: u64,
    /// Longest time from a question to its answer, microseconds.
    slowest_us: u64,
}

/// The answers that the journal has of a policy.
#[derive(Debug, Default)]
struct Recorded {
    coverage: Coverage,
    versions: BTreeMap<(Role, String), Counts>,
    last: Vec<SetLine>,
}

impl Recorded {
    fn of(lines: Vec<SetLine>, policy: &str, since: i64) -> Self {
        let mut recorded = Self::default();
        let own = lines.into_iter();
        for line in own.filter(|line| line.record.name == policy && line.at >= since) {
            let record = &line.record;
            recorded.coverage.answer(line.at);
            let version = (record.role, record.dg.clone());
            let counts = recorded.versions.entry(version).or_default();
            counts.slowest_us = counts.slowest_us.max(record.took);
            match record.fault {
                None => counts.answers += 1,
                Some(_) => counts.faults += 1,
            }
            recorded.last.push(line);
        }
        let older = recorded.last.len().saturating_sub(LISTED);
        recorded.last.drain(..older);
        recorded
    }

    fn value(&self) -> Value {
        let [from, to, _] = self.coverage.texts();
        let versions = self.versions.iter().map(|((role, digest), counts)| {
            let mut value = json!(counts);
            value["role"] = json!(role);
            value["digest"] = json!(digest);
            value
        });
        let last: Vec<Value> = self.last.iter().map(SetLine::value).collect();
        json!({
            "from": from,
            "to": to,
            "versions": versions.collect::<Vec<Value>>(),
            "last": last,
        })
    }

    fn lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for ((role, digest), counts) in &self.versions {
            lines.push(format!(
                "Journal of {digest} as {}: {} answers, {} faults, slowest {:.1} ms.",
                role.as_str(),
                counts.answers,
                counts.faults,
                counts.slowest_us as f64 / 1000.0
            ));
        }
        if !self.last.is_empty() {
            lines.push("Last answers, where they changed:".to_owned());
        }
        let last = self.last.iter();
        lines.extend(last.map(|line| format!("  {}", line.sentence())));
        lines
    }
}

/// Prints the report of a policy of sets. Returns whether it is one.
pub(crate) async fn of_sets(context: &Context, args: &ReportArgs) -> Outcome<bool> {
    // The report of a policy of VMs rests on the journal alone.
    let Ok(api) = context.api().await else {
        return Ok(false);
    };
    let Ok(object) = api.get(Kind::Policy, "", &args.name).await else {
        return Ok(false);
    };
    let Some(reports) = sets::reports(&object) else {
        return Ok(false);
    };
    let recorded = Recorded::of(set_answers::all(context)?, &args.name, args.from());
    if matches!(args.output, Format::Json | Format::Yaml) {
        let mut value = json!(object["status"]["sets"]);
        if !value.is_object() {
            value = json!({});
        }
        value["evidence"] = object["status"]["evidence"]["figures"].clone();
        value["journal"] = recorded.value();
        print_value(args.output, &value)?;
        return Ok(true);
    }
    let lines = sets::lines(&reports).into_iter();
    let lines = lines.chain(sets::figures(&object)).chain(recorded.lines());
    lines.for_each(|line| out(&line));
    Ok(true)
}

#[cfg(test)]
mod tests {
    use protocol::journal::SetsAnswered;
    use protocol::policy::Fault;

    use super::*;

    fn line(at: i64, name: &str, fault: Option<Fault>) -> SetLine {
        SetLine {
            at,
            record: SetsAnswered {
                role: Role::Shadow,
                dg: "5be1a7c0".into(),
                fault,
                r#in: 1,
                name: name.into(),
                nodes: None,
                note: None,
                ns: "a".into(),
                sets: BTreeMap::new(),
                t: 0,
                took: at.unsigned_abs(),
                why: None,
            },
        }
    }

    /// Requirement: V05
    #[test]
    fn v05_report_of_sets_counts_the_answers_of_its_time_and_policy() {
        let mut lines = vec![line(1, "web", None), line(40, "api", None)];
        lines.extend((10..30).map(|at| line(at, "web", None)));
        lines.push(line(30, "web", Some(Fault::Late)));
        let recorded = Recorded::of(lines, "web", 5);
        let counts = Counts {
            answers: 20,
            faults: 1,
            slowest_us: 30,
        };
        let version = (Role::Shadow, "5be1a7c0".to_owned());
        assert_eq!(recorded.versions, [(version, counts)].into());
        let value = recorded.value();
        assert_eq!(value["to"], "1970-01-01T00:00:00.000030Z");
        assert_eq!(value["last"].as_array().map(Vec::len), Some(LISTED));
        assert_eq!(value["last"][9]["fault"], "late");
        assert!(
            recorded
                .lines()
                .last()
                .is_some_and(|line| line.contains("late"))
        );
        assert!(Recorded::of(Vec::new(), "web", 5).lines().is_empty());
    }
}
