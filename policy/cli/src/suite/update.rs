//! Writes answers into a fixtures file. All else of the file stays as it is.

use std::ops::Range;

use crate::scope::AnyAnswer;

/// An answer as an inline table of TOML.
pub(super) fn inline(answer: &AnyAnswer) -> String {
    let table = toml::Value::try_from(answer.to_value());
    table.map_or_else(|_| answer.to_value().to_string(), |table| table.to_string())
}

/// The file with each answer at its place. An empty place gets a line.
pub(super) fn written(text: &str, mut answers: Vec<(Range<usize>, &AnyAnswer)>) -> String {
    // From the end, so that the places before stay where they are.
    answers.sort_by_key(|(place, _)| std::cmp::Reverse(place.start));
    let mut updated = text.to_owned();
    for (place, answer) in answers {
        let answer = inline(answer);
        if place.is_empty() {
            let is_open = !updated[..place.start].ends_with('\n');
            let before = if is_open { "\n" } else { "" };
            updated.insert_str(place.start, &format!("{before}answer = {answer}\n"));
        } else {
            updated.replace_range(place, &answer);
        }
    }
    updated
}

#[cfg(test)]
mod tests {
    use policy_contract::Answer;
    use serde_json::json;

    use super::*;
    use crate::fixtures::{Expected, Fixtures};

    #[test]
    fn answers_are_written_and_all_else_stays() {
        let text = "# first\n[[fixture]]\nname = \"a\" # one\nanswer = { cu = 1, reason = \"x\" } # old\n\n[[fixture]]\nname = \"b\"";
        let answer = json!({"cu": 3, "reason": "y", "votes": {"load": 2.0}, "note": "so"});
        let answer = AnyAnswer::Vm(Answer::read(&answer).expect("an answer"));
        let fixtures = Fixtures::read(text).expect("fixtures");
        let places = fixtures.all.iter().map(|one| (one.place.clone(), &answer));
        let updated = written(text, places.collect());
        assert!(updated.starts_with("# first\n[[fixture]]\nname = \"a\" # one\nanswer = {"));
        assert!(updated.contains(" } # old\n\n[[fixture]]\nname = \"b\"\nanswer = {"));
        for fixture in Fixtures::read(&updated).expect("fixtures").all {
            match fixture.expected {
                Expected::Answer(written) => assert_eq!(written, answer),
                other => panic!("{other:?}"),
            }
        }
    }
}
