//! Journals of whole runs: every task of every agent, through crashes and reconnects, decides again
//! to the same bytes.

use agent::Replay;
use protocol::journal::{Record, decode, encode};
use sim::{Level, Options, World};

/// Steps of a run.
const STEPS: u64 = 8_000;

fn recorded(seed: u64, level: Level) -> (World, Vec<Record>) {
    let mut world = World::new(Options::short(seed, level, STEPS));
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
