//! The loop of the worker: a line in, at most one line out. Each answer leaves as soon as it is
//! made; memory is freed after that.

use std::collections::BTreeMap;
use std::io::{self, BufRead, Read as _, Write};

use policy_contract::frames::{self, FromWorker, MAX_LINE_BYTES, ToWorker};
use policy_contract::sets::SetAnswer;
use policy_contract::{CONTRACT, Column, Fault, History, Input, Seconds, Series, SetInput, Spec};
use policy_engine::{Engine, Evaluation, Failed};

/// Most policies at once. A VM has at most two, and a node few kinds of VMs.
const MAX_POLICIES: usize = 64;

/// Why the loop ended before its input did.
#[derive(Debug, thiserror::Error)]
pub enum Ended {
    /// The parent broke the protocol.
    #[error(transparent)]
    Frame(#[from] frames::FrameError),
    /// The parent is gone.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Policies and pasts.
#[derive(Debug, Default)]
pub struct Worker {
    policies: BTreeMap<u32, Engine>,
    pasts: BTreeMap<u32, History>,
}

/// Reads lines until the input ends.
///
/// # Errors
/// A line is too long or malformed, or input or output fails.
pub fn serve(mut input: impl BufRead, mut output: impl Write) -> Result<(), Ended> {
    let mut worker = Worker::default();
    let mut line = Vec::new();
    loop {
        line.clear();
        let most = u64::try_from(MAX_LINE_BYTES).unwrap_or(u64::MAX) + 1;
        if input.by_ref().take(most).read_until(b'\n', &mut line)? == 0 {
            return Ok(());
        }
        let message = frames::decode(&line, MAX_LINE_BYTES)?;
        let policy = match &message {
            ToWorker::Ask { id, .. } | ToWorker::AskSets { id, .. } => Some(*id),
            _ => None,
        };
        if let Some(answer) = worker.handle(message) {
            output.write_all(&frames::encode(&answer)?)?;
            output.flush()?;
        }
        if let Some(engine) = policy.and_then(|id| worker.policies.get(&id)) {
            engine.tidy();
        }
    }
}

impl Worker {
    /// Handles one message.
    pub fn handle(&mut self, message: ToWorker) -> Option<FromWorker> {
        match message {
            ToWorker::Load {
                id,
                scope,
                source,
                params,
                ..
            } => Some(self.load(
                id,
                &Spec {
                    contract: CONTRACT,
                    scope,
                    source,
                    params,
                    series: Vec::new(),
                    feeds: Vec::new(),
                },
            )),
            ToWorker::Sample { vm, t, s } => {
                self.record(vm, t, &s);
                None
            }
            ToWorker::Ask { n, vm, id, t, i } => Some(match self.ask(vm, id, t, &i) {
                Ok(reply) => FromWorker::said(n, &reply.answer, reply.steps),
                Err(Failed { fault: kind, text }) => FromWorker::Fault { n, kind, text },
            }),
            ToWorker::AskSets { n, vm, id, t, i } => Some(match self.ask_sets((vm, id), t, &i) {
                Ok(reply) => FromWorker::said_sets(n, &reply.answer, reply.steps),
                Err(Failed { fault: kind, text }) => FromWorker::Fault { n, kind, text },
            }),
            ToWorker::Forget { vm } => {
                self.pasts.remove(&vm);
                None
            }
            ToWorker::Fill { vm, s, t, v } => {
                let past = self.pasts.entry(vm).or_insert_with(|| History::new(&[]));
                past.fill(Column {
                    series: s,
                    last_at: t,
                    values: v,
                });
                Some(FromWorker::Filled { vm })
            }
        }
    }

    fn load(&mut self, id: u32, spec: &Spec) -> FromWorker {
        let bad = |line, rule| FromWorker::Bad { id, line, rule };
        if self.policies.len() >= MAX_POLICIES && !self.policies.contains_key(&id) {
            return bad(0, format!("at most {MAX_POLICIES} policies are loaded"));
        }
        match Engine::load(spec) {
            Ok(engine) => {
                self.policies.insert(id, engine);
                FromWorker::Loaded { id }
            }
            Err(error) => {
                self.policies.remove(&id);
                bad(error.line, error.rule)
            }
        }
    }

    fn record(&mut self, vm: u32, at: Seconds, samples: &BTreeMap<String, f64>) {
        let past = self.pasts.entry(vm).or_insert_with(|| History::new(&[]));
        let series: Vec<Series> = samples.keys().filter_map(|name| Series::of(name)).collect();
        past.extend(&series);
        for (name, value) in samples {
            past.record(name, at, single(*value));
        }
    }

    fn ask(&self, vm: u32, id: u32, now: Seconds, input: &Input) -> Result<Evaluation, Failed> {
        let none = History::new(&[]);
        let past = self.pasts.get(&vm).unwrap_or(&none);
        self.engine(id)?.ask(input, past, now)
    }

    fn ask_sets(
        &self,
        (past, id): (u32, u32),
        now: Seconds,
        input: &SetInput,
    ) -> Result<Evaluation<SetAnswer>, Failed> {
        let none = History::new(&[]);
        let past = self.pasts.get(&past).unwrap_or(&none);
        self.engine(id)?.ask_sets(input, past, now)
    }

    fn engine(&self, id: u32) -> Result<&Engine, Failed> {
        self.policies.get(&id).ok_or_else(|| Failed {
            fault: Fault::Syntax,
            text: format!("policy {id} is not loaded"),
        })
    }
}

/// The past keeps single precision.
#[expect(
    clippy::cast_possible_truncation,
    reason = "what is too large becomes infinite, which the past ignores"
)]
pub(crate) fn single(value: f64) -> f32 {
    value as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(input: &str) -> Result<Vec<serde_json::Value>, Ended> {
        let mut output = Vec::new();
        serve(input.as_bytes(), &mut output)?;
        let text = String::from_utf8(output).expect("text");
        let values = text.lines().map(serde_json::from_str);
        Ok(values.collect::<Result<_, _>>().expect("JSON"))
    }

    fn load(source: &str) -> String {
        let digest = "0".repeat(64);
        let line = serde_json::json!({
            "op": "load", "id": 1, "digest": digest, "scope": "vm", "source": source, "params": {},
        });
        format!("{line}\n")
    }

    fn ask(n: u64, id: u32) -> String {
        let (op, i) = ("ask", Input::sample());
        let line = serde_json::json!({"op": op, "n": n, "vm": 17, "id": id, "t": 10.0, "i": i});
        format!("{line}\n")
    }

    #[test]
    fn each_question_has_one_answer() {
        let sample = |t: u32| {
            let line = serde_json::json!({"op": "sample", "vm": 17, "t": t, "s": {"load1": t}});
            format!("{line}\n")
        };
        let source = "return function(i) return {cu = i.h:max('load1', 60), reason = 'x'} end";
        let input = [
            load(source),
            sample(2),
            sample(4),
            sample(6),
            ask(9, 1),
            "{\"op\":\"forget\",\"vm\":17}\n".to_owned(),
            ask(10, 1),
            ask(11, 2),
        ]
        .concat();
        let output = lines(&input).expect("answers");
        let expected = serde_json::json!({"op": "loaded", "id": 1});
        assert_eq!(output[0], expected);
        assert_eq!((&output[1]["n"], &output[1]["cu"]), (&9.into(), &6.into()));
        assert_eq!(output[2]["kind"], "output");
        assert_eq!(output[3]["text"], "policy 2 is not loaded");
        assert_eq!(output.len(), 4);
    }

    #[test]
    fn question_about_sets_has_an_answer_about_sets() {
        let source = "return function(i)
          return { sets = { web = { count = i.h:max('feed:jobs', 60) } } } end";
        let (op, i) = ("ask_sets", SetInput::sample());
        let asked = serde_json::json!({"op": op, "n": 9, "vm": 3, "id": 1, "t": 10.0, "i": i});
        let sample = |t: u32| {
            let s = serde_json::json!({"feed:jobs": t});
            let line = serde_json::json!({"op": "sample", "vm": 3, "t": t, "s": s});
            format!("{line}\n")
        };
        let load = load(source).replace("\"vm\"", "\"set\"");
        let input = [load, sample(2), sample(4), sample(6), format!("{asked}\n")].concat();
        let output = lines(&input).expect("answers");
        assert_eq!(output[1]["op"], "said_sets");
        let answer = serde_json::json!({"sets": {"web": {"count": 6}}, "kv": {}});
        assert_eq!(output[1]["answer"], answer);
    }

    #[test]
    fn series_of_a_past_is_replaced() {
        let fill = |values: &str| {
            let head = "{\"op\":\"fill\",\"vm\":17,\"s\":\"load1\",\"t\":9.5";
            format!("{head},\"v\":{values}}}\n")
        };
        let source = "return function(i) return {cu = i.h:delta('load1', 60), reason = 'x'} end";
        let input = [
            load(source),
            fill("[1,2,3]"),
            fill("[2,null,3,9]"),
            ask(9, 1),
        ]
        .concat();
        let output = lines(&input).expect("answers");
        let filled = serde_json::json!({"op": "filled", "vm": 17});
        assert_eq!((&output[1], &output[2]), (&filled, &filled));
        assert_eq!(output[3]["cu"], 7);
    }

    #[test]
    fn refused_policy_is_named_with_its_line() {
        let output = lines(&load("return function(i)\n  return {cu = }\nend")).expect("an answer");
        assert_eq!(
            (&output[0]["op"], &output[0]["line"]),
            (&"bad".into(), &2.into())
        );
    }

    #[test]
    fn malformed_or_long_line_ends_the_worker() {
        assert!(matches!(lines("{}\n"), Err(Ended::Frame(_))));
        let long = format!("{}\n", " ".repeat(MAX_LINE_BYTES + 1));
        assert!(matches!(lines(&long), Err(Ended::Frame(_))));
    }
}
