//! Members of records that a replay does not compare.

use std::collections::{BTreeMap, BTreeSet};

use super::super::journal_tests::RecordedTask;
use super::*;

fn revision_of(action: &Action) -> i64 {
    match action {
        Action::Permit(request) => request.revision.value,
        Action::VmPatch(patch) => patch.revision.value,
        Action::MonitorUpscale(request) => request.revision.value,
        Action::MonitorDownscale(request) => request.revision.value,
    }
}

#[test]
fn outcome_has_the_revision_of_its_request() {
    let mut task = RecordedTask::new();
    let mut revisions = BTreeMap::new();
    task.step(Span(1), Event::MonitorActive);
    revisions.extend(task.started());
    for round in 0..100_u32 {
        let load = if round % 20 < 10 { 3.0 } else { 0.3 };
        task.system(Span::from_secs(2), load, 6e8 * load);
        revisions.extend(task.started());
        task.end_request(Span::from_millis(4), 0);
        revisions.extend(task.started());
    }
    let revisions: BTreeMap<u64, i64> = revisions
        .into_iter()
        .map(|(id, action)| (id.0, revision_of(&action)))
        .collect();
    let mut kinds = BTreeSet::new();
    for record in &task.records {
        if let Record::Outcome(outcome) = record {
            assert_eq!(outcome.rev, revisions[&outcome.id], "{outcome:?}");
            if outcome.rev > 0 {
                kinds.insert(outcome.what);
            }
        }
    }
    let all = [
        RequestKind::Permit,
        RequestKind::Patch,
        RequestKind::Up,
        RequestKind::Down,
    ];
    assert!(kinds.into_iter().eq(all));
}
