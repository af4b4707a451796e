use super::*;
use crate::core::render::unit;
use proptest::prelude::*;
use protocol::units::Bytes;

const UNIT: &str = "\
destination = '/srv/program/size.conf'
template = 'cpus {{ cpus }}'
check = ['/bin/check', '{file}']
signal = { pidfile = '/run/program.pid' }
";
const FOLDER: &str = "\
destination = '/srv/program/conf.d'
template = { 'size.conf' = 'cpus {{ cpus }}', 'other.conf' = 'fixed' }
check = ['/bin/check', '{file}']
signal = { pidfile = '/run/program.pid' }
";

/// What a crash leaves, and the program.
#[derive(Debug, Default, Clone)]
struct World {
    place: Option<Content>,
    temporary: Option<Content>,
    note: bool,
    /// What the program has read at its last signal.
    seen: Option<Content>,
    signals: u32,
    /// Whether the check refuses what it is shown.
    is_refused: bool,
    /// Whether the check takes too long.
    is_late: bool,
    /// Whether no signal can be sent.
    is_deaf: bool,
    /// Whether nothing can be written.
    is_full: bool,
    actions: Vec<&'static str>,
}

impl World {
    fn perform(&mut self, action: &Action) -> Event {
        let done = |failed: bool, error: &str| {
            Event::Done(if failed {
                Err(error.to_owned())
            } else {
                Ok(())
            })
        };
        self.actions.push(match action {
            Action::Read => "read",
            Action::Write(_) => "write",
            Action::Check => "check",
            Action::Discard => "discard",
            Action::Note => "note",
            Action::Place => "place",
            Action::Signal => "signal",
            Action::Forget => "forget",
        });
        match action {
            Action::Read => {
                self.temporary = None;
                return Event::Present(Ok(self.place.clone()));
            }
            Action::Write(_) if self.is_full => return done(true, "full"),
            Action::Write(content) => self.temporary = Some(content.clone()),
            Action::Check if self.is_late => return Event::CheckLate("10 s".to_owned()),
            Action::Check => return done(self.is_refused, "bad line"),
            Action::Discard => self.temporary = None,
            Action::Note if self.is_full => return done(true, "full"),
            Action::Note => self.note = true,
            Action::Place => self.place = self.temporary.take(),
            Action::Signal if self.is_deaf => return done(true, "no process"),
            Action::Signal => {
                assert!(self.note, "no signal without its note");
                self.seen = self.place.clone();
                self.signals += 1;
            }
            Action::Forget => self.note = false,
        }
        done(false, "")
    }
}

fn values(cpus: u32) -> Values {
    Values {
        cpus,
        memory: Bytes(1 << 30),
        ..Values::default()
    }
}

fn unit(text: &str) -> Unit {
    unit::parse(text).expect(text)
}

fn content(unit: &Unit, cpus: u32) -> Option<Content> {
    Some(template::render(&unit.template, &values(cpus)).expect("it renders"))
}

/// A daemon: the machine and its clock.
struct Daemon {
    machine: Machine,
    now: Timestamp,
}

impl Daemon {
    fn start(unit: &Unit, world: &World) -> Self {
        Self {
            machine: Machine::new(unit, world.note),
            now: Timestamp(0),
        }
    }

    fn see(&mut self, cpus: u32) {
        self.machine.handle(self.now, Event::Values(values(cpus)));
    }

    /// Performs `most` actions at the present time; returns whether there was one less.
    fn step(&mut self, world: &mut World, most: usize) -> bool {
        for _ in 0..most {
            let Some(action) = self.machine.poll_action(self.now) else {
                return true;
            };
            let event = world.perform(&action);
            self.machine.handle(self.now, event);
        }
        false
    }

    /// Performs everything that is due until `seconds` have passed.
    fn run(&mut self, world: &mut World, seconds: u64) {
        let end = self.now + Span::from_secs(seconds);
        loop {
            assert!(self.step(world, 100), "it ends: {:?}", world.actions);
            match self.machine.poll_deadline().filter(|at| *at <= end) {
                Some(at) => self.now = self.now.max(at),
                None => break,
            }
        }
        self.now = end;
    }
}

#[test]
fn v27_new_file_takes_every_step_and_an_equal_one_none() {
    let (unit, mut world) = (unit(UNIT), World::default());
    let mut daemon = Daemon::start(&unit, &world);
    daemon.see(2);
    daemon.run(&mut world, 1);
    let steps = [
        "read", "write", "check", "note", "place", "signal", "forget",
    ];
    assert_eq!(world.actions, steps);
    assert_eq!(world.place, content(&unit, 2));
    assert_eq!(daemon.machine.outcome(), &Outcome::Current);
    let mut daemon = Daemon::start(&unit, &world);
    daemon.see(2);
    daemon.run(&mut world, 60);
    assert_eq!(world.actions[7..], ["read"]);
    assert_eq!(
        daemon.machine.poll_deadline(),
        None,
        "nothing is left to do"
    );
}

#[test]
fn v27_blocks_of_memory_are_rendered_once() {
    let (unit, mut world) = (unit(UNIT), World::default());
    let mut daemon = Daemon::start(&unit, &world);
    daemon.see(1);
    daemon.run(&mut world, 1);
    for cpus in 2..=8 {
        daemon.see(cpus);
        daemon.now = daemon.now + Span::from_millis(100);
        assert!(daemon.step(&mut world, 1), "it waits");
    }
    daemon.run(&mut world, 1);
    assert_eq!((world.signals, world.place), (2, content(&unit, 8)));
}

#[test]
fn v27_values_that_never_rest_are_rendered_after_the_longest_delay() {
    let (unit, mut world) = (unit(UNIT), World::default());
    let mut daemon = Daemon::start(&unit, &world);
    for cpus in 1..=100 {
        daemon.see(cpus);
        daemon.step(&mut world, 100);
        daemon.now = daemon.now + Span::from_millis(100);
    }
    assert_eq!(world.signals, 2, "at the start and after five seconds");
}

#[test]
fn v28_refused_file_is_never_at_its_place() {
    for text in [UNIT, FOLDER] {
        let unit = unit(text);
        let mut world = World {
            place: content(&unit, 1),
            is_refused: true,
            ..World::default()
        };
        let mut daemon = Daemon::start(&unit, &world);
        daemon.see(2);
        daemon.run(&mut world, 3600);
        assert_eq!(world.actions, ["read", "write", "check", "discard"]);
        assert_eq!(
            (world.place.clone(), world.temporary.clone()),
            (content(&unit, 1), None)
        );
        assert_eq!(
            daemon.machine.outcome(),
            &Outcome::Check("bad line".to_owned())
        );
        world.is_refused = false;
        daemon.see(3);
        daemon.run(&mut world, 1);
        assert_eq!(
            (&world.place, &world.seen),
            (&content(&unit, 3), &content(&unit, 3))
        );
    }
}

/// A machine that was busy once must not leave the old file for ever.
#[test]
fn v28_check_that_took_too_long_is_run_again() {
    let unit = unit(UNIT);
    let mut world = World {
        place: content(&unit, 1),
        is_late: true,
        ..World::default()
    };
    let mut daemon = Daemon::start(&unit, &world);
    daemon.see(2);
    daemon.run(&mut world, 3600);
    assert_eq!(
        (world.place.clone(), world.temporary.clone()),
        (content(&unit, 1), None)
    );
    let text = "the check did not end: 10 s".to_owned();
    assert_eq!(daemon.machine.outcome(), &Outcome::Failed(text));
    let checks = world.actions.iter().filter(|one| **one == "check").count();
    assert!((50..70).contains(&checks), "{checks} in an hour");
    world.is_late = false;
    daemon.run(&mut world, 64);
    assert_eq!(world.place, content(&unit, 2));
    assert_eq!(daemon.machine.outcome(), &Outcome::Current);
}

#[test]
fn v28_failed_template_keeps_the_old_file() {
    let unit = unit(&UNIT.replace("{{ cpus }}", "{{ 6 // (cpus - 1) }}"));
    let mut world = World::default();
    let mut daemon = Daemon::start(&unit, &world);
    daemon.see(2);
    daemon.run(&mut world, 1);
    let before = world.place.clone();
    assert!(before.is_some());
    daemon.see(1);
    daemon.run(&mut world, 60);
    assert_eq!(world.place, before);
    assert!(matches!(daemon.machine.outcome(), Outcome::Template(_)));
}

#[test]
fn v29_death_after_any_step_leaves_old_or_new() {
    for (text, before) in [
        (UNIT, None),
        (UNIT, Some(1)),
        (FOLDER, None),
        (FOLDER, Some(1)),
    ] {
        let unit = unit(text);
        let old = before.and_then(|cpus| content(&unit, cpus));
        for steps in 0..=7 {
            let mut world = World {
                place: old.clone(),
                seen: old.clone(),
                ..World::default()
            };
            let mut daemon = Daemon::start(&unit, &world);
            daemon.see(2);
            daemon.step(&mut world, steps);
            let is_placed = steps >= 5;
            let expected = if is_placed {
                content(&unit, 2)
            } else {
                old.clone()
            };
            assert_eq!(world.place, expected, "after {steps} steps");
            assert!(
                !is_placed || world.note || world.seen == world.place,
                "{steps}"
            );

            let mut next = Daemon::start(&unit, &world);
            next.see(2);
            next.run(&mut world, 1);
            assert_eq!(
                (&world.place, &world.seen),
                (&content(&unit, 2), &content(&unit, 2))
            );
            assert_eq!((world.note, world.temporary), (false, None));
        }
    }
}

#[test]
fn v30_owed_signal_is_sent_by_the_next_daemon() {
    for is_refused in [false, true] {
        let unit = unit(UNIT);
        let mut world = World::default();
        let mut daemon = Daemon::start(&unit, &world);
        daemon.see(2);
        daemon.step(&mut world, 5);
        assert_eq!((world.signals, world.note), (0, true));
        world.is_refused = is_refused;
        let mut next = Daemon::start(&unit, &world);
        // The second daemon sees another size. The first one's file is in place and unsignalled.
        next.see(3);
        next.run(&mut world, 1);
        let placed = content(&unit, if is_refused { 2 } else { 3 });
        assert_eq!((&world.seen, &world.place), (&placed, &placed));
        assert_eq!((world.signals, world.note), (1, false));
    }
}

#[test]
fn v30_signal_is_repeated_until_the_program_takes_it() {
    let (unit, mut world) = (
        unit(UNIT),
        World {
            is_deaf: true,
            ..World::default()
        },
    );
    let mut daemon = Daemon::start(&unit, &world);
    daemon.see(2);
    daemon.run(&mut world, 10);
    let tries = world
        .actions
        .iter()
        .filter(|action| **action == "signal")
        .count();
    assert_eq!(tries, 4, "at 0, 1, 3 and 7 s");
    assert_eq!(daemon.machine.owed(), Some("no process"));
    world.is_deaf = false;
    daemon.run(&mut world, 60);
    assert_eq!((world.signals, daemon.machine.owed()), (1, None));
}

#[test]
fn v30_unit_that_no_longer_signals_forgets_what_it_owed() {
    let silent = unit(&UNIT.replace("signal", "# signal"));
    let mut world = World {
        note: true,
        ..World::default()
    };
    let mut daemon = Daemon::start(&silent, &world);
    daemon.see(2);
    daemon.run(&mut world, 1);
    assert_eq!((world.note, world.signals), (false, 0));
}

#[test]
fn v29_full_disk_is_tried_again() {
    let (unit, mut world) = (
        unit(UNIT),
        World {
            is_full: true,
            ..World::default()
        },
    );
    let mut daemon = Daemon::start(&unit, &world);
    daemon.see(2);
    daemon.run(&mut world, 10);
    assert_eq!(world.place, None);
    assert_eq!(
        daemon.machine.outcome(),
        &Outcome::Failed("full".to_owned())
    );
    world.is_full = false;
    daemon.run(&mut world, 60);
    assert_eq!(
        (&world.place, &world.seen),
        (&content(&unit, 2), &content(&unit, 2))
    );
}

#[derive(Debug, Clone)]
enum Happening {
    See(u32),
    Steps(usize),
    /// The daemon dies. The action in progress has happened or not.
    Die {
        is_done: bool,
    },
    Refuse(bool),
    Deaf(bool),
    Full(bool),
    Pass(u64),
}

fn happening() -> impl Strategy<Value = Happening> {
    prop_oneof![
        3 => (1..9_u32).prop_map(Happening::See),
        4 => (0..9_usize).prop_map(Happening::Steps),
        2 => any::<bool>().prop_map(|is_done| Happening::Die { is_done }),
        1 => any::<bool>().prop_map(Happening::Refuse),
        1 => any::<bool>().prop_map(Happening::Deaf),
        1 => any::<bool>().prop_map(Happening::Full),
        2 => (0..9_u64).prop_map(Happening::Pass),
    ]
}

proptest! {
    #[test]
    fn v29_any_order_of_changes_and_deaths_ends_at_the_newest_content(
        happenings in prop::collection::vec(happening(), 0..40),
        is_folder in any::<bool>(),
    ) {
        let unit = unit(if is_folder { FOLDER } else { UNIT });
        let (mut world, mut newest) = (World::default(), 1);
        let mut daemon = Daemon::start(&unit, &world);
        daemon.see(newest);
        for happening in happenings {
            let before = world.place.clone();
            let may_place = !world.is_refused;
            match happening {
                Happening::See(cpus) => {
                    newest = cpus;
                    daemon.see(cpus);
                }
                Happening::Steps(most) => {
                    daemon.step(&mut world, most);
                }
                Happening::Die { is_done } => {
                    if is_done && let Some(action) = daemon.machine.poll_action(daemon.now) {
                        world.perform(&action);
                    }
                    daemon = Daemon::start(&unit, &world);
                    daemon.see(newest);
                }
                // A check takes effect on what it is shown later.
                Happening::Refuse(is_refused) if world.temporary.is_none() => world.is_refused = is_refused,
                Happening::Refuse(_) => {}
                Happening::Deaf(is_deaf) => world.is_deaf = is_deaf,
                Happening::Full(is_full) => world.is_full = is_full,
                Happening::Pass(seconds) => daemon.run(&mut world, seconds),
            }
            prop_assert!(may_place || world.place == before, "a refused file is in place");
            prop_assert!(world.note || world.seen == world.place, "a signal is lost");
            let is_whole = |cpus| world.place == content(&unit, cpus);
            prop_assert!(world.place.is_none() || (1..9).any(is_whole));
        }
        (world.is_refused, world.is_deaf, world.is_full) = (false, false, false);
        // What a check refused stays refused until something changes.
        daemon.see(newest + 1);
        daemon.run(&mut world, 200);
        let last = content(&unit, newest + 1);
        prop_assert_eq!((&world.place, &world.seen), (&last, &last));
        prop_assert!(!world.note && world.temporary.is_none());
    }
}
