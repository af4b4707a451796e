//! `bellows fleet env show` and `bellows fleet history`.

use clap::Args;
use daemon_kit::clock::Clock;
use fleet_core::windows::next_tick;
use protocol::fleet::Cron;
use serde_json::json;

use super::args::EnvArgs;
use super::objects::{deployments_of, get_env, revisions_of};
use crate::context::Context;
use crate::fail::Outcome;
use crate::output::{Format, Table, print_value};
use crate::terminal::{err, out};
use crate::view::fleet::{DeploymentView, Env, EnvView, env_table, history_table};

/// An environment to print.
#[derive(Debug, Clone, Args)]
pub(crate) struct ShowArgs {
    #[command(flatten)]
    env: EnvArgs,
    /// How to print it
    #[arg(short, long, value_enum, default_value_t, value_name = "FORMAT")]
    output: Format,
}

/// One environment with its revisions.
pub(super) async fn show(context: &Context, args: &ShowArgs) -> Outcome {
    let api = context.api().await?;
    let key = args.env.key();
    let env = get_env(&api, key).await?;
    let revisions = revisions_of(&api, key).await?;
    let deployments = deployments_of(&api, key).await?;
    let view = EnvView::of(&env, &deployments);
    if matches!(args.output, Format::Json | Format::Yaml) {
        let mut value = json!(view);
        let revisions = revisions
            .iter()
            .map(|one| json!({"name": one.name, "number": one.number, "data": one.data}));
        value["revisions"] = revisions.collect();
        return print_value(args.output, &value);
    }
    let wide = args.output == Format::Wide;
    env_table(&[view], true, wide).print(context.paint());
    if let Some(cron) = &env.spec.cron {
        show_cron(cron, &env);
    }
    let mut table = Table::new(&["REVISION", "VERSION", "SHA256"]);
    for one in revisions {
        let program = one.data.resolved;
        let digits = if wide { usize::MAX } else { 12 };
        let sha256: String = program.sha256.chars().take(digits).collect();
        table.row(vec![one.name.into(), program.version.into(), sha256.into()]);
    }
    out("");
    table.print(context.paint());
    Ok(())
}

/// When it verifies, and what its newest run found.
fn show_cron(cron: &Cron, env: &Env) {
    let days: Vec<String> = cron.days.iter().map(|day| format!("{day:?}")).collect();
    let next = next_tick(cron, Clock::new().wall()).filter(|_| env.is_active());
    let next = next.map_or_else(
        || "never: nothing is started".to_owned(),
        |at| at.to_string(),
    );
    out("");
    out(&format!(
        "verifies {} at {} {}, next {next}",
        days.join(","),
        cron.start,
        cron.time_zone
    ));
    for condition in &env.status.conditions {
        out(&format!(
            "{} {}: {}",
            condition.kind, condition.status, condition.message
        ));
    }
}

/// What was rolled out, the newest first.
pub(super) async fn history(context: &Context, args: &ShowArgs) -> Outcome {
    let api = context.api().await?;
    let key = args.env.key();
    get_env(&api, key).await?;
    let all = deployments_of(&api, key).await?;
    match args.output {
        Format::Json | Format::Yaml => {
            let views: Vec<DeploymentView> = all.iter().map(DeploymentView::of).collect();
            print_value(args.output, &json!({"items": views}))
        }
        Format::Table | Format::Wide if all.is_empty() => {
            err(&format!("nothing was started in {}/{}", key.0, key.1));
            Ok(())
        }
        Format::Table | Format::Wide => {
            let wide = args.output == Format::Wide;
            history_table(&all, wide).print(context.paint());
            Ok(())
        }
    }
}
