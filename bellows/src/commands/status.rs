//! `bellows status` and `bellows dump`: state of the running instance.

use clap::Args;
use daemon_kit::exit::Exit;
use hyper::http::Method;

use crate::context::Context;
use crate::fail::{Fail, Outcome};
use crate::output::{Cell, Format, Table, age, print_value};
use crate::terminal::{Tone, out};
use crate::up::status::{PartPhase, Status};

/// Parts, addresses and readiness of the running instance.
///
/// Exits with 0 when every part is ready, else with 75.
#[derive(Debug, Clone, Args)]
pub(crate) struct StatusArgs {
    /// How to print it
    #[arg(short, long, value_enum, default_value_t, value_name = "FORMAT")]
    output: Format,
}

/// Everything every part knows, as JSON.
///
/// For bug reports and curious people: the decisions and wishes of the agent, the ledger of the
/// scheduler, the queue of the controller. Holds no secret.
#[derive(Debug, Clone, Args)]
pub(crate) struct DumpArgs {
    /// One part only: agent, scheduler or controller
    part: Option<String>,
}

pub(crate) async fn run(context: &Context, args: &StatusArgs) -> Outcome {
    let answer = context.admin(Method::GET, "/v1/status", None).await?;
    let status: Status = serde_json::from_value(answer)
        .map_err(|error| Fail::bug(format!("the admin API answered no status: {error}")))?;
    match args.output {
        Format::Json | Format::Yaml => print_value(args.output, &status)?,
        Format::Table | Format::Wide => show(context, &status),
    }
    if status.ready {
        return Ok(());
    }
    let waiting: Vec<&str> = status
        .parts
        .iter()
        .filter(|part| part.phase != PartPhase::Ready)
        .map(|part| part.name.as_str())
        .collect();
    Err(Fail::new(
        Exit::TryAgain,
        format!("not ready: {}", waiting.join(", ")),
    ))
}

fn show(context: &Context, status: &Status) {
    let paint = context.paint();
    out(&format!(
        "bellows {} on node {}, process {}, up {}",
        status.version,
        status.node,
        status.pid,
        age(status.uptime_s)
    ));
    out(&format!("kubeconfig  {}", status.kubeconfig));
    out(&format!("accelerator {}", status.accel));
    let mut table = Table::new(&["PART", "STATE", "ADDRESS", "NOTE"]);
    for part in &status.parts {
        let tone = match part.phase {
            PartPhase::Ready => Tone::Good,
            PartPhase::Starting => Tone::Warn,
            PartPhase::Ended => Tone::Bad,
        };
        table.row(vec![
            part.name.clone().into(),
            Cell::toned(tone, part.phase.label()),
            part.address.clone().unwrap_or_else(|| "-".into()).into(),
            part.note.clone().into(),
        ]);
    }
    table.print(paint);
    if let Some(line) = crate::up::status::orphans_line(status) {
        out(&paint.paint(Tone::Warn, &line));
    }
    if status.walls.is_empty() {
        return;
    }
    let mut walls = Table::new(&["WALL", "STANDS", "NOTE"]);
    for wall in &status.walls {
        let (tone, word) = if wall.stands {
            (Tone::Good, "yes")
        } else {
            (Tone::Warn, "no")
        };
        walls.row(vec![
            wall.name.clone().into(),
            Cell::toned(tone, word),
            wall.note.clone().into(),
        ]);
    }
    out("");
    walls.print(paint);
}

pub(crate) async fn dump(context: &Context, args: &DumpArgs) -> Outcome {
    let state = context.admin(Method::GET, "/v1/state", None).await?;
    let Some(part) = &args.part else {
        return print_value(Format::Json, &state);
    };
    match state.get(part) {
        Some(value) => print_value(Format::Json, value),
        None => {
            let names: Vec<&str> = state
                .as_object()
                .into_iter()
                .flatten()
                .map(|(name, _)| name.as_str())
                .collect();
            Err(Fail::usage(format!("there is no part {part:?}"))
                .rule(format!("parts are: {}", names.join(", "))))
        }
    }
}
