//! `bellows vm create`: the object of a new VM, and the secret that it names.

use clap::Args;
use protocol::annotations::{ANNOTATION_USE_DISK, LABEL_ENABLED};
use protocol::postgres;
use protocol::vm::API_VERSION;
use serde_json::{Value, json};

use super::vm_template::TemplateArgs;
use crate::api::Kind;
use crate::context::Context;
use crate::fail::Outcome;
use crate::output::{Format, print_value};
use crate::plugin;
use crate::postgres::make_secret;
use crate::terminal::{err, out};
use crate::vm_state::wait_until_running;

/// Create a VM.
///
/// It starts at its smallest size. With autoscaling (the default) the agent grows and shrinks it
/// between the bounds by what its guest needs; without, it keeps the size it has until somebody
/// patches it.
#[derive(Debug, Clone, Args)]
pub(crate) struct CreateArgs {
    /// Name of the new VM
    name: String,
    /// Namespace of the new VM
    #[arg(short, long, default_value_t = plugin::namespace(), value_name = "NAMESPACE")]
    namespace: String,
    #[command(flatten)]
    template: TemplateArgs,
    /// A fresh root disk at each start of the guest, instead of one that lives as long as the VM
    #[arg(long, conflicts_with = "use_disk")]
    ephemeral_disk: bool,
    /// Go on with the disk that `vm delete --keep-disk` left of an earlier VM of this name
    #[arg(long)]
    use_disk: bool,
    /// Wait until it runs
    #[arg(long)]
    wait: bool,
    /// Give up waiting after this many seconds
    #[arg(long, default_value_t = 600, value_name = "SECONDS", requires = "wait")]
    timeout: u64,
    /// Print the object as YAML and create nothing; `server` has the API server check and complete
    /// it
    #[arg(long, value_name = "WHO", num_args = 0..=1, require_equals = true, default_missing_value = "client", value_enum)]
    dry_run: Option<DryRun>,
}

/// Place where a dry run ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum DryRun {
    /// We print what we would send.
    Client,
    /// The API server prints what it would keep.
    Server,
}

pub(crate) async fn create(context: &Context, args: &CreateArgs) -> Outcome {
    let object = object(args, !args.ephemeral_disk && !context.asks_cluster())?;
    let secret = postgres::secret_of(&object).map(str::to_owned);
    if let (Some(_), Some(secret)) = (args.dry_run, &secret) {
        err(&format!(
            "it needs a secret with the key {}, which vm create makes: {}/{secret}",
            postgres::KEY,
            args.namespace
        ));
    }
    if args.dry_run == Some(DryRun::Client) {
        return print_value(Format::Yaml, &object);
    }
    let api = context.api().await?;
    let is_dry = args.dry_run.is_some();
    let answer = api
        .create(Kind::Vm, &args.namespace, &args.name, &object, is_dry)
        .await?;
    if is_dry {
        return print_value(Format::Yaml, &answer);
    }
    out(&format!("VM {}/{} created", args.namespace, args.name));
    make_secret(&api, &answer).await?;
    if args.wait {
        wait_until_running(&api, &args.namespace, &args.name, args.timeout).await?;
        if secret.is_some() {
            err(&format!(
                "connect to its database: bellows psql {} -n {}",
                args.name, args.namespace
            ));
        }
        Ok(())
    } else {
        err(&format!(
            "it boots now; see: bellows get vms {} -n {}",
            args.name, args.namespace
        ));
        Ok(())
    }
}

/// The VirtualMachine object. It holds only what differs from the API server's defaults.
fn object(args: &CreateArgs, persistent: bool) -> Outcome<Value> {
    let mut metadata = json!({"name": args.name, "namespace": args.namespace});
    if args.template.is_autoscaled() {
        metadata["labels"] = json!({LABEL_ENABLED: "true"});
    }
    if args.use_disk {
        metadata["annotations"] = json!({ANNOTATION_USE_DISK: "true"});
    }
    let mut spec = args.template.spec(persistent)?;
    if postgres::is_postgres(&args.template.image) {
        spec["disks"] = json!([postgres::disk(&postgres::secret_name(&args.name))]);
    }
    Ok(json!({
        "apiVersion": API_VERSION,
        "kind": "VirtualMachine",
        "metadata": metadata,
        "spec": spec,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    fn parse(line: &str) -> Result<CreateArgs, clap::Error> {
        let words = ["bellows", "vm", "create"]
            .into_iter()
            .chain(line.split_whitespace());
        let cli = crate::cli::Cli::try_parse_from(words)?;
        let crate::cli::Command::Vm(crate::commands::vm::VmCommand::Create(args)) = cli.command
        else {
            panic!("not create")
        };
        Ok(*args)
    }

    /// Requirement: N46
    #[test]
    fn the_default_vm_is_an_autoscaled_postgres() {
        let object = object(&parse("pg").unwrap(), true).unwrap();
        insta::assert_snapshot!(serde_json::to_string_pretty(&object).unwrap());
        let vm: protocol::vm::VirtualMachine = serde_json::from_value(object).unwrap();
        assert_eq!(vm.spec.guest.in_use(), vm.spec.guest.smallest());
        assert!(vm.metadata.label_is_true(LABEL_ENABLED));
    }

    #[test]
    fn vm_of_a_postgres_image_gets_a_password_and_others_do_not() {
        let of = |line: &str| object(&parse(line).unwrap(), true).unwrap();
        let secret = |vm: &Value| postgres::secret_of(vm).map(str::to_owned);
        assert_eq!(secret(&of("pg")), Some("postgres-pg".into()));
        assert_eq!(secret(&of("x --image bellows/minimal")), None);
    }

    #[test]
    fn flags_reach_the_object() {
        let line = "x -n a --image i --cpu-min 1 --cpu-max 4 --memory-min 512Mi --memory-max 2Gi --slot-size 256Mi --port 80 --port db:5432 --no-autoscale";
        let object = object(&parse(line).unwrap(), false).unwrap();
        assert_eq!(object["metadata"], json!({"name": "x", "namespace": "a"}));
        let guest = &object["spec"]["guest"];
        assert_eq!(guest["cpus"], json!({"min": 1, "max": 4, "use": 1}));
        assert_eq!(guest["memorySlots"], json!({"min": 2, "max": 8, "use": 2}));
        assert_eq!(
            guest["ports"],
            json!([{"port": 80}, {"name": "db", "port": 5432}])
        );
        assert_eq!(guest["rootDisk"], json!({"image": "i"}));
        let labels = |line: &str| {
            super::object(&parse(line).unwrap(), true).unwrap()["metadata"]["labels"].clone()
        };
        assert_eq!(
            labels("x --no-autoscale --autoscale"),
            json!({LABEL_ENABLED: "true"})
        );
    }

    #[test]
    fn root_disk_persists_unless_ephemeral() {
        let disk = |line: &str| {
            let args = parse(line).unwrap();
            let object = super::object(&args, !args.ephemeral_disk).unwrap();
            object["spec"]["guest"]["rootDisk"].clone()
        };
        let kept = json!({"image": "i", "persistent": true, "size": "4Gi"});
        assert_eq!(disk("x --image i --disk-size 4Gi"), kept);
        assert_eq!(disk("x --image i --ephemeral-disk"), json!({"image": "i"}));
        assert!(parse("x --ephemeral-disk --use-disk").is_err());
        let object = super::object(&parse("x --use-disk").unwrap(), true).unwrap();
        assert_eq!(
            object["metadata"]["annotations"],
            json!({ANNOTATION_USE_DISK: "true"})
        );
    }

    #[test]
    fn impossible_sizes_are_refused_with_the_rule() {
        for (line, word) in [
            ("x --memory-min 1500Mi", "2Gi"),
            ("x --slot-size 4Mi", "8Mi"),
            ("x --cpu-min 3", "--cpu-max 2"),
            ("x --memory-min 9Gi", "above --memory-max"),
            ("x --slot-size 8Mi --memory-max 8Gi", "1024 slots"),
        ] {
            let fail = object(&parse(line).unwrap(), true).unwrap_err();
            assert_eq!(fail.exit() as u8, 64, "{line}");
            assert!(
                fail.to_string().contains(word) && fail.to_string().contains("rule:"),
                "{line}: {fail}"
            );
        }
        for line in [
            "x --port 0",
            "x --port a:b",
            "x --cpu-min 0",
            "x --cpu-max -1",
            "x --memory-max 0",
            "x --memory-max lots",
        ] {
            assert!(parse(line).is_err(), "{line}");
        }
    }
}
