//! `bellows fleet instances`: the parts of each guest.

use clap::Args;
use protocol::parts::PartName;
use serde_json::{Value, json};

use super::args::ListArgs;
use super::objects::{labels, list_envs, revisions_of};
use super::parts;
use crate::api::{Api, Kind};
use crate::context::Context;
use crate::fail::Outcome;
use crate::output::{Format, print_value};
use crate::terminal::err;
use crate::view::fleet::Env;
use crate::view::parts::{self as view, InstanceView};

/// Guests to list, and which of them.
#[derive(Debug, Clone, Args)]
pub(crate) struct InstancesArgs {
    #[command(flatten)]
    list: ListArgs,
    #[command(flatten)]
    only: OnlyArgs,
}

#[derive(Debug, Clone, Copy, Default, Args)]
#[group(multiple = false)]
struct OnlyArgs {
    /// Only those that run another program than their environment's newest revision
    #[arg(long)]
    outdated: bool,
    /// Only those with a part that belongs to no environment
    #[arg(long)]
    unassigned: bool,
    /// Only those whose parts are unknown
    #[arg(long)]
    unmanaged: bool,
}

pub(super) async fn instances(context: &Context, args: &InstancesArgs) -> Outcome {
    let mut instances = parts::read(context, &args.list).await?;
    let only = args.only;
    if only.unmanaged {
        instances.retain(|one| one.unmanaged.is_some());
    }
    if only.outdated || only.unassigned {
        let api = context.api().await?;
        let targets = Targets::read(&api, args.list.namespace.chosen()).await?;
        if only.unassigned {
            instances.retain(|one| targets.leaves_out(one));
        } else {
            instances.retain(|one| targets.is_outdated(one));
        }
    }
    let format = args.list.output;
    match format {
        Format::Json | Format::Yaml => print_value(format, &json!({"items": instances})),
        Format::Table | Format::Wide if instances.is_empty() => {
            let is_filtered = only.outdated || only.unassigned || only.unmanaged;
            err(if is_filtered {
                "no such guest"
            } else {
                "no VM runs"
            });
            Ok(())
        }
        Format::Table | Format::Wide => {
            let with_namespace = args.list.namespace.chosen().is_none();
            let wide = format == Format::Wide;
            view::table(&instances, with_namespace, wide).print(context.paint());
            Ok(())
        }
    }
}

/// Programs that the environments name, and the VMs by which they find their guests.
struct Targets {
    envs: Vec<(Env, Option<String>)>,
    vms: Vec<Value>,
}

impl Targets {
    async fn read(api: &Api, namespace: Option<&str>) -> Outcome<Self> {
        let mut envs = Vec::new();
        for env in list_envs(api, namespace).await? {
            let revisions = revisions_of(api, (&env.namespace, &env.name)).await?;
            let newest = revisions.into_iter().next();
            envs.push((env, newest.map(|one| one.data.resolved.sha256)));
        }
        let vms = api.list(Kind::Vm, namespace).await?;
        Ok(Self { envs, vms })
    }

    fn env_of(&self, view: &InstanceView, part: PartName) -> Option<&(Env, Option<String>)> {
        let vm = self.vms.iter().find(|vm| {
            let metadata = &vm["metadata"];
            metadata["name"] == view.vm.as_str() && metadata["namespace"] == view.namespace.as_str()
        })?;
        let labels = labels(vm);
        self.envs.iter().find(|(env, _)| {
            let is_here = env.namespace == view.namespace && env.spec.part == part;
            is_here && !env.spec.is_cron() && env.spec.selector.matches(&labels)
        })
    }

    fn leaves_out(&self, view: &InstanceView) -> bool {
        let mut parts = view.parts.keys();
        view.unmanaged.is_none() && parts.any(|part| self.env_of(view, *part).is_none())
    }

    fn is_outdated(&self, view: &InstanceView) -> bool {
        view.parts.iter().any(|(part, state)| {
            let target = self
                .env_of(view, *part)
                .and_then(|(_, sha256)| sha256.as_ref());
            target.is_some_and(|target| *target != state.sha256)
        })
    }
}
