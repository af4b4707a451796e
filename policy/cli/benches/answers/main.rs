//! Times of answers, warm and alone: one call of the engine, one question to a worker and back, and
//! what a node's worth of VMs takes.
//!
//! Prints a JSON object of microseconds each, and of another unit where the name says so.
//! `cargo xtask bench policy` shows them with their targets.

mod crowd;
mod day;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use policy_cli::client::Client;
use policy_cli::made_up::{Question, Subject, question};
use policy_contract::frames::{FromWorker, ToWorker};
use policy_contract::{Digest, Scope, Spec};
use policy_engine::Engine;
use serde_json::json;

/// Input, three calls to the past, and an answer with votes.
const POLICY: &str = r#"
return function(i)
  local used, load = i.h:max("used", 900), i.h:q("load1", 0.9, 120)
  local slope = i.h:slope("used", 300)
  if not used or not load or not slope then return std.hold("no_data") end
  local memory = (used + slope * 60) * 1.15 / i.unit.mem_bytes
  local cpu = load / 0.9 / (i.unit.cpu_m / 1000)
  local cu, reason = math.ceil(memory), "memory"
  if cpu > memory then cu, reason = math.ceil(cpu), "cpu" end
  return { cu = math.max(cu, 0), reason = reason, votes = { memory = memory, cpu = cpu } }
end
"#;
const STUCK: &str = "return function(i) while true do end end";

const CALLS: usize = 20_000;
const ROUND_TRIPS: usize = 5_000;
const LOADS: usize = 50;
const PATIENCE: Duration = Duration::from_secs(10);

#[expect(clippy::print_stdout, reason = "the figures are its output")]
fn main() {
    let questions: Vec<Question> = (0..64).map(|n| question(&Subject::default(), n)).collect();
    let answers = answers(&questions);
    let trips = round_trips(&questions);
    let spec = Spec::of_source(POLICY);
    let loads = sorted(LOADS, |_| drop(Engine::load(&spec)));
    let with_past = questions.iter().find(|it| it.samples.len() > 100);
    let (period, resident) = crowd::period(with_past.expect("a question with a past"));
    let (whole_day, samples) = day::of_many();
    let figures = json!({
        "whatif_100_vms_day_s": whole_day,
        "whatif_samples_per_core_s": samples,
        "period_500_vms_p50": period,
        "worker_resident_mib": resident,
        "whatif_question": day::of_one(),
        "answer_p50": percentile(&answers, 0.5),
        "answer_p99": percentile(&answers, 0.99),
        "round_trip_p50": percentile(&trips, 0.5),
        "round_trip_p99": percentile(&trips, 0.99),
        "stuck_loop": stuck(&questions[0]),
        "load_p50": percentile(&loads, 0.5),
    });
    println!("{figures}");
}

fn answers(questions: &[Question]) -> Vec<f64> {
    let engine = Engine::load(&Spec::of_source(POLICY)).expect("it loads");
    let pasts: Vec<_> = questions.iter().map(Question::past).collect();
    let mut times = Vec::with_capacity(CALLS);
    for call in 0..CALLS {
        let at = call % questions.len();
        let asked = &questions[at];
        let begun = Instant::now();
        let reply = engine.ask(&asked.input, &pasts[at], asked.now);
        times.push(micros(begun));
        reply.expect("an answer");
        // As the worker does, after its answer has left.
        engine.tidy();
    }
    times.sort_by(f64::total_cmp);
    times
}

fn round_trips(questions: &[Question]) -> Vec<f64> {
    let mut client = worker(POLICY);
    let asked = questions.iter().find(|it| it.samples.len() > 100);
    let asked = asked.expect("a question with a past");
    for (t, s) in &asked.samples {
        let (t, s) = (*t, s.clone());
        client
            .send(&ToWorker::Sample { vm: 1, t, s })
            .expect("sent");
    }
    sorted(ROUND_TRIPS, |n| {
        let reply = client.request(&ask(n, asked), PATIENCE);
        assert!(matches!(reply, Ok(FromWorker::Said { .. })), "{reply:?}");
    })
}

/// Time in which a plain loop is stopped by its steps.
fn stuck(asked: &Question) -> f64 {
    let mut client = worker(STUCK);
    let times = sorted(21, |n| {
        let reply = client.request(&ask(n, asked), PATIENCE);
        assert!(matches!(reply, Ok(FromWorker::Fault { .. })), "{reply:?}");
    });
    percentile(&times, 0.5)
}

fn worker(source: &str) -> Client {
    let program = Path::new(env!("CARGO_BIN_EXE_bellows-policy"));
    let mut client = Client::start(program).expect("a worker");
    let loaded = client.request(&load(1, source), PATIENCE);
    assert!(
        matches!(loaded, Ok(FromWorker::Loaded { .. })),
        "{loaded:?}"
    );
    client
}

fn load(id: u32, source: &str) -> ToWorker {
    ToWorker::Load {
        id,
        digest: Digest([0; 32]),
        scope: Scope::Vm,
        source: source.to_owned(),
        params: BTreeMap::new(),
    }
}

fn ask(n: usize, asked: &Question) -> ToWorker {
    ToWorker::Ask {
        n: u64::try_from(n).unwrap_or_default(),
        vm: 1,
        id: 1,
        t: asked.now,
        i: Box::new(asked.input.clone()),
    }
}

/// Times of so many runs, microseconds, shortest first.
fn sorted(runs: usize, mut run: impl FnMut(usize)) -> Vec<f64> {
    let mut times: Vec<f64> = (0..runs)
        .map(|number| {
            let begun = Instant::now();
            run(number);
            micros(begun)
        })
        .collect();
    times.sort_by(f64::total_cmp);
    times
}

fn micros(begun: Instant) -> f64 {
    begun.elapsed().as_secs_f64() * 1e6
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the share is of the values' number"
)]
fn percentile(sorted: &[f64], share: f64) -> f64 {
    let at = ((sorted.len() - 1) as f64 * share).round() as usize;
    sorted[at]
}
