//! `bellows vm create`: the object of a new VM, and the secret that it names.

use clap::Args;
use protocol::annotations::{ANNOTATION_USE_DISK, LABEL_ENABLED};
use protocol::postgres;
use protocol::quantity::Quantity;
use protocol::units::MilliCpu;
use protocol::vm::{API_VERSION, MEMORY_BLOCK_BYTES};
use serde_json::{Value, json};

use crate::api::Kind;
use crate::args::parse_memory;
use crate::context::Context;
use crate::fail::{Fail, Outcome};
use crate::instance::SCHEDULER_NAME;
use crate::output::{Format, print_value};
use crate::plugin;
use crate::postgres::make_secret;
use crate::terminal::{err, out};
use crate::view::units::{cores, memory};
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
    /// Image: see bellows image ls
    #[arg(long, default_value = "bellows/postgres:15", value_name = "IMAGE")]
    image: String,
    /// Fewest CPUs; fractions hold by a quota
    #[arg(long, default_value = "0.25", value_name = "CPUS", value_parser = parse_cpu)]
    cpu_min: MilliCpu,
    /// Most CPUs it may have
    #[arg(long, default_value = "2", value_name = "CPUS", value_parser = parse_cpu)]
    cpu_max: MilliCpu,
    /// Least memory, a multiple of the slot size
    #[arg(long, default_value = "1Gi", value_name = "SIZE", value_parser = parse_memory)]
    memory_min: Quantity,
    /// Most memory, a multiple of the slot size
    #[arg(long, default_value = "8Gi", value_name = "SIZE", value_parser = parse_memory)]
    memory_max: Quantity,
    /// Step in which memory changes, a multiple of 8Mi
    #[arg(long, default_value = "1Gi", value_name = "SIZE", value_parser = parse_memory)]
    slot_size: Quantity,
    /// Size of the root disk, if larger than the image's
    #[arg(long, value_name = "SIZE", value_parser = parse_memory)]
    disk_size: Option<Quantity>,
    /// A fresh root disk at each start of the guest, instead of one that lives as long as the VM
    #[arg(long, conflicts_with = "use_disk")]
    ephemeral_disk: bool,
    /// Go on with the disk that `vm delete --keep-disk` left of an earlier VM of this name
    #[arg(long)]
    use_disk: bool,
    /// Ports to reach at the VM's address, [NAME:]PORT; may be given again
    #[arg(long = "port", default_value = "postgres:5432", value_name = "PORT", value_parser = parse_port)]
    ports: Vec<Port>,
    /// Let the agent size it [default]
    #[arg(long, overrides_with = "no_autoscale")]
    autoscale: bool,
    /// Keep the size it is given
    #[arg(long)]
    no_autoscale: bool,
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

/// A port of the guest, given as `[NAME:]PORT`. The name may be empty.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Port {
    name: String,
    number: u16,
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
    let slots = Slots::of(args)?;
    if args.cpu_min > args.cpu_max {
        return Err(Fail::usage(format!(
            "--cpu-min {} is above --cpu-max {}",
            cores(args.cpu_min.0),
            cores(args.cpu_max.0)
        ))
        .rule("a VM lives between its bounds"));
    }
    let mut metadata = json!({"name": args.name, "namespace": args.namespace});
    if !args.no_autoscale {
        metadata["labels"] = json!({LABEL_ENABLED: "true"});
    }
    if args.use_disk {
        metadata["annotations"] = json!({ANNOTATION_USE_DISK: "true"});
    }
    let mut root_disk = json!({"image": args.image});
    if let Some(size) = args.disk_size {
        root_disk["size"] = json!(size);
    }
    if persistent {
        root_disk["persistent"] = json!(true);
    }
    let ports: Vec<Value> = args
        .ports
        .iter()
        .map(|port| {
            if port.name.is_empty() {
                json!({"port": port.number})
            } else {
                json!({"name": port.name, "port": port.number})
            }
        })
        .collect();
    let mut spec = json!({
        "schedulerName": SCHEDULER_NAME,
        "guest": {
            "cpus": {"min": args.cpu_min, "max": args.cpu_max, "use": args.cpu_min},
            "memorySlotSize": args.slot_size,
            "memorySlots": {"min": slots.min, "max": slots.max, "use": slots.min},
            "rootDisk": root_disk,
            "ports": ports,
        },
    });
    if postgres::is_postgres(&args.image) {
        spec["disks"] = json!([postgres::disk(&postgres::secret_name(&args.name))]);
    }
    Ok(json!({
        "apiVersion": API_VERSION,
        "kind": "VirtualMachine",
        "metadata": metadata,
        "spec": spec,
    }))
}

/// Bounds of the memory, in slots.
#[derive(Debug, PartialEq, Eq)]
struct Slots {
    min: u64,
    max: u64,
}

impl Slots {
    /// Most slots that the API server accepts.
    const MOST: u64 = 512;

    fn of(args: &CreateArgs) -> Outcome<Self> {
        let slot = args.slot_size.as_u64().unwrap_or(0);
        if slot == 0 || !slot.is_multiple_of(MEMORY_BLOCK_BYTES) {
            return Err(Fail::usage(format!(
                "--slot-size {} is no multiple of 8Mi",
                args.slot_size
            ))
            .rule("memory is plugged in blocks of 8 MiB"));
        }
        let count = |flag: &str, size: Quantity| {
            let bytes = size.as_u64().unwrap_or(0);
            let wrong = |what: String| {
                Err(Fail::usage(what).rule(format!(
                    "memory changes in slots of {}, at least one, at most {}",
                    args.slot_size,
                    Self::MOST
                )))
            };
            if bytes == 0 || !bytes.is_multiple_of(slot) {
                let near = bytes.div_ceil(slot).max(1) * slot;
                return wrong(format!(
                    "{flag} {size} is no multiple of the slot size: the next one is {}",
                    memory(near)
                ));
            }
            if bytes / slot > Self::MOST {
                return wrong(format!("{flag} {size} are {} slots", bytes / slot));
            }
            Ok(bytes / slot)
        };
        let slots = Self {
            min: count("--memory-min", args.memory_min)?,
            max: count("--memory-max", args.memory_max)?,
        };
        if slots.min > slots.max {
            return Err(Fail::usage(format!(
                "--memory-min {} is above --memory-max {}",
                args.memory_min, args.memory_max
            ))
            .rule("a VM lives between its bounds"));
        }
        Ok(slots)
    }
}

fn parse_cpu(text: &str) -> Result<MilliCpu, String> {
    let cpu =
        MilliCpu::from_json(&Value::String(text.to_owned())).map_err(|error| error.to_string())?;
    if cpu.0 == 0 {
        Err("a VM needs some CPU, at least 1m".into())
    } else {
        Ok(cpu)
    }
}

fn parse_port(text: &str) -> Result<Port, String> {
    let (name, number) = text.split_once(':').unwrap_or(("", text));
    match number.parse::<u16>() {
        Ok(number) if number > 0 => Ok(Port {
            name: name.to_owned(),
            number,
        }),
        _ => Err("a port is [NAME:]PORT with a number from 1 to 65535".into()),
    }
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
