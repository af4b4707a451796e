//! One resize, joined from the stages that the components recorded.

use std::collections::BTreeMap;

use protocol::trace::{Stage, StageRecord};
use serde::{Deserialize, Serialize};

/// The stages in the order of a growth, with the headings of their columns.
pub(crate) const STAGES: [(Stage, &str); 8] = [
    (Stage::Decision, "DECIDE"),
    (Stage::Permit, "PERMIT"),
    (Stage::MonitorApproval, "MONITOR"),
    (Stage::Patch, "PATCH"),
    (Stage::Controller, "CONTROL"),
    (Stage::Qmp, "QMP"),
    (Stage::GuestVisible, "GUEST"),
    (Stage::Status, "STATUS"),
];

/// One resize of one VM. JSON:
/// `{"vm":"default/pg","revision":7,"start_unix_us":…,"total_us":…,"change":"…","stages":[{"stage":"permit","start_unix_us":…,"duration_us":…}]}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Resize {
    pub(crate) vm: String,
    /// The agent's revision. 0 if another client patched the object.
    pub(crate) revision: i64,
    /// Begin of the first stage, microseconds since 1970.
    pub(crate) start_unix_us: i64,
    /// Microseconds from the begin of the first stage to the end of the last recorded one.
    pub(crate) total_us: u64,
    /// Old and new size, such as `250m CPU / 1Gi -> 1 CPU / 4Gi`. Empty if no component recorded
    /// it.
    pub(crate) change: String,
    /// The recorded stages, in the order of [`STAGES`]. A repeated stage counts all its attempts.
    pub(crate) stages: Vec<StageTime>,
}

/// One stage of a resize.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StageTime {
    pub(crate) stage: Stage,
    /// Begin, microseconds since 1970.
    pub(crate) start_unix_us: i64,
    pub(crate) duration_us: u64,
}

impl Resize {
    fn begin(record: &StageRecord) -> Self {
        Self {
            vm: record.trace.vm.clone(),
            revision: record.trace.revision,
            start_unix_us: record.start_unix_us,
            total_us: 0,
            change: String::new(),
            stages: Vec::new(),
        }
    }

    fn end_unix_us(&self) -> i64 {
        self.start_unix_us.saturating_add_unsigned(self.total_us)
    }

    /// Whether the guest has the size.
    pub(crate) fn is_complete(&self) -> bool {
        self.stage(Stage::Status).is_some()
    }

    /// The record of a stage. `None` if no component recorded it.
    pub(crate) fn stage(&self, stage: Stage) -> Option<StageTime> {
        self.stages.iter().copied().find(|time| time.stage == stage)
    }

    fn add(&mut self, record: &StageRecord) {
        let end = self.end_unix_us().max(
            record
                .start_unix_us
                .saturating_add_unsigned(record.duration_us),
        );
        self.start_unix_us = self.start_unix_us.min(record.start_unix_us);
        self.total_us = u64::try_from(end.saturating_sub(self.start_unix_us)).unwrap_or(0);
        if !record.change.is_empty() {
            self.change.clone_from(&record.change);
        }
        let rank = |stage: Stage| STAGES.iter().position(|(known, _)| *known == stage);
        match self
            .stages
            .iter_mut()
            .find(|time| time.stage == record.stage)
        {
            Some(time) => {
                time.start_unix_us = time.start_unix_us.min(record.start_unix_us);
                time.duration_us = time.duration_us.saturating_add(record.duration_us);
            }
            None => {
                self.stages.push(StageTime {
                    stage: record.stage,
                    start_unix_us: record.start_unix_us,
                    duration_us: record.duration_us,
                });
                self.stages.sort_by_key(|time| rank(time.stage));
            }
        }
    }
}

/// Joins records by trace, oldest resize first.
///
/// A trace ends when the status is written. A later record of the same trace begins a new row,
/// because a VM that is patched by hand keeps its revision.
pub(crate) fn join(records: &[StageRecord]) -> Vec<Resize> {
    let mut rows: Vec<Resize> = Vec::new();
    let mut open: BTreeMap<(&str, i64), usize> = BTreeMap::new();
    let mut sorted: Vec<&StageRecord> = records.iter().collect();
    sorted.sort_by_key(|record| {
        record
            .start_unix_us
            .saturating_add_unsigned(record.duration_us)
    });
    for record in sorted {
        let key = (record.trace.vm.as_str(), record.trace.revision);
        let belongs = open.get(&key).copied().filter(|&row| {
            !rows[row].is_complete() || record.start_unix_us < rows[row].end_unix_us()
        });
        let row = belongs.unwrap_or_else(|| {
            rows.push(Resize::begin(record));
            rows.len() - 1
        });
        open.insert(key, row);
        rows[row].add(record);
    }
    rows.sort_by(|a, b| (a.start_unix_us, &a.vm).cmp(&(b.start_unix_us, &b.vm)));
    rows
}

#[cfg(test)]
mod tests {
    use super::*;
    use protocol::trace::TraceId;

    fn record(vm: &str, revision: i64, stage: Stage, start: i64, duration: u64) -> StageRecord {
        StageRecord {
            trace: TraceId {
                vm: vm.into(),
                revision,
            },
            stage,
            start_unix_us: start,
            duration_us: duration,
            change: if stage == Stage::Controller {
                "a -> b".into()
            } else {
                String::new()
            },
        }
    }

    #[test]
    fn stages_of_one_trace_make_one_row() {
        let rows = join(&[
            record("default/pg", 7, Stage::Permit, 100, 10),
            record("default/other", 7, Stage::Permit, 90, 10),
            record("default/pg", 7, Stage::Decision, 95, 2),
            record("default/pg", 7, Stage::Controller, 130, 5),
            record("default/pg", 7, Stage::Status, 150, 50),
        ]);
        assert_eq!(rows.len(), 2);
        let pg = &rows[1];
        assert_eq!(
            (pg.vm.as_str(), pg.start_unix_us, pg.total_us),
            ("default/pg", 95, 105)
        );
        assert_eq!(pg.change, "a -> b");
        assert_eq!(pg.stages.len(), 4);
        assert!(pg.is_complete());
    }

    #[test]
    fn a_retried_stage_counts_all_its_tries() {
        let rows = join(&[
            record("a/b", 1, Stage::Permit, 0, 10),
            record("a/b", 1, Stage::Permit, 2_000, 20),
            record("a/b", 1, Stage::Patch, 2_020, 5),
        ]);
        assert_eq!(rows.len(), 1);
        assert_eq!(
            rows[0].stages[0],
            StageTime {
                stage: Stage::Permit,
                start_unix_us: 0,
                duration_us: 30
            }
        );
        assert_eq!(rows[0].total_us, 2_025);
    }

    #[test]
    fn patches_by_hand_with_one_revision_are_separate_resizes() {
        let one = |at: i64| {
            [
                record("a/b", 0, Stage::Controller, at, 5),
                record("a/b", 0, Stage::Qmp, at + 5, 5),
                record("a/b", 0, Stage::Status, at + 10, 5),
            ]
        };
        let rows = join(&[one(0), one(1_000), one(2_000)].concat());
        assert_eq!(rows.len(), 3);
        assert!(rows.iter().all(|row| row.total_us == 15), "{rows:?}");
    }

    #[test]
    fn json_shape_is_stable() {
        let rows = join(&[record("a/b", 1, Stage::GuestVisible, 5, 10)]);
        insta::assert_snapshot!(serde_json::to_string(&rows).unwrap(), @r#"[{"vm":"a/b","revision":1,"start_unix_us":5,"total_us":10,"change":"","stages":[{"stage":"guest_visible","start_unix_us":5,"duration_us":10}]}]"#);
    }

    proptest::proptest! {
        #[test]
        fn join_keeps_every_record_and_never_panics(
            events in proptest::collection::vec((0_i64..3, 0_usize..8, 0_i64..10_000, 0_u64..1_000), 0..60)
        ) {
            let records: Vec<StageRecord> = events
                .iter()
                .map(|(revision, stage, start, duration)| record("a/b", *revision, STAGES[*stage].0, *start, *duration))
                .collect();
            let rows = join(&records);
            let kept: u64 = rows.iter().flat_map(|row| &row.stages).map(|time| time.duration_us).sum();
            let given: u64 = records.iter().map(|record| record.duration_us).sum();
            proptest::prop_assert_eq!(kept, given);
        }
    }
}
