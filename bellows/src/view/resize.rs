//! The table of resizes, one row each, with the milliseconds of every stage.

use protocol::time::WallTime;

use super::units::seconds_between;
use crate::output::{Cell, Table, age, millis};
use crate::resize::{Resize, STAGES};

/// The table. A stage without a record is `-`.
pub(crate) fn table(rows: &[Resize], now: WallTime) -> Table {
    let mut header = vec!["AGE", "VM", "REV", "CHANGE"];
    header.extend(STAGES.map(|(_, name)| name));
    header.push("TOTAL");
    let mut table = Table::new(&header);
    for row in rows {
        let mut cells: Vec<Cell> = vec![
            age(seconds_between(row.start_unix_us, now)).into(),
            row.vm.clone().into(),
            row.revision.to_string().into(),
            if row.change.is_empty() {
                "-".into()
            } else {
                row.change.clone()
            }
            .into(),
        ];
        cells.extend(STAGES.map(|(stage, _)| {
            Cell::from(
                row.stage(stage)
                    .map_or_else(|| "-".into(), |time| millis(time.duration_us)),
            )
        }));
        cells.push(total(row, is_overtaken(row, rows)).into());
        table.row(cells);
    }
    table
}

/// Duration of a resize. An incomplete one is under way, or a later one of the same VM overtook it.
fn total(row: &Resize, is_overtaken: bool) -> String {
    let total = millis(row.total_us);
    match (row.is_complete(), is_overtaken) {
        (true, _) => total,
        (false, true) => format!("{total} overtaken"),
        (false, false) => format!("{total}+"),
    }
}

/// Whether a later resize of the same VM is among `all`.
pub(crate) fn is_overtaken(row: &Resize, all: &[Resize]) -> bool {
    let is_later = |other: &Resize| other.vm == row.vm && other.start_unix_us > row.start_unix_us;
    all.iter().any(is_later)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::terminal::Paint;
    use protocol::trace::{Stage, StageRecord, TraceId};

    #[test]
    fn one_row_per_resize_with_every_stage() {
        let record = |stage, start_unix_us, duration_us| StageRecord {
            trace: TraceId {
                vm: "default/pg".into(),
                revision: 7,
            },
            stage,
            start_unix_us,
            duration_us,
            change: "250m CPU / 1Gi -> 1 CPU / 4Gi".into(),
        };
        let rows = crate::resize::join(&[
            record(Stage::Decision, 1_000_000, 420),
            record(Stage::Permit, 1_000_500, 3_100),
            record(Stage::Patch, 1_004_000, 12_000),
            record(Stage::Qmp, 1_020_000, 143_000),
        ]);
        let lines = table(&rows, WallTime(13_000_000))
            .lines(Paint::PLAIN)
            .join("\n");
        insta::assert_snapshot!(lines, @r"
        AGE  VM          REV  CHANGE                         DECIDE  PERMIT  MONITOR  PATCH  CONTROL  QMP  GUEST  STATUS  TOTAL
        12s  default/pg  7    250m CPU / 1Gi -> 1 CPU / 4Gi  0.42    3.1     -        12.0   -        143  -      -       163+
        ");
    }

    #[test]
    fn a_resize_that_a_later_one_overtook_is_not_under_way() {
        let row = |revision, start_unix_us| StageRecord {
            trace: TraceId {
                vm: "default/pg".into(),
                revision,
            },
            stage: Stage::Patch,
            start_unix_us,
            duration_us: 1_000,
            change: String::new(),
        };
        let rows = crate::resize::join(&[row(1, 0), row(2, 5_000)]);
        let lines = table(&rows, WallTime(6_000)).lines(Paint::PLAIN);
        assert!(
            lines[1].ends_with("1.0 overtaken") && lines[2].ends_with("1.0+"),
            "{lines:?}"
        );
    }
}
