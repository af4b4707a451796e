//! Policies of sets: their question, their answer and their helpers.

use policy_contract::sets::{SetAnswer, SetWant};
use policy_contract::{Fault, FeedSum, History, SetInput, SetSeen, Spec};
use policy_engine::{Engine, Failed};

fn ask(source: &str, input: &SetInput) -> Result<SetAnswer, Failed> {
    let engine = Engine::load(&Spec::of_source(source)).expect("it loads");
    let asked = engine.ask_sets(input, &History::new(&[]), 0.0);
    asked.map(|evaluation| evaluation.answer)
}

fn two_services() -> SetInput {
    let mut input = SetInput::sample();
    for (name, rps) in [("django_workers", 25.0), ("flask_workers", 7.0)] {
        let sum = FeedSum {
            sum: rps,
            max: rps,
            members: 1,
        };
        let set = SetSeen {
            count: 1,
            member_cu: 1,
            feeds: [("rps".to_owned(), sum)].into(),
            ..SetSeen::default()
        };
        input.sets.insert(name.to_owned(), set);
    }
    input
        .sets
        .insert("background_workers".to_owned(), SetSeen::default());
    input.params = [
        ("django_worker_capacity".to_owned(), 10.0),
        ("flask_worker_capacity".to_owned(), 4.0),
        ("max_workers".to_owned(), 8.0),
    ]
    .into();
    input
}

/// Counts alone: what each service needs, a fair division if that is too much, and the remainder
/// for work in the background.
const COUNTS: &str = "
local function schedule_simple(i)
  local p = i.params
  local cfg = {
    django_workers = i.sets.django_workers.feeds.rps.sum / p.django_worker_capacity,
    flask_workers = i.sets.flask_workers.feeds.rps.sum / p.flask_worker_capacity,
  }
  local total = cfg.django_workers + cfg.flask_workers
  if total > p.max_workers then
    cfg = std.divide(p.max_workers, cfg)
  else
    cfg.background_workers = math.floor(p.max_workers - total)
  end
  return cfg
end
return std.simple(schedule_simple)";

fn counts(answer: &SetAnswer) -> Vec<(&str, SetWant)> {
    let sets = answer.sets.iter();
    sets.map(|(name, change)| (name.as_str(), change.want))
        .collect()
}

/// Requirement: V12
#[test]
fn v12_function_of_counts_alone_is_a_policy() {
    let mut input = two_services();
    let answer = ask(COUNTS, &input).expect("an answer");
    let expected = [
        ("background_workers", SetWant::Count(3)),
        ("django_workers", SetWant::Count(3)),
        ("flask_workers", SetWant::Count(2)),
    ];
    assert_eq!(counts(&answer), expected);
    input.params.insert("max_workers".to_owned(), 4.0);
    let answer = ask(COUNTS, &input).expect("an answer");
    let expected = [
        ("django_workers", SetWant::Count(2)),
        ("flask_workers", SetWant::Count(2)),
    ];
    assert_eq!(
        counts(&answer),
        expected,
        "the set that is not named keeps its count"
    );
}

/// Requirement: V11, V12
#[test]
fn v11_simple_takes_shares_and_the_rest() {
    let source = "return std.simple(function(i) return { web = '7%', batch = 'rest' } end)";
    let mut input = SetInput::sample();
    input.sets.insert("batch".to_owned(), SetSeen::default());
    let answer = ask(source, &input).expect("an answer");
    let expected = [("batch", SetWant::Rest), ("web", SetWant::Share(7_000))];
    assert_eq!(counts(&answer), expected);
}

/// Requirement: V11, V14
#[test]
fn v14_helpers_share_and_divide_in_whole_numbers() {
    let source = "return function(i)
      local parts = std.divide(10, {
        a = { want = 8, priority = 1 }, b = 5.5, c = { want = 6, unit = 2 } })
      return { kv = { web = {
        share = tostring(std.share('7%', 50)),
        a = tostring(parts.a), b = tostring(parts.b), c = tostring(parts.c) } } }
    end";
    let answer = ask(source, &SetInput::sample()).expect("an answer");
    let values: Vec<&str> = answer.kv["web"].values().map(String::as_str).collect();
    assert_eq!(values, ["8", "2", "0", "4"], "a, b, c, share");
}

/// Requirement: V33
#[test]
fn v33_bad_answer_or_helper_is_a_fault_with_its_place() {
    let cases = [
        (
            "return { sets = { web = { count = 2, version = 9 } } }",
            Fault::Output,
            "sets.web.version: 9",
        ),
        (
            "return { sets = { other = { count = 2 } } }",
            Fault::Output,
            "sets.other",
        ),
        (
            "return { cu = 2, reason = 'x' }",
            Fault::Output,
            "answer.cu",
        ),
        (
            "return { sets = { web = { count = 1 } } }, 2",
            Fault::Output,
            "2 values",
        ),
        (
            "return std.simple(function() return { web = true } end)(i)",
            Fault::Output,
            "sets.web.count",
        ),
        (
            "return std.divide(0 / 0, {})",
            Fault::Syntax,
            "write a number of 0 or more",
        ),
        (
            "return std.divide(1, { a = 'x' })",
            Fault::Syntax,
            "std.divide: an ask is a number",
        ),
        (
            "return std.share('7', 10)",
            Fault::Syntax,
            "write a text as \"7%\"",
        ),
    ];
    for (body, fault, text) in cases {
        let source = format!("return function(i) {body} end");
        let failed = ask(&source, &SetInput::sample()).expect_err(body);
        assert_eq!(failed.fault, fault, "{body}: {failed}");
        assert!(failed.text.contains(text), "{body}: {failed}");
    }
}

/// Requirement: V03
#[test]
fn v03_set_policy_is_bounded_and_usable_after_a_fault() {
    let source = "return function(i)
      if i.params.loop then while true do end end
      return { sets = { web = { count = i.sets.web.count + 1 } } }
    end";
    let engine = Engine::load(&Spec::of_source(source)).expect("it loads");
    let past = History::new(&[]);
    let mut input = SetInput::sample();
    input.params.insert("loop".to_owned(), 1.0);
    let failed = engine.ask_sets(&input, &past, 0.0).expect_err("it loops");
    assert_eq!(failed.fault, Fault::Steps);
    input.params.clear();
    let asked = engine.ask_sets(&input, &past, 0.0).expect("an answer");
    assert_eq!(asked.answer.sets["web"].want, SetWant::Count(3));
}
