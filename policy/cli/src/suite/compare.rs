//! What is expected, beside what is answered.

use policy_contract::sets::{SetAnswer, SetWant};
use policy_contract::{Answer, Want};

use super::reply::WorkerResponse;
use super::update;
use crate::fixtures::{Expected, Properties};
use crate::scope::AnyAnswer;

/// What was answered, for people.
pub(super) fn shown(reply: &WorkerResponse) -> String {
    match reply {
        Ok((answer, _)) => format!("answers {}", update::inline(answer)),
        Err((fault, text)) => format!("{}: {text}", fault.word()),
    }
}

/// What is wrong, and what to write instead. `None` if nothing is.
pub(super) fn difference(expected: &Expected, reply: &WorkerResponse) -> Option<(String, String)> {
    let is_right = match (expected, reply) {
        (Expected::Answer(expected), Ok((answer, _))) => expected == answer,
        (Expected::Properties(properties), Ok((answer, _))) => {
            let broken = broken(properties, answer);
            let rule = format!("{}, and {}", shown(reply), broken.join(", "));
            return (!broken.is_empty()).then(|| (rule, instead(reply)));
        }
        (Expected::Fault(expected), Err((fault, _))) => expected == fault,
        _ => false,
    };
    let also = match expected {
        Expected::Nothing => "; the fixture does not say what must be answered".to_owned(),
        Expected::Answer(answer) => format!(", not {}", update::inline(answer)),
        Expected::Properties(_) => ", which is no answer".to_owned(),
        Expected::Fault(fault) => format!(", not the fault {}", fault.word()),
    };
    (!is_right).then(|| (format!("{}{also}", shown(reply)), instead(reply)))
}

fn instead(reply: &WorkerResponse) -> String {
    match reply {
        Ok((answer, _)) => format!("answer = {}", update::inline(answer)),
        Err((fault, _)) => format!("fault = \"{}\"", fault.word()),
    }
}

/// Each property that an answer does not have, with what it is in place of what is expected.
fn broken(properties: &Properties, answer: &AnyAnswer) -> Vec<String> {
    match answer {
        AnyAnswer::Vm(answer) => broken_by_size(properties, answer),
        AnyAnswer::Set(answer) => broken_by_counts(properties, answer),
    }
}

fn broken_by_counts(properties: &Properties, answer: &SetAnswer) -> Vec<String> {
    let wanted = |name: &String| answer.sets.get(name).map(|change| &change.want);
    let count = |name: &String| match wanted(name) {
        Some(SetWant::Count(count)) => Some(*count),
        Some(SetWant::Share(_) | SetWant::Rest) | None => None,
    };
    let has = |name: &String, bounds: &crate::fixtures::Bounds| {
        count(name).is_some_and(|count| bounds.hold(f64::from(count)))
    };
    let broken = properties.counts.iter();
    let broken = broken.filter(|(name, bounds)| !has(name, bounds));
    let told = broken.map(|(name, bounds)| {
        let is = count(name).map_or("absent".to_owned(), |count| count.to_string());
        format!("counts.{name} is {is} instead of {bounds}")
    });
    told.collect()
}

fn broken_by_size(properties: &Properties, answer: &Answer) -> Vec<String> {
    let mut broken = Vec::new();
    let units = match answer.want {
        Want::Units(units) => Some(f64::from(units)),
        Want::Hold => None,
    };
    let mut is = |name: &str, is: String, expected: String| {
        broken.push(format!("{name} is {is} instead of {expected}"));
    };
    let number = |number: Option<f64>| number.map_or("absent".to_owned(), |it| it.to_string());
    if let Some(bounds) = properties.cu
        && !units.is_some_and(|units| bounds.hold(units))
    {
        is("cu", number(units), bounds.to_string());
    }
    if let Some(hold) = properties.hold
        && hold != units.is_none()
    {
        is("hold", units.is_none().to_string(), hold.to_string());
    }
    let reason = answer.reason.as_str();
    if let Some(words) = &properties.reason
        && !words.has(reason)
    {
        is("reason", reason.to_owned(), words.to_string());
    }
    for (name, bounds) in &properties.votes {
        let vote = answer.votes.iter().find(|vote| vote.name == *name);
        let vote = vote.map(|vote| vote.value.units());
        if !vote.is_some_and(|vote| bounds.hold(vote)) {
            is(&format!("votes.{name}"), number(vote), bounds.to_string());
        }
    }
    broken
}

#[cfg(test)]
mod tests {
    use policy_contract::Fault;
    use serde_json::json;

    use super::*;
    use crate::fixtures::Fixtures;

    fn expected(text: &str) -> Expected {
        let text = format!("[[fixture]]\nname = \"a\"\n{text}");
        let fixtures = Fixtures::read(&text).expect("a fixture");
        fixtures.all.into_iter().next().expect("one").expected
    }

    fn answered(value: &serde_json::Value) -> WorkerResponse {
        Ok((AnyAnswer::Vm(Answer::read(value).expect("an answer")), 1))
    }

    #[test]
    fn answer_is_compared_as_a_whole() {
        let wanted = expected("answer = { cu = 2, reason = \"x\", votes = { a = 1.5 } }");
        let reply = answered(&json!({"cu": 2, "reason": "x", "votes": {"a": 1.5}}));
        assert_eq!(difference(&wanted, &reply), None);
        let other = answered(&json!({"cu": 2, "reason": "x", "votes": {"a": 1.6}}));
        let (rule, instead) = difference(&wanted, &other).expect("a difference");
        assert!(rule.contains("1.6") && rule.contains("1.5"), "{rule}");
        assert!(instead.starts_with("answer = {"), "{instead}");
    }

    #[test]
    fn each_broken_property_is_named() {
        let wanted =
            expected("expect = { cu = { max = 3 }, reason = [\"x\", \"y\"], votes.a = 1 }");
        let good = answered(&json!({"cu": 3, "reason": "y", "votes": {"a": 1.0}}));
        assert_eq!(difference(&wanted, &good), None);
        let (rule, _) = difference(&wanted, &answered(&json!({"hold": true, "reason": "z"})))
            .expect("a difference");
        for property in [
            "cu is absent instead of at most 3",
            "reason is z instead of x or y",
            "votes.a is absent instead of 1",
        ] {
            assert!(rule.contains(property), "{rule}");
        }
        let (rule, _) =
            difference(&wanted, &answered(&json!({"cu": 4, "reason": "y"}))).expect("a difference");
        assert!(rule.contains("cu is 4 instead of at most 3"), "{rule}");
        assert!(!rule.contains("reason is"), "{rule}");
    }

    #[test]
    fn broken_bounds_are_written_as_in_the_fixture() {
        let wanted = expected("expect = { cu = { min = 2, max = 4 }, hold = false }");
        let held = answered(&json!({"hold": true, "reason": "z"}));
        let (rule, _) = difference(&wanted, &held).expect("a difference");
        for property in [
            "cu is absent instead of 2 to 4",
            "hold is true instead of false",
        ] {
            assert!(rule.contains(property), "{rule}");
        }
        let wanted = expected("expect = { cu = { min = 2.5 } }");
        let one = answered(&json!({"cu": 1, "reason": "z"}));
        let (rule, _) = difference(&wanted, &one).expect("a difference");
        assert!(rule.contains("cu is 1 instead of at least 2.5"), "{rule}");
    }

    #[test]
    fn count_of_a_set_is_expected_within_bounds() {
        let text = "scope = \"set\"\n[[fixture]]\nname = \"a\"\nexpect.counts.web = { min = 2 }";
        let fixtures = Fixtures::read(text).expect("a fixture");
        let wanted = &fixtures.all[0];
        let reply = |count: u32| -> WorkerResponse {
            let answer = json!({"sets": {"web": {"count": count}}});
            Ok((wanted.question.input.read(&answer).expect("an answer"), 1))
        };
        assert_eq!(difference(&wanted.expected, &reply(2)), None);
        let (rule, _) = difference(&wanted.expected, &reply(1)).expect("a difference");
        assert!(
            rule.contains("counts.web is 1 instead of at least 2"),
            "{rule}"
        );
    }

    #[test]
    fn fault_is_expected_by_its_kind() {
        let steps: WorkerResponse = Err((Fault::Steps, "more".into()));
        assert_eq!(difference(&expected("fault = \"steps\""), &steps), None);
        let (_, instead) = difference(&expected("fault = \"memory\""), &steps).expect("another");
        assert_eq!(instead, "fault = \"steps\"");
        assert!(difference(&expected(""), &steps).is_some());
    }
}
