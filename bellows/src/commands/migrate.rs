//! `bellows migrate`: moves a VM's guest to another pod while it runs. It writes the migration
//! object and shows its progress.

use std::time::Duration;

use clap::Args;
use daemon_kit::clock::Clock;
use daemon_kit::exit::Exit;
use protocol::quantity::Quantity;
use protocol::vm::{API_VERSION, MigrationSpec};
use serde_json::{Value, json};

use crate::api::{Api, Kind};
use crate::args::VmArgs;
use crate::context::Context;
use crate::fail::{Fail, Outcome};
use crate::output::{Format, print_value};
use crate::progress::Progress;
use crate::terminal::{err, out};

/// Interval at which the migration is read.
const POLL_INTERVAL: Duration = Duration::from_millis(300);

/// Move a VM to another pod, and so to another node, while its guest runs on.
///
/// Writes a VirtualMachineMigration and waits until it is over. The guest keeps its memory, its
/// disk, its plugged CPUs and memory, and every connection inside it. Its address changes: on one
/// machine, connections from outside to the old address end. While it moves, its size stays as it
/// is. A failed or cancelled migration leaves the guest where it was.
#[derive(Debug, Clone, Args)]
pub(crate) struct MigrateArgs {
    #[command(flatten)]
    vm: VmArgs,
    /// Only to another node; without it, any node with room will do, the VM's own too
    #[arg(long)]
    other_node: bool,
    /// Copy the whole disk, even where the target could take over its file
    #[arg(long)]
    copy_disk: bool,
    /// Let the guest go on at the target before its memory is there: a shorter stop, but no way
    /// back
    #[arg(long)]
    post_copy: bool,
    /// Do not slow down a guest that writes faster than it can be sent
    #[arg(long)]
    no_slow_down: bool,
    /// Bytes per second at most
    #[arg(long, default_value = "1Gi", value_name = "SIZE", value_parser = parse_bandwidth)]
    max_bandwidth: Quantity,
    /// Give the migration up after this many seconds
    #[arg(long, default_value_t = 3600, value_name = "SECONDS", value_parser = clap::value_parser!(i32).range(1..))]
    timeout: i32,
    /// Do not wait
    #[arg(long)]
    no_wait: bool,
    /// Call off what is under way, instead of beginning anything
    #[arg(long, conflicts_with_all = ["other_node", "copy_disk", "post_copy", "no_slow_down", "no_wait"])]
    cancel: bool,
    /// Print what became of it as
    #[arg(short, long, value_enum, default_value_t, value_name = "FORMAT")]
    output: Format,
}

fn parse_bandwidth(text: &str) -> Result<Quantity, String> {
    let size: Quantity = text
        .parse()
        .map_err(|_| "a size such as 512Mi or 1Gi".to_owned())?;
    match size.as_u64() {
        Some(bytes) if bytes > 0 => Ok(size),
        _ => Err("more than nothing".to_owned()),
    }
}

pub(crate) async fn run(context: &Context, args: &MigrateArgs) -> Outcome {
    let (namespace, name) = args.vm.key();
    let api = context.api().await?;
    if args.cancel {
        return cancel(&api, namespace, name).await;
    }
    let vm = api.get(Kind::Vm, namespace, name).await?;
    let under_way = live(&api, namespace, name).await?;
    if let Some(first) = under_way.first() {
        let other = first["metadata"]["name"].as_str().unwrap_or_default();
        err(&format!("migration {other} of this VM goes first"));
    }
    let migration = format!("{name}-{:x}", Clock::new().wall().0 / 1000);
    let object = object(args, namespace, &migration, name);
    api.create(Kind::Migration, namespace, &migration, &object, false)
        .await?;
    if args.no_wait {
        let written = api.get(Kind::Migration, namespace, &migration).await?;
        return show(args.output, &written, || {
            format!(
                "migration {namespace}/{migration} is written; see: bellows kubectl get neonvmm {migration} -n {namespace}"
            )
        });
    }
    let from = vm["status"]["podName"].as_str().unwrap_or_default();
    let over = wait(&api, namespace, &migration, args.timeout).await?;
    let said = said(&over);
    if over["status"]["phase"] == "Succeeded" {
        show(args.output, &over, || {
            format!("VM {namespace}/{name} left pod {from}: {said}")
        })
    } else {
        if args.output != Format::Table && args.output != Format::Wide {
            print_value(args.output, &over)?;
        }
        Err(
            Fail::not_so(format!("VM {namespace}/{name} was not moved: {said}")).fix(format!(
                "the guest runs on where it was; see: bellows get vms {name} -n {namespace}"
            )),
        )
    }
}

fn show(format: Format, object: &Value, text: impl Fn() -> String) -> Outcome {
    if matches!(format, Format::Table | Format::Wide) {
        out(&text());
        return Ok(());
    }
    print_value(format, object)
}

/// Builds the `VirtualMachineMigration` that the options ask for.
fn object(args: &MigrateArgs, namespace: &str, migration: &str, vm: &str) -> Value {
    let spec = MigrationSpec {
        vm_name: vm.to_owned(),
        prevent_migration_to_same_host: args.other_node,
        completion_timeout: args.timeout,
        incremental: !args.copy_disk,
        allow_post_copy: args.post_copy,
        auto_converge: !args.no_slow_down,
        max_bandwidth: args.max_bandwidth,
        ..MigrationSpec::default()
    };
    migration_object(namespace, migration, &spec)
}

/// The `VirtualMachineMigration` with this spec.
pub(crate) fn migration_object(namespace: &str, migration: &str, spec: &MigrationSpec) -> Value {
    json!({
        "apiVersion": API_VERSION,
        "kind": "VirtualMachineMigration",
        "metadata": {"name": migration, "namespace": namespace},
        "spec": spec,
    })
}

/// Migrations of a VM that have not ended.
async fn live(api: &Api, namespace: &str, vm: &str) -> Outcome<Vec<Value>> {
    let mut all = api.list(Kind::Migration, Some(namespace)).await?;
    all.retain(|one| one["spec"]["vmName"] == vm && !is_over(one));
    Ok(all)
}

fn is_over(migration: &Value) -> bool {
    let phase = migration["status"]["phase"].as_str();
    matches!(phase, Some("Succeeded" | "Failed"))
}

/// Message of the migration's condition.
fn said(migration: &Value) -> String {
    let conditions = migration["status"]["conditions"].as_array();
    let mut conditions = conditions.into_iter().flatten();
    let available = conditions.find(|condition| condition["type"] == "Available");
    let text = available.and_then(|condition| condition["message"].as_str());
    text.unwrap_or("nothing is known of it yet").to_owned()
}

async fn wait(api: &Api, namespace: &str, name: &str, timeout_s: i32) -> Outcome<Value> {
    let mut progress = Progress::new();
    // The controller enforces the timeout. This wait notices a controller that does not run.
    let patience = u64::try_from(timeout_s)
        .unwrap_or(0)
        .saturating_mul(2)
        .saturating_add(30);
    loop {
        let migration = api.get(Kind::Migration, namespace, name).await?;
        if is_over(&migration) {
            progress.clear();
            return Ok(migration);
        }
        if progress.elapsed().as_secs() >= patience {
            return Err(Fail::new(
                Exit::TryAgain,
                format!(
                    "migration {namespace}/{name} is not over: {}",
                    said(&migration)
                ),
            )
            .fix("see whether the controller is ready: bellows status"));
        }
        progress.say(&line(&migration));
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// State of a migration, in one line.
fn line(migration: &Value) -> String {
    let status = &migration["status"];
    let ram = &status["info"]["ram"];
    let figure = |name: &str| ram[name].as_u64().map(|bytes| bytes >> 20);
    match (figure("transferred"), figure("remaining")) {
        (Some(sent), Some(left)) if status["phase"] == "Running" => {
            format!("{} MiB sent, {} MiB to go", sent, left)
        }
        _ => said(migration),
    }
}

async fn cancel(api: &Api, namespace: &str, vm: &str) -> Outcome {
    api.get(Kind::Vm, namespace, vm).await?;
    let under_way = live(api, namespace, vm).await?;
    if under_way.is_empty() {
        return Err(Fail::not_so(format!(
            "VM {namespace}/{vm} does not migrate"
        )));
    }
    for migration in &under_way {
        let name = migration["metadata"]["name"].as_str().unwrap_or_default();
        api.delete(Kind::Migration, namespace, name).await?;
        let mut progress = Progress::new();
        loop {
            match api.get(Kind::Migration, namespace, name).await {
                Ok(left) => progress.say(&said(&left)),
                Err(fail) if fail.exit() == Exit::NotSo => break,
                Err(fail) => return Err(fail),
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        progress.clear();
        out(&format!("migration {namespace}/{name} is called off"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Cli, Command};
    use clap::Parser;

    fn args(words: &[&str]) -> MigrateArgs {
        let all = ["bellows", "migrate", "pg"].iter().chain(words);
        match Cli::try_parse_from(all).unwrap().command {
            Command::Migrate(args) => *args,
            _ => panic!("not migrate"),
        }
    }

    #[test]
    fn migration_object_has_the_requested_options() {
        let plain = object(&args(&[]), "default", "m", "pg");
        assert_eq!(
            plain["spec"],
            json!({"vmName": "pg", "preventMigrationToSameHost": false, "completionTimeout": 3600,
                "incremental": true, "allowPostCopy": false, "autoConverge": true, "maxBandwidth": "1Gi"})
        );
        let words = [
            "--other-node",
            "--copy-disk",
            "--post-copy",
            "--no-slow-down",
            "--max-bandwidth=64Mi",
            "--timeout=60",
        ];
        assert_eq!(
            object(&args(&words), "default", "m", "pg")["spec"],
            json!({"vmName": "pg", "preventMigrationToSameHost": true, "completionTimeout": 60,
                "incremental": false, "allowPostCopy": true, "autoConverge": false, "maxBandwidth": "64Mi"})
        );
        assert!(Cli::try_parse_from(["bellows", "migrate", "pg", "--max-bandwidth", "0"]).is_err());
        assert!(
            Cli::try_parse_from(["bellows", "migrate", "pg", "--cancel", "--post-copy"]).is_err()
        );
    }

    #[test]
    fn progress_shows_figures_once_known() {
        let mut migration = json!({"status": {"phase": "Pending", "conditions": [
            {"type": "Available", "status": "False", "message": "waits"}]}});
        assert_eq!(line(&migration), "waits");
        migration["status"]["phase"] = json!("Running");
        migration["status"]["info"] =
            json!({"ram": {"transferred": 5 << 20, "remaining": 7 << 20}});
        assert_eq!(line(&migration), "5 MiB sent, 7 MiB to go");
    }
}
