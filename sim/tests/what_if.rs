//! The model of what would have been, beside the simulated world: other peers, the same agents.

use std::collections::BTreeMap;

use policy_contract::{Answer, Fault, Input, Spec};
use policy_whatif::{Adviser, Candidate, Reader, Report, Tried, Window};
use protocol::policy::Limits;
use protocol::time::Span;
use sim::{Level, Options, recorded};

/// Length of a run.
const LENGTH: Span = Span::from_secs(3600);

/// Answers as the built-in goal does.
struct Builtin;

impl Adviser for Builtin {
    fn forget(&mut self, _: u32) {}

    fn sample(&mut self, _: u32, _: f64, _: BTreeMap<String, f64>) {}

    fn ask(&mut self, _: u32, _: f64, input: &Input) -> Result<Answer, Fault> {
        let value = serde_json::json!({"cu": input.builtin.cu, "reason": "builtin"});
        Ok(Answer::read(&value).expect("an answer"))
    }
}

fn tried(seed: u64) -> Vec<Tried> {
    let options = Options {
        length: LENGTH,
        ..Options::short(seed, Level::None, u64::MAX)
    };
    let mut reader = Reader::default();
    let records = recorded(options).expect("no violation");
    records.into_iter().for_each(|record| reader.take(record));
    let candidate = Candidate {
        spec: Spec::of_source("return function(i) return std.hold('x') end"),
        limits: Limits::default(),
    };
    let histories = reader.finish();
    let numbered = histories.iter().zip(0..);
    let run = |(history, vm)| Tried::new(history, vm, &candidate, &mut Builtin, Window::default());
    numbered.map(run).collect()
}

/// Requirement: V07
#[test]
fn v07_model_is_near_a_world_that_it_does_not_know() {
    for seed in [1, 2] {
        let tried = tried(seed);
        let report = Report::of(&tried);
        let line = report.first_line();
        println!("seed {seed}: {line}");
        assert!(report.error.recorded_resizes > 10, "seed {seed}: {line}");
        assert_eq!(report.verdict, "judged", "seed {seed}: {line}");
        // A policy that says what the built-in goal says has its figures.
        let (truth, candidate) = (&report.total.modelled, &report.total.candidate);
        let difference = (truth.unit_hours - candidate.unit_hours).abs();
        assert!(
            difference < 0.02 * truth.unit_hours,
            "seed {seed}: {candidate:?}\n{truth:?}"
        );
    }
}
