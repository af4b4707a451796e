//! What versions of a policy of sets answered, as the policy's status has it.

use policy_contract::tally::Evidence;
use policy_contract::{Digest, Scope};
use policy_controller::core::sets::{SetReport, SetSaid};
use serde::Deserialize as _;
use serde_json::Value;

use super::object::contract_spec;

/// Reports of a policy of sets, with the words for their roles. `None` for a policy of VMs.
pub(super) fn reports(object: &Value) -> Option<Vec<(&'static str, SetReport)>> {
    let spec = contract_spec(object).ok()?;
    if spec.scope != Scope::Set {
        return None;
    }
    let sets = &object["status"]["sets"];
    let roles = [("live", "decides"), ("shadow", "is a candidate")];
    let reports = roles.into_iter().filter_map(|(role, word)| {
        let report = SetReport::deserialize(&sets[role]).ok()?;
        Some((word, report))
    });
    Some(reports.collect())
}

/// Figures of the candidate that the gate decides by, in a sentence.
pub(super) fn figures(object: &Value) -> Option<String> {
    let status = &object["status"];
    let digest = status["candidate"]["digest"].as_str()?;
    let seen = Evidence::deserialize(&status["evidence"]["figures"]).unwrap_or_default();
    let digest = digest.get(..8).unwrap_or_default();
    if seen.hours == 0 {
        return Some(format!("No whole hour of {digest} is judged so far."));
    }
    Some(format!(
        "{} hours of {digest}: {:.1} unit-hours wanted, {:.1} by the live version or as the sets had it, {:.1} in truth; {} reversals, {} by the live version; fewer members for {:.0} minutes.",
        seen.hours,
        seen.candidate.unit_hours,
        seen.live.unit_hours,
        seen.others.unit_hours,
        seen.candidate.reversals,
        seen.live.reversals,
        seen.fewer_minutes,
    ))
}

/// Sentences of each version about one set, `namespace/name`.
pub(crate) fn about(object: &Value, set: &str) -> Vec<String> {
    let reports = reports(object).unwrap_or_default();
    let of_it = reports.iter().filter_map(|(word, report)| {
        let said = report.sets.get(set)?;
        let digest = report.digest.get(..8).unwrap_or_default();
        Some(format!("{digest} {word}: it {}.", sentence(said)))
    });
    of_it.collect()
}

/// What is wrong with a version of a policy of sets.
pub(super) fn problem(object: &Value, digest: &Digest) -> Option<String> {
    let digest = digest.to_string();
    let mut all = reports(object)?.into_iter();
    let (_, own) = all.find(|(_, report)| report.digest == digest)?;
    own.problem
}

/// Sentences about each version.
pub(super) fn lines(reports: &[(&'static str, SetReport)]) -> Vec<String> {
    if reports.is_empty() {
        return vec!["No set has it, or the policy controller has not asked it.".to_owned()];
    }
    let mut lines = Vec::new();
    for (word, report) in reports {
        let faults: u64 = report.faults.values().sum();
        lines.push(format!(
            "{} {word}: {} answers, {} leave all counts, {} want more members, {} fewer; {faults} faults.",
            report.digest.get(..8).unwrap_or_default(),
            report.answers,
            report.same,
            report.higher,
            report.lower,
        ));
        if let Some(problem) = &report.problem {
            lines.push(format!("  Problem: {problem}. Its sets keep their counts."));
        }
        for (name, said) in &report.sets {
            lines.push(format!("  {name}: {}.", sentence(said)));
        }
        if let Some(nodes) = report.nodes {
            lines.push(format!("  It wants {nodes} nodes."));
        }
    }
    lines
}

fn sentence(said: &SetSaid) -> String {
    let mut text = match said.wants {
        None => format!("has {} members, and is not named", said.has),
        Some(wants) => format!("has {} members, and should have {wants}", said.has),
    };
    if let Some(version) = said.version {
        text += &format!(", version {version}");
    }
    if let Some(command) = &said.command {
        text += &format!(", command {command}");
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn report_of_sets_is_shown_by_version() {
        let source = "return function(i) return {} end";
        let mut object = json!({"spec": {"scope": "set", "source": source}});
        let digest = contract_spec(&object).unwrap().digest();
        object["status"]["sets"]["live"] = json!({
            "digest": digest.to_string(), "answers": 3, "same": 1, "higher": 2,
            "faults": {"late": 1}, "problem": "late: no answer in 50 ms",
            "sets": {"default/web": {"has": 2, "wants": 4, "command": "drain"}},
            "nodes": 5,
        });
        let about = about(&object, "default/web").join(" ");
        assert!(
            about.contains("decides: it has 2 members, and should have 4"),
            "{about}"
        );
        assert!(super::about(&object, "default/api").is_empty());
        let text = lines(&reports(&object).unwrap()).join("\n");
        for part in [
            "decides: 3 answers, 1 leave all counts, 2 want more members, 0 fewer; 1 faults",
            "default/web: has 2 members, and should have 4, command drain.",
            "It wants 5 nodes.",
        ] {
            assert!(text.contains(part), "{text}");
        }
        let wrong = problem(&object, &digest);
        assert_eq!(wrong.as_deref(), Some("late: no answer in 50 ms"));
        assert_eq!(figures(&object), None, "there is no candidate");
        object["status"]["candidate"] = json!({"digest": "77ab90c4ffff", "stage": "shadow"});
        assert!(
            figures(&object)
                .unwrap()
                .contains("No whole hour of 77ab90c4")
        );
        let tally = |units: f64| json!({"unitHours": units});
        object["status"]["evidence"] = json!({"figures": {"hours": 2, "candidate": tally(3.0),
            "live": tally(4.0), "others": tally(5.0), "fewerMinutes": 90.0}});
        let text = figures(&object).unwrap();
        for part in [
            "2 hours of 77ab90c4: 3.0",
            "4.0 by the live",
            "5.0 in truth",
            "90 minutes",
        ] {
            assert!(text.contains(part), "{text}");
        }
        object["spec"]["scope"] = json!("vm");
        assert!(reports(&object).is_none());
    }
}
