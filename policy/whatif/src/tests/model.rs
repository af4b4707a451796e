//! The model: its peers, what decides in it, and its error.

use agent::core::{DownscaleResponse, Event, Refusal, UpscaleRequest};
use policy_contract::Fault;
use proptest::prelude::*;
use protocol::units::{Bytes, Resources};

use super::{Always, Both, UNIT, WALL, Writer, at, candidate, history, stretch};
use crate::columns::Window;
use crate::history::{Happening, Stretch};
use crate::peers::{Refused, ResizeTimes, downscale, permit};
use crate::trace::Trace;
use crate::tried::in_truth;
use crate::world::World;
use crate::{History, Report, Tried};

const HOUR: u64 = 3600;

/// The history that the model writes of a stretch.
fn written(stretch: &Stretch) -> (Trace, History) {
    let (mut trace, mut writer) = (Trace::default(), Writer::new());
    let mut both = Both(&mut trace, &mut writer);
    World::new(stretch, ResizeTimes::default(), None, &mut both).run(stretch);
    (trace, writer.history())
}

fn tried(history: &History, always: Result<u32, Fault>) -> Tried {
    Tried::new(
        history,
        1,
        &candidate(),
        &mut Always(always),
        Window::default(),
    )
}

/// Load and memory that rise and fall three times an hour.
fn waves(second: u64) -> (f64, f64) {
    let wave = (second as f64 * std::f64::consts::TAU / 1200.0).sin() + 1.0;
    (0.2 + 2.0 * wave, 0.2 + 1.5 * wave)
}

/// Requirement: V07
#[test]
fn v07_error_is_zero_for_a_journal_of_the_model() {
    let (trace, history) = written(&stretch(2, HOUR, waves));
    assert!(trace.resizes.len() > 6, "{} resizes", trace.resizes.len());
    let read = &history.stretches[0];
    assert_eq!(read.trace.in_use, trace.in_use);
    assert_eq!(read.trace.guest, trace.guest);
    let again = in_truth(&history, read);
    assert_eq!(again.in_use, trace.in_use);
    let report = Report::of(&[tried(&history, Ok(2))]);
    assert!(report.error.recorded_resizes > 6);
    assert!(
        report.error.unit_hours_percent < 1e-9,
        "{}",
        report.first_line()
    );
    assert!(
        report.error.resizes_percent < 1e-9,
        "{}",
        report.first_line()
    );
    assert_eq!(report.verdict, "judged");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    /// Requirement: V07
    #[test]
    fn v07_error_is_zero_for_any_load(
        loads in prop::collection::vec((0.0..6.0_f64, 0.1..0.74_f64), 2..20),
    ) {
        // The memory stays below the part at which a monitor refuses.
        let need = |second: u64| {
            let (load, used) = loads[usize::try_from(second / 300).expect("small") % loads.len()];
            (load, used)
        };
        let (trace, history) = written(&stretch(3, HOUR, need));
        let again = in_truth(&history, &history.stretches[0]);
        prop_assert_eq!(again.in_use, trace.in_use);
    }
}

/// Requirement: V07
#[test]
fn v07_candidate_that_wants_too_little_is_at_risk_and_a_large_one_costs_more() {
    let (_, history) = written(&stretch(2, HOUR, waves));
    let small = tried(&history, Ok(1));
    let large = tried(&history, Ok(8));
    let (truth, small, large) = (small.modelled, small.candidate, large.candidate);
    assert!(
        small.cpu_short_minutes > truth.cpu_short_minutes,
        "{small:?}\n{truth:?}"
    );
    assert!(large.oom_risk_minutes <= truth.oom_risk_minutes);
    assert!(large.unit_hours > 2.0 * truth.unit_hours);
    assert!(small.unit_hours < truth.unit_hours);
    assert!(small.refused_shrinks > 0, "its shrinks are refused");
}

/// Requirement: V07
#[test]
fn v07_faults_of_the_candidate_are_counted() {
    let (_, history) = written(&stretch(2, 600, |_| (0.5, 0.3)));
    let tried = tried(&history, Err(Fault::Steps));
    assert!(tried.questions.asked > 50, "{:?}", tried.questions);
    assert_eq!(tried.questions.faults["steps"], tried.questions.asked);
    // A VM whose policy has only faults does not shrink before the fallback.
    assert_eq!(tried.candidate.resizes, 0);
}

/// Requirement: V08
#[test]
fn v08_vm_is_asked_about_each_sample_and_each_ten_seconds() {
    let (_, history) = written(&stretch(1, 600, |_| (0.5, 0.3)));
    // The end of the record does not count any more.
    let asked = tried(&history, Ok(1)).questions.asked;
    assert!((119..=130).contains(&asked), "{asked} questions");
}

/// Requirement: V07
#[test]
fn v07_questions_and_faults_count_within_the_time() {
    let (_, history) = written(&stretch(1, 600, |_| (0.5, 0.3)));
    let wall = |second: u64| i64::try_from(WALL + at(second).0).expect("a time");
    let window = Window {
        from: wall(100),
        to: wall(200),
    };
    let mut always = Always(Err(Fault::Memory));
    let tried = Tried::new(&history, 1, &candidate(), &mut always, window);
    assert_eq!(tried.questions.asked, 20);
    assert_eq!(tried.questions.faults["memory"], 20);
}

/// Requirement: V07
#[test]
fn v07_recorded_refusal_holds_for_ten_minutes_for_sizes_up_to_it() {
    let size = UNIT.saturating_mul(2);
    let refusal = Refusal {
        smallest: Some(UNIT.saturating_mul(3)),
        again: None,
    };
    let recorded = [Refused {
        at: at(0),
        size,
        refusal,
        need_bytes: 1e9,
    }];
    let denied = DownscaleResponse::Denied(refusal);
    assert_eq!(downscale(at(600), size, 1e9, &recorded), denied);
    assert_eq!(downscale(at(600), UNIT, 1e9, &recorded), denied);
    let larger = UNIT.saturating_mul(3);
    assert_eq!(
        downscale(at(600), larger, 1e9, &recorded),
        DownscaleResponse::Allowed
    );
    assert_eq!(
        downscale(at(601), size, 1e9, &recorded),
        DownscaleResponse::Allowed
    );
    // The need is smaller than at the refusal.
    assert_eq!(
        downscale(at(1), size, 0.9e9, &recorded),
        DownscaleResponse::Allowed
    );
}

/// Requirement: V07
#[test]
fn v07_refusal_ends_when_the_record_shows_an_approval() {
    let sizes = |approved: Option<u32>| {
        let mut shrinks = stretch(4, 300, |_| (0.5, 0.3));
        let refused = Happening::Refused(UNIT.saturating_mul(3), Refusal::default());
        shrinks.happenings.insert(1, (at(1), refused));
        let approved = approved.map(|units| Happening::Approved(UNIT.saturating_mul(units)));
        let approved = approved.map(|happening| (at(100), happening));
        shrinks.happenings.extend(approved);
        shrinks.happenings.sort_by_key(|(at, _)| *at);
        written(&shrinks).0.in_use
    };
    let last = |approved| sizes(approved).last().map(|(_, size)| *size);
    assert_eq!(last(None), Some(UNIT.saturating_mul(4)));
    assert_eq!(last(Some(4)), Some(UNIT.saturating_mul(4)));
    assert_eq!(last(Some(3)), Some(UNIT));
}

/// Requirement: V07
#[test]
fn v07_modelled_monitor_wants_115_percent_of_the_need_and_100_mib() {
    let need = 1e9;
    let enough = Bytes(1_150_000_000 + 104_857_600);
    let size = |mem: Bytes| Resources { mem, ..UNIT };
    assert_eq!(
        downscale(at(0), size(enough), need, &[]),
        DownscaleResponse::Allowed
    );
    let less = size(Bytes(enough.0 - 1));
    assert_eq!(
        downscale(at(0), less, need, &[]),
        DownscaleResponse::denied_below(size(enough))
    );
}

/// Requirement: V07
#[test]
fn v07_permit_is_no_larger_than_the_recorded_one() {
    let units = |count| UNIT.saturating_mul(count);
    assert_eq!(permit(units(5), units(2), None), units(5));
    assert_eq!(permit(units(5), units(2), Some(units(3))), units(3));
    assert_eq!(permit(units(5), units(4), Some(units(3))), units(4));
    assert_eq!(permit(units(2), units(2), Some(units(3))), units(2));
    let mut cut = stretch(2, 600, |_| (6.0, 0.3));
    cut.happenings
        .insert(1, (at(1), Happening::Permits(Some(units(3)))));
    let (trace, history) = written(&cut);
    assert_eq!(trace.in_use.last().map(|(_, size)| *size), Some(units(3)));
    assert_eq!(trace.cut.len(), 1, "repeated cuts count once");
    assert!(
        history.stretches[0]
            .happenings
            .iter()
            .any(|(_, one)| matches!(one, Happening::Permits(Some(size)) if *size == units(3)))
    );
}

/// Requirement: V07
#[test]
fn v07_monitor_requests_growth_while_the_need_is_over_85_percent() {
    // The load alone wants one unit, and so does the goal by memory in a VM without it.
    let requests = |used: f64| {
        let (_, history) = written(&stretch(1, 120, |_| (0.1, used)));
        let happenings = history.stretches[0].happenings.iter();
        let is_request = |one: &&(_, Happening)| matches!(one.1, Happening::UpscaleRequest(..));
        happenings.filter(is_request).count()
    };
    assert_eq!(requests(0.84), 0);
    assert!(requests(0.86) > 0);
}

/// Requirement: V07
#[test]
fn v07_recorded_request_counts_where_the_guest_has_no_more_than_it_had() {
    let with = |had_units: u64| {
        let mut stretch = stretch(2, 60, |_| (1.9, 0.5));
        let had = Bytes(UNIT.mem.0 * had_units);
        let happening = Happening::UpscaleRequest(UpscaleRequest::default(), had);
        stretch.happenings.push((at(58), happening));
        written(&stretch).0.resizes.len()
    };
    assert_eq!(with(1), with(0));
    assert_eq!(with(2), with(1) + 1);
}

/// Requirement: V07
#[test]
fn v07_need_is_censored_while_the_guest_had_no_more() {
    let censored = |load: f64, used: f64| {
        let (_, history) = written(&stretch(8, 60, |_| (load, used)));
        let needs = &history.stretches[0].needs;
        assert!(!needs.is_empty());
        needs.iter().filter(|need| need.is_censored).count()
    };
    assert_eq!(censored(6.0, 4.0), 0);
    assert!(censored(7.7, 4.0) > 0, "the load is near the CPUs");
    assert!(censored(6.0, 7.0) > 0, "the memory is near its end");
}

/// Requirement: V07
#[test]
fn v07_median_of_recorded_resizes_is_the_model_s() {
    let slow = ResizeTimes {
        up: protocol::time::Span::from_secs(7),
        down: protocol::time::Span::from_secs(3),
    };
    let (mut trace, mut writer) = (Trace::default(), Writer::new());
    let waves = stretch(2, HOUR, waves);
    World::new(&waves, slow, None, &mut Both(&mut trace, &mut writer)).run(&waves);
    let history = writer.history();
    assert_eq!(history.times, slow);
}

/// Requirement: V07
#[test]
fn v07_advice_of_the_record_decides_in_truth_and_not_beside_a_candidate() {
    use agent::core::{Advice, Said, Terms};
    let terms = Terms {
        digest: 7,
        fallback_after: None,
        max_units: None,
        shrink_units_per_minute: None,
    };
    let mut advised = stretch(2, 600, |_| (0.5, 0.3));
    let bound = Happening::Policy(Event::Bound(Some(terms)));
    advised.happenings.insert(0, (at(0), bound));
    for second in (3..600).step_by(5) {
        let said = Said::Want(5);
        let advice = Happening::Policy(Event::Advised(Advice { digest: 7, said }));
        advised.happenings.push((at(second), advice));
    }
    advised.happenings.sort_by_key(|(at, _)| *at);
    let (trace, history) = written(&advised);
    assert_eq!(
        trace.in_use.last().map(|(_, size)| *size),
        Some(UNIT.saturating_mul(5))
    );
    let tried = tried(&history, Ok(2));
    assert!((tried.modelled.unit_hours - tried.recorded.unit_hours).abs() < 1e-9);
    assert!(tried.candidate.unit_hours < 0.5 * tried.recorded.unit_hours);
}

#[test]
fn stretch_of_hand_made_needs_has_curves() {
    let tried = tried(&history(vec![stretch(2, HOUR, waves)]), Ok(4));
    let of = |curve: &[(i64, f64)]| curve.last().map(|(_, units)| *units);
    assert_eq!(of(&tried.curves.candidate), Some(4.0));
    assert!(tried.curves.need.len() > 300);
    let is_sorted = |curve: &[(i64, f64)]| curve.windows(2).all(|pair| pair[0].0 <= pair[1].0);
    assert!(is_sorted(&tried.curves.candidate) && is_sorted(&tried.curves.need));
}
