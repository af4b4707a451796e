//! A call ends by its budget, the same way each time, and leaves the policy usable.

use policy_contract::{Fault, History, Input, Series, Spec};
use policy_engine::{Engine, Evaluation, Failed, MAX_STEPS};

const SWITCH: &str = "
return function(i)
  local kind = i.params.kind
  if kind == 1 then while true do end end
  if kind == 2 then return string.rep('x', 1073741824) end
  if kind == 3 then return string.find(string.rep('a', 200), string.rep('a*', 20) .. 'b') end
  if kind == 4 then local t = {} while true do t[#t + 1] = {} end end
  if kind == 5 then return { cu = 2.5, reason = 'x' } end
  if kind == 6 then return i.nothing.at_all end
  return { cu = 1, reason = 'fine' }
end";

fn engine(source: &str) -> Engine {
    Engine::load(&Spec::of_source(source)).expect("it loads")
}

fn ask(engine: &Engine, kind: f64) -> Result<Evaluation, Failed> {
    let mut input = Input::sample();
    input.params.insert("kind".to_owned(), kind);
    engine.ask(&input, &History::new(&[]), 0.0)
}

#[test]
fn v03_each_budget_has_its_fault_and_the_policy_lives_on() {
    let engine = engine(SWITCH);
    let expected = [
        (1.0, Fault::Steps),
        (2.0, Fault::Memory),
        (3.0, Fault::Steps),
        (4.0, Fault::Memory),
        (5.0, Fault::Output),
        (6.0, Fault::Syntax),
    ];
    for round in 0..3 {
        for (kind, fault) in expected {
            let failed = ask(&engine, kind).expect_err("a fault");
            let is_expected = failed.fault == fault || kind == 4.0 && failed.fault == Fault::Steps;
            assert!(is_expected, "round {round}, kind {kind}: {failed}");
            let reply = ask(&engine, 0.0).expect("an answer");
            assert_eq!(reply.answer.reason.as_str(), "fine");
        }
    }
}

#[test]
fn v03_faults_name_line_path_value_and_rule() {
    let engine = engine(SWITCH);
    let text = |kind| ask(&engine, kind).expect_err("a fault").text;
    assert!(text(6.0).starts_with("line 9: "), "{}", text(6.0));
    let refusal = text(5.0);
    assert!(
        refusal.contains("cu") && refusal.contains("2.5"),
        "{refusal}"
    );
}

/// Whether a call ends by memory does not depend on what earlier calls left behind.
#[test]
fn v03_memory_of_a_call_does_not_depend_on_earlier_calls() {
    let source = "return function(i)
      local s = {}
      for n = 1, i.params.kind do s[n] = string.rep('x', 1000) .. n end
      return { cu = #s, reason = 'x' } end";
    let used = engine(source);
    let outcome = |engine: &Engine, count: u32| match ask(engine, f64::from(count)) {
        Ok(reply) => Ok(reply),
        Err(failed) => Err(failed.fault),
    };
    for count in (100..1400).step_by(37).chain((100..1400).rev().step_by(61)) {
        let fresh = engine(source);
        assert_eq!(outcome(&used, count), outcome(&fresh, count), "{count}");
    }
    assert_eq!(outcome(&used, 2000), Err(Fault::Memory));
}

#[test]
fn v03_memory_of_an_engine_is_bounded() {
    let engine = engine(SWITCH);
    for _ in 0..500 {
        let _ = ask(&engine, 4.0);
        ask(&engine, 0.0).expect("an answer");
    }
    assert!(engine.memory() < 4 << 20, "{}", engine.memory());
}

#[test]
fn v03_steps_are_counted_and_replay() {
    let source = "return function(i) for n = 1, i.params.kind do end
      return { cu = 0, reason = 'x' } end";
    let engine = engine(source);
    let first = ask(&engine, 100.0).expect("an answer").steps;
    assert!((100..120).contains(&first), "{first}");
    assert_eq!(ask(&engine, 100.0).expect("an answer").steps, first);
    let most = (MAX_STEPS - first + 100) as f64;
    assert!(ask(&engine, most).is_ok());
    assert_eq!(
        ask(&engine, most + 1.0).expect_err("too many").fault,
        Fault::Steps
    );
}

#[test]
fn past_is_read_by_methods() {
    let series = [Series::of("load1").expect("a series")];
    let mut past = History::new(&series);
    for (at, value) in [(2.0, 1.0), (4.0, 2.0), (6.0, 6.0)] {
        past.record("load1", at, value);
    }
    let asked = |expression: &str| {
        let source = format!(
            "return function(i) return {{cu = 0, reason = 'x', note = tostring({expression})}} end"
        );
        let reply = engine(&source)
            .ask(&Input::sample(), &past, 7.0)
            .expect(expression);
        reply.answer.note.expect("a note").as_str().to_owned()
    };
    let expected = [
        ("i.h:last('load1')", "6"),
        ("i.h:age('load1')", "1"),
        ("i.h:mean('load1', 60)", "3"),
        ("i.h:min('load1', 60)", "1"),
        ("i.h:max('load1', 60)", "6"),
        ("i.h:q('load1', 0.5, 60)", "2"),
        ("i.h:delta('load1', 60)", "5"),
        ("i.h:slope('load1', 60)", "1.25"),
        ("i.h:seen('load1', 10)", "0.6"),
        ("i.h:max('used', 60)", "nil"),
        ("i.h:max('load1', 2)", "nil"),
        ("std.trend(i.h, 'used', 60, 600)", "nil"),
        ("std.trend(i.h, 'load1', 60, 600)", "flat"),
    ];
    for (expression, value) in expected {
        assert_eq!(asked(expression), value, "{expression}");
    }
}

#[test]
fn helpers_answer_for_bounds_refusals_and_hours() {
    let body = "
      local days = {1, 2, 3, 4, 5}
      assert(std.clamp(5, 1, 3) == 3 and std.clamp(0, 1, 3) == 1 and std.clamp(2, 1, 3) == 2)
      assert(not std.refused({}, 60) and not std.refused({refused = {}}, 60))
      assert(std.refused({refused = {permit = {age_s = 59}}}, 60))
      assert(std.refused({refused = {shrink = {age_s = 60}}}, 60))
      assert(std.refused({wish = {age_s = 5}}, 60) and not std.refused({wish = {age_s = 61}}, 60))
      local function at(minute, weekday) return {time = {minute = minute, weekday = weekday}} end
      assert(std.office(at(540, 1), 540, 1020, days) and not std.office(at(1020, 1), 540, 1020, days))
      assert(not std.office(at(600, 6), 540, 1020, days))
      assert(std.office(at(1400, 5), 1320, 120, days) and std.office(at(60, 6), 1320, 120, days))
      assert(not std.office(at(60, 1), 1320, 120, days))
      return std.hold('fine')";
    let reply = ask(&engine(&format!("return function(i) {body} end")), 0.0).expect("an answer");
    assert_eq!(
        reply.answer.to_value(),
        serde_json::json!({"hold": true, "reason": "fine"})
    );
}
