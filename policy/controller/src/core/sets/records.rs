//! Lines of the journal: an answer other than the last of its version about a namespace, and the
//! same one again after some time, because old segments of a journal are removed.

use std::collections::BTreeMap;

use policy_contract::sets::SetAnswer;
use policy_contract::{Fault, Role};
use protocol::journal::{SetCount, SetsAnswered, crc};
use protocol::time::{Span, Timestamp};

use super::events::Question;

/// Time after which an answer that stayed the same has another line.
const AGAIN: Span = Span::from_secs(600);
/// Most bytes of the text of a fault.
const MAX_TEXT_BYTES: usize = 1_000;

/// Policy, role and namespace of an answer.
type Key = (String, Role, String);

/// End of a question.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) question: Question,
    /// Time from the question to its end.
    pub(super) took: Span,
    /// The answer, or a fault with its text.
    pub(super) said: Result<SetAnswer, (Fault, String)>,
}

/// Last line of each version about a namespace.
#[derive(Debug, Default)]
pub(super) struct Records {
    last: BTreeMap<Key, SetsAnswered>,
}

impl Records {
    /// The line of an end, if it has one. `given` are the counts that the sets got by it.
    pub(super) fn line(
        &mut self,
        now: Timestamp,
        ended: &Ended,
        counts: &BTreeMap<String, u32>,
        given: &BTreeMap<String, u32>,
    ) -> Option<SetsAnswered> {
        let question = &ended.question;
        let record = record(now, ended, counts, given);
        let key = (
            question.policy.clone(),
            question.role,
            question.input.namespace.clone(),
        );
        let last = self.last.get(&key);
        let is_known =
            last.is_some_and(|last| last.says_as(&record) && now.since(Timestamp(last.t)) < AGAIN);
        if is_known {
            return None;
        }
        self.last.insert(key, record.clone());
        Some(record)
    }

    /// Forgets versions that are not asked.
    pub(super) fn retain(&mut self, is_asked: impl Fn(&str, &str) -> bool) {
        self.last
            .retain(|(policy, ..), last| is_asked(policy, &last.dg));
    }
}

fn record(
    now: Timestamp,
    ended: &Ended,
    counts: &BTreeMap<String, u32>,
    given: &BTreeMap<String, u32>,
) -> SetsAnswered {
    let question = &ended.question;
    let mut record = SetsAnswered {
        role: question.role,
        dg: question.digest.short(),
        fault: None,
        r#in: question.input.checksum(),
        name: question.policy.clone(),
        nodes: None,
        note: None,
        ns: question.input.namespace.clone(),
        sets: BTreeMap::new(),
        t: now.0,
        took: ended.took.0,
        why: None,
    };
    match &ended.said {
        Err((fault, text)) => {
            record.fault = Some(*fault);
            let end = text.floor_char_boundary(MAX_TEXT_BYTES);
            record.note = Some(text[..end].to_owned());
        }
        Ok(answer) => {
            record.nodes = answer.nodes.as_ref().map(|wish| wish.want);
            record.why = answer.nodes.as_ref().map(|wish| wish.why.clone());
            record.sets = counted(question, answer, counts, given);
        }
    }
    record
}

fn counted(
    question: &Question,
    answer: &SetAnswer,
    counts: &BTreeMap<String, u32>,
    given: &BTreeMap<String, u32>,
) -> BTreeMap<String, SetCount> {
    let sets = question.input.sets.iter().filter_map(|(name, seen)| {
        let change = answer.sets.get(name);
        let values = answer.kv.get(name);
        // Values alone leave the count.
        let want = counts.get(name).copied();
        let want = want.or_else(|| values.map(|_| seen.count))?;
        let values = values.map(|values| serde_json::to_string(values).unwrap_or_default());
        let count = SetCount {
            command: change.and_then(|change| change.command.clone()),
            has: seen.count,
            kv: values.map_or(0, |text| crc(0, text.as_bytes())),
            to: given.get(name).copied(),
            v: change.and_then(|change| change.version),
            want,
        };
        Some((name.clone(), count))
    });
    sets.collect()
}
