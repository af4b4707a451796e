//! `bellows resizes`: one row per resize, with the milliseconds of each stage.

use clap::Args;
use daemon_kit::clock::Clock;
use hyper::http::Method;
use protocol::time::WallTime;

use crate::context::Context;
use crate::fail::{Fail, Outcome};
use crate::output::{Cell, Format, Table, age, millis, print_value};
use crate::resize::{Resize, STAGES};
use crate::terminal::err;
use crate::view::vm::seconds_between;

/// The last resizes and where their time went.
///
/// Times are milliseconds. TOTAL runs from the begin of the first stage to the end of the last;
/// stages may overlap or wait for one another, so it is not their sum.
#[derive(Debug, Clone, Args)]
pub(crate) struct ResizesArgs {
    /// Those of one VM only
    #[arg(long, value_name = "NAMESPACE/NAME")]
    vm: Option<String>,
    /// At most this many, newest last
    #[arg(long, default_value_t = 20, value_name = "N")]
    last: usize,
    /// How to print it
    #[arg(short, long, value_enum, default_value_t, value_name = "FORMAT")]
    output: Format,
}

pub(crate) async fn run(context: &Context, args: &ResizesArgs) -> Outcome {
    let answer = context.admin(Method::GET, "/v1/resizes", None).await?;
    let mut rows: Vec<Resize> = serde_json::from_value(answer["resizes"].clone())
        .map_err(|error| Fail::bug(format!("the admin API answered no resizes: {error}")))?;
    if let Some(vm) = &args.vm {
        let key = if vm.contains('/') {
            vm.clone()
        } else {
            format!("default/{vm}")
        };
        rows.retain(|row| row.vm == key);
    }
    rows.drain(..rows.len().saturating_sub(args.last));
    match args.output {
        Format::Json | Format::Yaml => {
            print_value(args.output, &serde_json::json!({"resizes": rows}))
        }
        Format::Table | Format::Wide => {
            if rows.is_empty() {
                err("no resize yet");
            } else {
                table(&rows, Clock::new().wall()).print(context.paint());
            }
            Ok(())
        }
    }
}

/// The table; a stage nobody stamped is `-`.
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
        cells.push(total(row, rows.iter().any(|later| is_later(later, row))).into());
        table.row(cells);
    }
    table
}

/// How long it took; one that is not complete is under way, or was overtaken by a later one of the
/// same VM.
fn total(row: &Resize, is_overtaken: bool) -> String {
    let total = millis(row.total_us);
    match (row.is_complete(), is_overtaken) {
        (true, _) => total,
        (false, true) => format!("{total} overtaken"),
        (false, false) => format!("{total}+"),
    }
}

fn is_later(other: &Resize, row: &Resize) -> bool {
    other.vm == row.vm && other.start_unix_us > row.start_unix_us
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
