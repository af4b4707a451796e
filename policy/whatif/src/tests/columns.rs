//! Each column by a case.

use protocol::time::{Span, Timestamp};
use protocol::units::Resources;

use super::{UNIT, WALL, at};
use crate::columns::{Basis, Columns, Need, Window};
use crate::report::ModelError;
use crate::trace::{Direction, Trace};
use crate::{Report, Tried};

fn trace(sizes: &[(u64, u32)]) -> Trace {
    let steps = |sizes: &[(u64, u32)]| -> Vec<(Timestamp, Resources)> {
        let step = |(second, units): &(u64, u32)| (at(*second), UNIT.saturating_mul(*units));
        sizes.iter().map(step).collect()
    };
    let resizes = sizes.windows(2).map(|pair| {
        let (from, to) = (
            UNIT.saturating_mul(pair[0].1),
            UNIT.saturating_mul(pair[1].1),
        );
        (at(pair[1].0), Direction::of(from, to))
    });
    Trace {
        in_use: steps(sizes),
        guest: steps(sizes),
        resizes: resizes.collect(),
        ..Trace::default()
    }
}

/// A need every 10 s up to `end`, of memory `units(second)` and load `load`.
fn needs(end: u64, load: f64, units: impl Fn(u64) -> f64) -> Vec<Need> {
    let need = |second: u64| Need {
        at: at(second),
        bytes: units(second) * UNIT.mem.0 as f64,
        cpus: load,
        is_censored: false,
    };
    (0..end).step_by(10).map(need).collect()
}

fn columns(trace: &Trace, needs: &[Need], end: u64) -> Columns {
    let basis = Basis {
        trace,
        needs,
        lead: Span::from_secs(20),
        unit: UNIT,
    };
    Columns::of(&basis, (at(0), at(end)))
}

fn close(left: f64, right: f64) {
    assert!((left - right).abs() < 1e-6, "{left} is not {right}");
}

/// Requirement: V07
#[test]
fn v07_unit_hours_and_slack_are_those_of_the_size_in_use() {
    let columns = columns(
        &trace(&[(0, 2), (1800, 4)]),
        &needs(3600, 1.0, |_| 0.5),
        3600,
    );
    close(columns.minutes, 60.0);
    close(columns.unit_hours, 3.0);
    close(columns.needed_unit_hours, 1.0);
    close(columns.slack_percent, 100.0 * 2.0 / 3.0);
}

/// Requirement: V07
#[test]
fn v07_memory_is_at_risk_over_095_and_before_a_growth_could_arrive() {
    // Over 0.95 of two units from second 100 to 160; a growth takes 20 s.
    let need = |second| {
        if (100..160).contains(&second) {
            1.95
        } else {
            0.5
        }
    };
    let columns = columns(&trace(&[(0, 2)]), &needs(600, 0.1, need), 600);
    close(columns.oom_risk_minutes, 80.0 / 60.0);
    // The size is there in time.
    let grown = trace(&[(0, 2), (80, 3), (160, 2)]);
    let columns = self::columns(&grown, &needs(600, 0.1, need), 600);
    close(columns.oom_risk_minutes, 0.0);
}

/// Requirement: V07
#[test]
fn v07_cpu_is_short_while_the_load_is_over_the_cpus() {
    let columns = columns(&trace(&[(0, 1), (300, 2)]), &needs(600, 1.5, |_| 0.1), 600);
    close(columns.cpu_short_minutes, 5.0);
}

/// Requirement: V07
#[test]
fn v07_reversal_is_a_resize_against_the_one_before_within_ten_minutes() {
    let sizes = [(0, 1), (100, 2), (600, 1), (1300, 2), (1400, 3), (1500, 1)];
    let columns = columns(&trace(&sizes), &needs(3600, 0.1, |_| 0.1), 3600);
    assert_eq!((columns.resizes, columns.reversals), (5, 2));
}

/// Requirement: V07
#[test]
fn v07_refusals_and_cuts_count_within_the_time() {
    let trace = Trace {
        refused: vec![at(1), at(700)],
        cut: vec![at(2), at(3), at(601)],
        ..trace(&[(0, 1)])
    };
    let columns = columns(&trace, &needs(600, 0.1, |_| 0.1), 600);
    assert_eq!((columns.refused_shrinks, columns.cut_permits), (1, 2));
}

/// Requirement: V07
#[test]
fn v07_time_without_samples_is_censored() {
    let columns = columns(&trace(&[(0, 1)]), &needs(300, 0.1, |_| 0.1), 600);
    // The last sample, at second 290, stands for 30 s.
    close(columns.censored_minutes, 280.0 / 60.0);
    let mut censored = needs(600, 0.1, |_| 0.1);
    for need in &mut censored[6..12] {
        need.is_censored = true;
    }
    let columns = self::columns(&trace(&[(0, 1)]), &censored, 600);
    close(columns.censored_minutes, 1.0);
}

/// Requirement: V07
#[test]
fn v07_window_is_calendar_time() {
    let wall = |second: u64| i64::try_from(WALL + at(second).0).expect("a time");
    let window = Window {
        from: wall(60),
        to: wall(120),
    };
    assert_eq!(window.within(WALL, at(0), at(90)), (at(60), at(90)));
    assert_eq!(
        Window::default().within(WALL, at(0), at(90)),
        (at(0), at(90))
    );
}

fn tried(recorded: (f64, u64), modelled: (f64, u64)) -> Tried {
    let columns = |(unit_hours, resizes)| Columns {
        unit_hours,
        resizes,
        ..Columns::default()
    };
    Tried {
        name: "default/pg".into(),
        recorded: columns(recorded),
        modelled: columns(modelled),
        candidate: columns(modelled),
        questions: Default::default(),
        gaps: 0,
        curves: Default::default(),
    }
}

/// Requirement: V07
#[test]
fn v07_report_with_an_error_over_ten_percent_is_not_judged() {
    let verdict = |vms: &[Tried]| Report::of(vms).verdict;
    assert_eq!(verdict(&[tried((10.0, 20), (11.0, 22))]), "judged");
    assert_eq!(verdict(&[tried((10.0, 20), (11.1, 20))]), "not judged");
    assert_eq!(verdict(&[tried((10.0, 20), (10.0, 23))]), "not judged");
    // One resize of a VM is no error.
    assert_eq!(verdict(&[tried((10.0, 1), (10.0, 2))]), "judged");
    assert_eq!(verdict(&[]), "not judged");
    // Errors of two VMs do not cancel.
    let two = [tried((10.0, 0), (12.0, 0)), tried((10.0, 0), (8.0, 0))];
    assert_eq!(verdict(&two), "not judged");
    let line = Report::of(&two).first_line();
    let expected = "Model's error: unit-hours 20.0 % (recorded 20.00, modelled 20.00), resizes 0.0 % (recorded 0, modelled 0): not judged.";
    assert_eq!(line, expected);
    assert!(!ModelError::default().is_judged());
}
