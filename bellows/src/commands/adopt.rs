//! `bellows adopt`: recreates the objects of guests that run without them, or releases such guests.
//!
//! A guest loses its objects when the API's store is replaced, emptied or restored. The node driver
//! leaves it alone until this command decides.

use std::time::Duration;

use clap::Args;
use hyper::http::Method;
use neonvm_runner::node::{AdoptError, Adoption, Orphan, adoption};
use protocol::annotations::ANNOTATION_ADOPTS;
use protocol::vm::{API_VERSION, VirtualMachine};
use serde_json::{Value, json};

use crate::api::{Api, Kind};
use crate::context::Context;
use crate::fail::{Fail, Outcome};
use crate::terminal::{err, out};

/// Longest time until an adopted VM is Running.
const PATIENCE: Duration = Duration::from_secs(90);
/// Interval at which the phase is read.
const POLL_INTERVAL: Duration = Duration::from_millis(250);

/// Bring back the objects of guests that run without them, or let such guests go.
///
/// Without a name all of them are adopted. A guest is not restarted: its VM gets the size that the
/// guest has, and its pod the guest that runs. `bellows status` lists these guests.
#[derive(Debug, Clone, Args)]
pub(crate) struct AdoptArgs {
    /// VMs or pods, as NAME or NAMESPACE/NAME [default: all]
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// End this guest instead; its directory is kept in `trash` of the state directory for a week
    #[arg(long, value_name = "NAME", conflicts_with = "names")]
    release: Vec<String>,
    /// Only list the guests
    #[arg(long, conflicts_with_all = ["names", "release"])]
    list: bool,
}

pub(crate) async fn run(context: &Context, args: &AdoptArgs) -> Outcome {
    let answer = context.admin(Method::GET, "/v1/orphans", None).await?;
    let orphans: Vec<Orphan> = serde_json::from_value(answer["orphans"].clone())
        .map_err(|error| Fail::bug(format!("the admin API answered no guests: {error}")))?;
    if args.list {
        for orphan in &orphans {
            out(&format!(
                "{}/{} in pod {}",
                orphan.namespace, orphan.vm, orphan.pod
            ));
        }
        return Ok(());
    }
    if !args.release.is_empty() {
        return release(context, &choose(&orphans, &args.release)?).await;
    }
    if orphans.is_empty() && args.names.is_empty() {
        out("every guest here has its objects");
        return Ok(());
    }
    let chosen = choose(&orphans, &args.names)?;
    let api = context.api().await?;
    let mut first = Ok(());
    for orphan in chosen {
        // A guest that cannot be adopted does not stop the others.
        if let Err(fail) = adopt(context, &api, orphan).await {
            err(&fail.to_string());
            first = first.and(Err(fail));
        }
    }
    first
}

/// The named guests, or all if none is named.
fn choose<'a>(orphans: &'a [Orphan], names: &[String]) -> Outcome<Vec<&'a Orphan>> {
    if names.is_empty() {
        return Ok(orphans.iter().collect());
    }
    let mut chosen = Vec::new();
    for name in names {
        let (namespace, short) = name.split_once('/').unwrap_or(("default", name));
        let is_named = |orphan: &&Orphan| {
            orphan.namespace == namespace && (orphan.vm == short || orphan.pod == short)
        };
        let before = chosen.len();
        chosen.extend(orphans.iter().filter(is_named));
        if chosen.len() == before {
            return Err(
                Fail::not_so(format!("no guest {namespace}/{short} runs without objects"))
                    .fix("see which do: bellows adopt --list"),
            );
        }
    }
    Ok(chosen)
}

async fn release(context: &Context, chosen: &[&Orphan]) -> Outcome {
    for orphan in chosen {
        let body = json!({"pod": orphan.key()});
        let route = "/v1/orphans/release";
        context.admin(Method::POST, route, Some(&body)).await?;
        let trash = context.state()?.path().join("trash");
        out(&format!(
            "guest of pod {} is ended; its directory is kept in {} for a week",
            orphan.key(),
            trash.display()
        ));
    }
    Ok(())
}

async fn adopt(context: &Context, api: &Api, orphan: &Orphan) -> Outcome {
    let state = context.state()?;
    let adoption = adoption(state.path(), orphan)
        .await
        .map_err(|error| explain(orphan, &error))?;
    let word = json!(format!("{}/{}", orphan.pod, orphan.uid));
    match find(api, &orphan.namespace, &adoption.name).await? {
        // An earlier adoption was interrupted.
        Some(vm) if vm["metadata"]["annotations"][ANNOTATION_ADOPTS] == word => {}
        Some(_) => return Err(exists(orphan, &adoption.name)),
        None => create(api, orphan, &adoption).await?,
    }
    wait(api, orphan, &adoption.name).await?;
    let key = format!("{}/{}", orphan.namespace, adoption.name);
    out(&format!(
        "VM {key} has its guest back, in pod {}",
        orphan.pod
    ));
    if adoption.is_partial {
        err(&format!(
            "VM {key}: only its spec was found. Its labels, annotations and secrets are lost: make it autoscaled again with \
             kubectl label neonvm {} autoscaling.neon.tech/enabled=true",
            adoption.name
        ));
    }
    Ok(())
}

fn explain(orphan: &Orphan, error: &AdoptError) -> Fail {
    let what = format!("pod {} cannot be adopted: {error}", orphan.key());
    match error {
        AdoptError::NotRunning => Fail::not_so(what)
            .rule("a guest that has ended has nothing to be taken over; its disk is kept")
            .fix(format!(
                "let it go, its disk is then in trash of the state directory for a week: bellows adopt --release {}/{}",
                orphan.namespace, orphan.pod
            )),
        _ => Fail::missing(what),
    }
}

fn exists(orphan: &Orphan, name: &str) -> Fail {
    let namespace = &orphan.namespace;
    Fail::not_so(format!(
        "VM {namespace}/{name} exists already, and not with the guest of pod {}",
        orphan.pod
    ))
    .rule("a VM has one guest")
    .fix(format!(
        "decide which guest to keep: bellows vm delete {name} -n {namespace}, then bellows adopt again; or bellows adopt \
         --release {namespace}/{}",
        orphan.pod
    ))
}

async fn find(api: &Api, namespace: &str, name: &str) -> Outcome<Option<Value>> {
    let vms = api.list(Kind::Vm, Some(namespace)).await?;
    Ok(vms.into_iter().find(|vm| vm["metadata"]["name"] == name))
}

/// Creates the missing objects. The VM comes last, because its pod mounts the others.
async fn create(api: &Api, orphan: &Orphan, adoption: &Adoption) -> Outcome {
    let namespace = &orphan.namespace;
    let object = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}});
    ensure(api, "/api/v1/namespaces", &object).await?;
    for secret in &adoption.secrets {
        ensure(api, &collection(namespace, "secrets"), secret).await?;
    }
    for map in &adoption.config_maps {
        ensure(api, &collection(namespace, "configmaps"), map).await?;
    }
    let name = &adoption.name;
    let vm = api
        .create(Kind::Vm, namespace, name, &adoption.vm, false)
        .await?;
    for secret in &adoption.owned_secrets {
        own(api, namespace, secret, &vm).await?;
    }
    Ok(())
}

fn collection(namespace: &str, plural: &str) -> String {
    format!("/api/v1/namespaces/{namespace}/{plural}")
}

async fn ensure(api: &Api, path: &str, object: &Value) -> Outcome {
    match api.post(path, object).await {
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
        other => other.map(drop).map_err(|error| {
            let (kind, name) = (&object["kind"], &object["metadata"]["name"]);
            Fail::try_again(format!(
                "{kind} {name} is not created: {}",
                daemon_kit::chain(&error)
            ))
        }),
    }
}

/// Makes the VM the owner of a secret, so that both are deleted together.
async fn own(api: &Api, namespace: &str, name: &str, vm: &Value) -> Outcome {
    let path = format!("{}/{name}", collection(namespace, "secrets"));
    let mut secret = api.get(Kind::Secret, namespace, name).await?;
    if secret["metadata"]["ownerReferences"].is_array() {
        return Ok(());
    }
    secret["metadata"]["ownerReferences"] = json!([{
        "apiVersion": API_VERSION, "kind": "VirtualMachine", "controller": true, "blockOwnerDeletion": true,
        "name": vm["metadata"]["name"], "uid": vm["metadata"]["uid"],
    }]);
    let given = api.put(&path, &secret).await;
    given.map(drop).map_err(|error| {
        Fail::try_again(format!(
            "secret {namespace}/{name}: {}",
            daemon_kit::chain(&error)
        ))
    })
}

async fn wait(api: &Api, orphan: &Orphan, name: &str) -> Outcome {
    let end = tokio::time::Instant::now() + PATIENCE;
    loop {
        let object = api.get(Kind::Vm, &orphan.namespace, name).await?;
        let vm: VirtualMachine = serde_json::from_value(object)
            .map_err(|error| Fail::bug(format!("VM {name} cannot be understood: {error}")))?;
        let status = vm.status.unwrap_or_default();
        if status.phase.is_alive() && status.pod_name == orphan.pod {
            return Ok(());
        }
        if tokio::time::Instant::now() > end {
            return Err(Fail::try_again(format!(
                "VM {}/{name} has not its guest back after {} s: its phase is {:?}",
                orphan.namespace,
                PATIENCE.as_secs(),
                status.phase.as_str()
            ))
            .fix(format!(
                "see what it waits for: bellows kubectl describe neonvm {name}"
            )));
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn orphan(namespace: &str, vm: &str) -> Orphan {
        Orphan {
            namespace: namespace.into(),
            vm: vm.into(),
            pod: format!("{vm}-x"),
            uid: "u".into(),
            dir: "/s".into(),
        }
    }

    #[test]
    fn guests_are_named_by_vm_or_pod_and_all_without_a_name() {
        let orphans = [orphan("default", "pg"), orphan("other", "pg")];
        let keys = |names: &[&str]| -> Outcome<Vec<String>> {
            let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
            let chosen = choose(&orphans, &names)?;
            Ok(chosen.iter().map(|orphan| orphan.key()).collect())
        };
        assert_eq!(keys(&[]).unwrap(), ["default/pg-x", "other/pg-x"]);
        assert_eq!(keys(&["pg"]).unwrap(), ["default/pg-x"]);
        assert_eq!(keys(&["other/pg-x"]).unwrap(), ["other/pg-x"]);
        assert_eq!(keys(&["none"]).unwrap_err().exit() as u8, 1);
    }
}
