//! `bellows vmset create`.

use std::collections::BTreeMap;

use clap::Args;
use protocol::annotations::LABEL_ENABLED;
use protocol::policy::{GROUP, KEY_POLICY, SET_KIND, VERSION, members_name};
use serde_json::{Value, json};

use super::wait::{WaitArgs, until_whole};
use crate::api::Kind;
use crate::commands::vm_template::TemplateArgs;
use crate::context::Context;
use crate::fail::Outcome;
use crate::output::{Format, print_value};
use crate::plugin;
use crate::terminal::{err, out};

/// Name of the disk with the members' files.
const MEMBERS_DISK: &str = "members";

/// Create a set of VMs.
///
/// Members are named NAME-0, NAME-1 and so on. Each has a root disk that goes with it. Each reads
/// the names and addresses of all members in a directory that follows the set.
#[derive(Debug, Clone, Args)]
pub(crate) struct CreateArgs {
    /// Name of the new set, at most 40 characters
    name: String,
    /// Namespace of the new set
    #[arg(short, long, default_value_t = plugin::namespace(), value_name = "NAMESPACE")]
    namespace: String,
    /// Number of members
    #[arg(long, default_value_t = 1, value_name = "COUNT")]
    replicas: u32,
    /// Most members made per second
    #[arg(long, default_value_t = 5.0, value_name = "RATE")]
    grow: f64,
    /// Most members deleted per second
    #[arg(long, default_value_t = 1.0, value_name = "RATE")]
    decline: f64,
    /// A value that members read beside the addresses; may be given again
    #[arg(long = "kv", value_name = "KEY=VALUE", value_parser = pair)]
    kv: Vec<(String, String)>,
    /// Policy of scope set that decides about the number
    #[arg(long, value_name = "NAME")]
    policy: Option<String>,
    /// Priority where the capacity for the policy's sets is short; a larger one is served first
    #[arg(
        long,
        default_value_t = 0,
        value_name = "N",
        allow_hyphen_values = true
    )]
    priority: i32,
    /// A command that the policy may choose for members to read; may be given again
    #[arg(long = "command", value_name = "NAME")]
    commands: Vec<String>,
    /// A version of the template that the policy may choose; may be given again
    #[arg(long = "allow-version", value_name = "N")]
    versions: Vec<u32>,
    /// Directory in each guest with the members' names and addresses
    #[arg(long, default_value = "/etc/members", value_name = "DIR")]
    members_at: String,
    /// Give guests no such directory
    #[arg(long, conflicts_with = "members_at")]
    no_members: bool,
    #[command(flatten)]
    template: TemplateArgs,
    #[command(flatten)]
    wait: WaitArgs,
    /// Print the object as YAML and create nothing
    #[arg(long)]
    dry_run: bool,
}

fn pair(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("it must be KEY=VALUE")?;
    Ok((key.to_owned(), value.to_owned()))
}

pub(super) async fn create(context: &Context, args: &CreateArgs) -> Outcome {
    let object = object(args)?;
    if args.dry_run {
        return print_value(Format::Yaml, &object);
    }
    let api = context.api().await?;
    let (namespace, name) = (&args.namespace, &args.name);
    api.create(Kind::VmSet, namespace, name, &object, false)
        .await?;
    out(&format!("VM set {namespace}/{name} created"));
    if args.wait.is_wanted() {
        return until_whole(&api, (namespace, name), &args.wait).await;
    }
    err(&format!(
        "its members boot now; see: bellows vmset get {name} -n {namespace}"
    ));
    Ok(())
}

/// The VirtualMachineSet object.
fn object(args: &CreateArgs) -> Outcome<Value> {
    let mut spec = args.template.spec(false)?;
    if !args.no_members {
        spec["disks"] = json!([{
            "name": MEMBERS_DISK,
            "mountPath": args.members_at,
            "configMap": {"name": members_name(&args.name)},
            "watch": true,
        }]);
    }
    let mut template = json!({"spec": spec});
    if args.template.is_autoscaled() {
        template["metadata"] = json!({"labels": {LABEL_ENABLED: "true"}});
    }
    let kv: BTreeMap<&str, &str> = args.kv.iter().map(|(k, v)| (&**k, &**v)).collect();
    let mut set = json!({
        "replicas": args.replicas,
        "rates": {"grow": args.grow, "decline": args.decline},
        "template": template,
    });
    if !kv.is_empty() {
        set["kv"] = json!(kv);
    }
    if args.priority != 0 {
        set["priority"] = args.priority.into();
    }
    for (member, list) in [
        ("commands", json!(args.commands)),
        ("versions", json!(args.versions)),
    ] {
        if list != json!([]) {
            set[member] = list;
        }
    }
    let mut metadata = json!({"name": args.name, "namespace": args.namespace});
    if let Some(policy) = &args.policy {
        metadata["annotations"] = json!({KEY_POLICY: policy});
    }
    Ok(json!({
        "apiVersion": format!("{GROUP}/{VERSION}"),
        "kind": SET_KIND,
        "metadata": metadata,
        "spec": set,
    }))
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use protocol::policy;

    use super::*;
    use crate::cli::{Cli, Command};
    use crate::commands::vmset::VmsetCommand;

    fn parse(line: &str) -> Result<CreateArgs, clap::Error> {
        let words = ["bellows", "vmset", "create"].into_iter();
        let cli = Cli::try_parse_from(words.chain(line.split_whitespace()))?;
        let Command::Vmset(VmsetCommand::Create(args)) = cli.command else {
            panic!("not create")
        };
        Ok(*args)
    }

    /// Requirement: V15
    #[test]
    fn v15_set_of_the_command_is_admitted() {
        let line = "web -n a --image app --replicas 3 --grow 2 --kv mode=careful --port 80";
        let object = object(&parse(line).unwrap()).unwrap();
        assert_eq!(policy::validate(SET_KIND, &object), Ok(()));
        let spec = &object["spec"];
        assert_eq!(spec["replicas"], 3);
        assert_eq!(spec["rates"], json!({"grow": 2.0, "decline": 1.0}));
        assert_eq!(spec["kv"], json!({"mode": "careful"}));
        let template = &spec["template"];
        assert_eq!(template["metadata"]["labels"][LABEL_ENABLED], "true");
        let disk = &template["spec"]["disks"][0];
        assert_eq!(disk["configMap"]["name"], "web-members");
        assert_eq!(disk["watch"], true);
        assert_eq!(
            template["spec"]["guest"]["rootDisk"],
            json!({"image": "app"})
        );
    }

    #[test]
    fn members_directory_may_be_left_out() {
        let object = object(&parse("web --no-members --no-autoscale").unwrap()).unwrap();
        let template = &object["spec"]["template"];
        assert!(template["spec"].get("disks").is_none());
        assert!(template.get("metadata").is_none());
        for line in [
            "web --kv x",
            "web --no-members --members-at /x",
            "web --replicas -1",
        ] {
            assert!(parse(line).is_err(), "{line}");
        }
    }
}
