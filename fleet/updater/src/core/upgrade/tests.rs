use protocol::core::Core as _;

use super::*;

const HEALTHY: Health = Health {
    unit: UnitState::Enabled,
    is_active: true,
    is_answering: true,
    has_agent: true,
};
const DEAD: Health = Health {
    is_active: false,
    is_answering: false,
    has_agent: false,
    ..HEALTHY
};
const OLD: Version = Version::new(1, 2, 3);
const NEW: Version = Version::new(1, 2, 4);

fn at(seconds: u64) -> Timestamp {
    Timestamp(0) + Span::from_secs(seconds)
}

fn facts() -> Facts {
    Facts {
        wanted: Ok(NEW),
        is_critical: false,
        installed: Some(OLD),
        health: HEALTHY,
        has_schedule: true,
        last_attempt: None,
        failed: None,
        machine: "machine".to_owned(),
    }
}

/// How the actions of a run end.
struct Script {
    facts: Facts,
    fails: Option<&'static str>,
    health: fn(u64) -> Health,
}

/// Names of the actions, and the end of the run.
fn run(script: Script) -> (Vec<String>, Outcome) {
    let (mut upgrade, mut now, mut names) = (Upgrade::default(), at(0), Vec::new());
    for _ in 0..1000 {
        let Some(action) = upgrade.poll_action(now) else {
            now = upgrade.poll_deadline().expect("a run that goes on");
            continue;
        };
        let name = format!("{action:?}");
        let name = name.split('(').next().expect("a name").to_owned();
        let event = match action {
            Action::End(outcome) => return (names, outcome),
            Action::Look => Event::Looked(Box::new(script.facts.clone())),
            Action::Probe => Event::Health((script.health)(now.0 / 1_000_000)),
            _ if script.fails == Some(&name) => Event::Failed("no".to_owned()),
            _ => Event::Done,
        };
        if names.last() != Some(&name) {
            names.push(name);
        }
        upgrade.handle(now, event);
    }
    panic!("the run does not end: {names:?}");
}

const ATTEMPT: [&str; 9] = [
    "Look", "Record", "Refresh", "Fetch", "Keep", "Unmask", "Install", "Start", "Probe",
];

#[test]
fn version_of_the_channel_is_installed_and_proven() {
    let (names, outcome) = run(Script {
        facts: facts(),
        fails: None,
        health: |_| HEALTHY,
    });
    assert_eq!(names, ATTEMPT);
    let (from, version) = (Some("1.2.3".to_owned()), "1.2.4".to_owned());
    assert_eq!(outcome, Outcome::Upgraded { from, version });
}

/// Requirement: R33
#[test]
fn installed_version_of_a_healthy_monitor_is_left_alone() {
    let mut same = facts();
    same.installed = Some(NEW);
    let (names, outcome) = run(Script {
        facts: same,
        fails: None,
        health: |_| HEALTHY,
    });
    assert_eq!(
        (names, outcome),
        (vec!["Look".to_owned()], Outcome::Current)
    );
}

/// Requirement: R15
#[test]
fn dead_masked_hung_and_absent_monitors_are_replaced_by_the_same_version() {
    let hung = Health {
        is_answering: false,
        ..HEALTHY
    };
    let of_unit = |unit| Health { unit, ..DEAD };
    for health in [
        DEAD,
        hung,
        of_unit(UnitState::Masked),
        of_unit(UnitState::Absent),
    ] {
        let mut sick = facts();
        (sick.installed, sick.health, sick.has_schedule) = (Some(NEW), health, false);
        let (names, outcome) = run(Script {
            facts: sick,
            fails: None,
            health: |_| HEALTHY,
        });
        assert!(names.contains(&"Install".to_owned()), "{health}");
        assert!(matches!(outcome, Outcome::Upgraded { .. }), "{outcome:?}");
    }
}

#[test]
fn package_of_before_is_put_back_after_each_failure_of_the_new_one() {
    /// Health of the new monitor at a second of its proof.
    type HealthAt = fn(u64) -> Health;
    let rows: [(Option<&str>, HealthAt); 5] = [
        (Some("Install"), |_| HEALTHY),
        (Some("Start"), |_| HEALTHY),
        (None, |_| DEAD),
        // Never healthy for long enough.
        (None, |second| if second % 20 < 10 { HEALTHY } else { DEAD }),
        (None, |_| Health {
            has_agent: false,
            ..HEALTHY
        }),
    ];
    for (fails, health) in rows {
        let (names, outcome) = run(Script {
            facts: facts(),
            fails,
            health,
        });
        assert_eq!(names.last().map(String::as_str), Some("PutBack"));
        assert!(
            matches!(&outcome, Outcome::PutBack { from, version, .. } if from == "1.2.3" && version == "1.2.4"),
            "{outcome:?}"
        );
    }
}

#[test]
fn attempt_that_cannot_fetch_changes_nothing() {
    for fails in ["Record", "Refresh", "Fetch"] {
        let (names, outcome) = run(Script {
            facts: facts(),
            fails: Some(fails),
            health: |_| HEALTHY,
        });
        assert_eq!(names.last().map(String::as_str), Some(fails));
        assert!(matches!(outcome, Outcome::Failed { .. }), "{outcome:?}");
    }
}

#[test]
fn upgrade_without_the_package_of_before_has_no_way_back() {
    let (names, outcome) = run(Script {
        facts: facts(),
        fails: Some("Keep"),
        health: |_| DEAD,
    });
    assert_eq!(names.last().map(String::as_str), Some("Probe"));
    assert!(matches!(outcome, Outcome::Failed { .. }), "{outcome:?}");
}

#[test]
fn monitor_that_was_alone_needs_no_agent_as_proof() {
    let mut alone = facts();
    alone.health.has_agent = false;
    let (_, outcome) = run(Script {
        facts: alone,
        fails: None,
        health: |_| Health {
            has_agent: false,
            ..HEALTHY
        },
    });
    assert!(matches!(outcome, Outcome::Upgraded { .. }), "{outcome:?}");
}

/// Requirement: R03
#[test]
fn channel_without_a_version_brings_no_attempt() {
    let mut none = facts();
    (none.wanted, none.is_critical, none.health) = (Err("status 500".to_owned()), true, DEAD);
    assert!(matches!(
        plan(at(0), &none),
        Plan::End(Outcome::Waits { reason }) if reason.contains("status 500")
    ));
}

/// Requirement: R43
#[test]
fn lower_major_version_is_refused_also_if_critical_or_unhealthy() {
    for (is_critical, health) in [(false, HEALTHY), (true, HEALTHY), (true, DEAD)] {
        let mut lower = facts();
        lower.installed = Some(Version::new(2, 0, 0));
        (lower.is_critical, lower.health) = (is_critical, health);
        assert!(matches!(
            plan(at(0), &lower),
            Plan::End(Outcome::Refused { .. })
        ));
    }
    let mut down = facts();
    down.installed = Some(Version::new(1, 9, 0));
    assert_eq!(plan(at(0), &down), Plan::Go(NEW));
}

/// A monitor crashes in a loop, and a timer looks each minute.
///
/// Requirement: R16
#[test]
fn attempts_of_a_crash_loop_are_24_to_48_a_day() {
    for seed in 0_u64..1000 {
        let mut sick = facts();
        (sick.machine, sick.health, sick.has_schedule) = (format!("m-{seed}"), DEAD, false);
        let mut attempts = 0;
        for minute in 0..24 * 60 {
            let now = at(minute * 60 + seed % 60);
            if matches!(plan(now, &sick), Plan::Go(_)) {
                attempts += 1;
                sick.last_attempt = Some((attempts, now));
            }
        }
        assert!((24..=48).contains(&attempts), "{seed}: {attempts}");
    }
}

/// Requirement: R16
#[test]
fn version_that_was_put_back_three_times_is_left_while_the_monitor_is_healthy() {
    let mut bad = facts();
    bad.failed = Some((NEW, MOST_FAILURES - 1));
    assert_eq!(plan(at(0), &bad), Plan::Go(NEW));
    bad.failed = Some((NEW, MOST_FAILURES));
    assert!(matches!(
        plan(at(0), &bad),
        Plan::End(Outcome::Refused { .. })
    ));
    bad.health = DEAD;
    assert_eq!(plan(at(0), &bad), Plan::Go(NEW));
    (bad.health, bad.failed) = (HEALTHY, Some((OLD, MOST_FAILURES)));
    assert_eq!(plan(at(0), &bad), Plan::Go(NEW));
}

#[test]
fn late_events_change_nothing() {
    let mut upgrade = Upgrade::default();
    for event in [
        Event::Done,
        Event::Health(HEALTHY),
        Event::Looked(Box::new(Facts {
            wanted: Ok(OLD),
            ..facts()
        })),
        Event::Done,
        Event::Looked(Box::new(facts())),
        Event::Health(DEAD),
    ] {
        upgrade.handle(at(0), event);
    }
    assert_eq!(
        upgrade.poll_action(at(0)),
        Some(Action::End(Outcome::Current))
    );
    assert_eq!(upgrade.poll_action(at(0)), None);
}
