//! Seeded policies before the gate, hour by hour.

use protocol::policy::{Fault, Scope};
use protocol::time::WallTime;
use rand::{Rng as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

use super::gate::{Case, Promote, Rules, Ruling, Stage, Standing, rule};
use super::gate_tests::carried_out;
use super::tally::{Alarms, Evidence, Tally};

const HOUR: i64 = 3_600_000_000;
const SEEDS: u64 = 200;
/// Hours that a seed runs: two tries of a banned policy.
const HOURS: u32 = 100;

/// What is wrong with a policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flaw {
    None,
    OomRisk,
    CpuShort,
    Costly,
    Reversals,
    Faults,
    NotFixpoint,
    NotModelled,
    Gaps,
    // These show where it decides.
    CanaryOomRisk,
    CanaryRefusals,
    CanaryOutOfMemory,
    WorkerDeaths,
    ShrinksAtOnce,
}

const FLAWS: [Flaw; 13] = [
    Flaw::OomRisk,
    Flaw::CpuShort,
    Flaw::Costly,
    Flaw::Reversals,
    Flaw::Faults,
    Flaw::NotFixpoint,
    Flaw::NotModelled,
    Flaw::Gaps,
    Flaw::CanaryOomRisk,
    Flaw::CanaryRefusals,
    Flaw::CanaryOutOfMemory,
    Flaw::WorkerDeaths,
    Flaw::ShrinksAtOnce,
];

impl Flaw {
    fn shows_in_shadow(self) -> bool {
        FLAWS
            .iter()
            .position(|one| *one == self)
            .is_some_and(|number| number < 8)
    }
}

struct World {
    rng: ChaCha8Rng,
    flaw: Flaw,
    vms: u32,
}

impl World {
    fn live(&mut self) -> Tally {
        let hours = f64::from(self.vms);
        Tally {
            vm_hours: hours,
            oom_risk_minutes: hours * self.rng.random_range(0.1..1.0),
            cpu_short_minutes: hours * self.rng.random_range(0.1..2.0),
            unit_hours: hours * self.rng.random_range(2.0..4.0),
            reversals: u64::from(self.vms) * self.rng.random_range(1..4),
            refused_shrinks: u64::from(self.vms) * self.rng.random_range(1..3),
        }
    }

    /// Figures of a version that is no worse than `live`.
    fn as_good(&mut self, live: &Tally, vms: f64) -> Tally {
        let share = vms / live.vm_hours;
        let mut part = |figure: f64| figure * share * self.rng.random_range(0.7..1.0);
        Tally {
            vm_hours: vms,
            oom_risk_minutes: part(live.oom_risk_minutes),
            cpu_short_minutes: part(live.cpu_short_minutes),
            unit_hours: part(live.unit_hours),
            reversals: live.reversals,
            refused_shrinks: live.refused_shrinks / 5,
        }
    }

    fn hour(&mut self, stage: Stage) -> Evidence {
        let live = self.live();
        let mut candidate = self.as_good(&live, live.vm_hours);
        let factor = self.rng.random_range(1.3..3.0);
        let mut hour = Evidence {
            hours: 1,
            decisions: u64::from(self.vms) * 360,
            vms: (0..self.vms).map(|number| format!("vm-{number}")).collect(),
            error_percent: self.rng.random_range(0.0..9.0),
            ..Evidence::default()
        };
        match self.flaw {
            Flaw::OomRisk => candidate.oom_risk_minutes = live.oom_risk_minutes * factor,
            Flaw::CpuShort => candidate.cpu_short_minutes = live.cpu_short_minutes * factor,
            Flaw::Costly => candidate.unit_hours = live.unit_hours * factor,
            Flaw::Reversals => candidate.reversals = live.reversals * 2,
            Flaw::Faults if self.rng.random_range(0..2) == 0 => {
                hour.faults.insert(Fault::Steps, 1);
            }
            Flaw::NotFixpoint => {
                hour.faults.insert(Fault::NotFixpoint, 1);
            }
            Flaw::NotModelled => hour.error_percent = self.rng.random_range(9.0..30.0),
            Flaw::Gaps => hour.gaps = self.rng.random_range(0..2),
            _ => {}
        }
        if stage == Stage::Canary {
            let canaries = (live.vm_hours / 4.0).ceil();
            let mut canary = self.as_good(&live, canaries);
            if self.flaw == Flaw::CanaryOomRisk {
                canary.oom_risk_minutes = canaries * 1.2;
            }
            if self.flaw == Flaw::CanaryRefusals {
                canary.refused_shrinks = u64::from(self.vms) * 7;
            }
            hour.canary = canary;
            hour.others = live;
        }
        (hour.candidate, hour.live) = (candidate, live);
        hour
    }

    fn alarms(&self, stage: Stage) -> Alarms {
        let mut alarms = Alarms {
            calls: u64::from(self.vms) * 60,
            ..Alarms::default()
        };
        if stage > Stage::Shadow {
            match self.flaw {
                Flaw::CanaryOutOfMemory => alarms.out_of_memory = 1,
                Flaw::WorkerDeaths => alarms.worker_deaths = 4,
                Flaw::ShrinksAtOnce => alarms.shrinks_at_once_percent = 60,
                _ => {}
            }
        }
        alarms
    }
}

/// The stages that a policy has come to, by hour, and its demotions.
fn run(seed: u64, flaw: Flaw) -> (Vec<Stage>, u32) {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let vms = rng.random_range(3..40);
    let mut world = World { rng, flaw, vms };
    let rules = Rules {
        promote: Promote::Auto,
        ..Rules::default()
    };
    let begin = WallTime(1000 * HOUR);
    let mut standing = Standing {
        stage: Stage::Shadow,
        since: begin,
        changed_at: None,
        demoted_at: None,
    };
    let (mut evidence, mut stages, mut demotions) = (Evidence::default(), Vec::new(), 0);
    for number in 1..=HOURS {
        let now = WallTime(begin.0 + i64::from(number) * HOUR);
        evidence.add(&world.hour(standing.stage));
        let alarms = world.alarms(standing.stage);
        let case = Case {
            scope: Scope::Vm,
            rules: &rules,
            vms_shrunk_at_once_percent: Some(20),
            standing: &standing,
            evidence: &evidence,
            alarms: &alarms,
        };
        let ruling = rule(now, &case);
        demotions += u32::from(matches!(ruling, Ruling::Demote(_)));
        if let Some(next) = carried_out(now, &standing, &ruling) {
            standing = next;
            evidence = Evidence::default();
        }
        stages.push(standing.stage);
    }
    (stages, demotions)
}

/// Requirement: V07
#[test]
fn v07_bad_policy_is_never_promoted_and_a_good_one_always() {
    let mut tried = 0;
    for seed in 0..SEEDS {
        let (stages, demotions) = run(seed, Flaw::None);
        let live_at = stages.iter().position(|stage| *stage == Stage::Live);
        assert_eq!(live_at, Some(29), "seed {seed}: 24 hours and a canary of 6");
        assert_eq!(demotions, 0, "seed {seed}");
        for flaw in FLAWS {
            let (stages, demotions) = run(seed, flaw);
            let best = stages.iter().max();
            if flaw.shows_in_shadow() {
                assert_eq!(best, Some(&Stage::Shadow), "seed {seed}, {flaw:?}");
            } else {
                assert_eq!(best, Some(&Stage::Canary), "seed {seed}, {flaw:?}");
                tried += demotions;
            }
        }
    }
    assert!(tried >= 1000, "{tried} demotions of canaries");
}
