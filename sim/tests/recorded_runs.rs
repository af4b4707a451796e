//! Journals of whole runs: every task of every agent, through crashes and reconnects, decides again
//! to the same bytes.

use agent::Replay;
use protocol::journal::{Record, Step, decode, encode};
use sim::{Level, Options, PolicyKind, World};

/// Steps of a run.
const STEPS: u64 = 8_000;

fn recorded(seed: u64, level: Level) -> (World, Vec<Record>) {
    recorded_run(Options::short(seed, level, STEPS))
}

fn recorded_run(options: Options) -> (World, Vec<Record>) {
    let seed = options.seed;
    let mut world = World::new(options);
    world.record();
    while world.steps < STEPS {
        if let Err(violation) = world.step() {
            panic!("seed {seed}, step {}: {violation:?}", world.steps);
        }
    }
    let records = world.recorded();
    (world, records)
}

#[test]
fn what_agents_record_in_a_storm_decides_again() {
    let (mut crashes, mut checkpoints, mut tails) = (0, 0, 0);
    let (mut tasks, mut vms, mut decisions, mut covered) = (0, 0, 0, 0);
    for seed in 1..=8 {
        let (world, records) = recorded(seed, Level::Heavy);
        crashes += world
            .tally
            .iter()
            .filter(|(kind, _)| *kind == "agent crash")
            .map(|(_, times)| times)
            .sum::<u64>();
        checkpoints += records
            .iter()
            .filter(|record| matches!(record, Record::Checkpoint(_)))
            .count();
        let mut replay = Replay::new();
        for record in &records {
            replay.take(decode(encode(record).as_bytes()).expect("decodes"));
        }
        let report = replay.finish();
        assert!(report.is_equal(), "seed {seed}: {report:#?}");
        assert_eq!((report.warm_up, report.gaps), (0, 0), "seed {seed}");
        decisions += report.decisions;
        covered += report.covered;
        tails += report.tail;
        tasks += report.vms;
        vms += world.vms.len() as u64;
    }
    assert!(
        crashes > 3 && tails > 0,
        "{crashes} agents crashed, {tails} records of them are tail"
    );
    assert!(
        decisions > 400 && covered > 4000,
        "{decisions} decisions, {covered} steps covered"
    );
    assert!(tasks > vms, "{tasks} tasks of {vms} VMs: some began anew");
    assert!(checkpoints > 60, "{checkpoints} checkpoints");
}

/// Replay needs no policy: its advice is in the journal.
///
/// Requirement: V33
#[test]
fn v33_agents_with_hostile_policies_decide_again() {
    let (mut advice, mut policys) = (0, 0);
    for seed in 1..=6 {
        let mut options = Options::short(seed, Level::Heavy, STEPS);
        options.policy = PolicyKind::Hostile;
        let (_, records) = recorded_run(options);
        let mut replay = Replay::new();
        for record in &records {
            let record = decode(encode(record).as_bytes()).expect("decodes");
            match &record {
                Record::Sampled(sampled) => {
                    let steps = sampled.block.0.iter();
                    advice += steps
                        .filter(|(_, step)| matches!(step, Step::Advice(_)))
                        .count();
                }
                Record::Decision(decision) => policys += u64::from(decision.r == "policy"),
                _ => {}
            }
            replay.take(record);
        }
        let report = replay.finish();
        assert!(report.is_equal(), "seed {seed}: {report:#?}");
        assert_eq!((report.warm_up, report.gaps), (0, 0), "seed {seed}");
    }
    assert!(advice > 500 && policys > 100, "{advice}, {policys}");
}

#[test]
fn a_recorded_run_with_one_size_changed_is_found() {
    let (_, mut records) = recorded(2, Level::Light);
    let decided = records.iter_mut().find_map(|record| match record {
        Record::Decision(decision) if decision.to.is_some() => Some(decision),
        _ => None,
    });
    decided.expect("a decision to move").want += 1;
    let mut replay = Replay::new();
    records.into_iter().for_each(|record| replay.take(record));
    let report = replay.finish();
    assert_eq!(report.different, 1, "{report:?}");
}
