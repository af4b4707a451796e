//! `bellows policy apply`.

use std::path::PathBuf;

use clap::Args;
use policy_contract::{CONTRACT, Scope, Spec};
use protocol::policy::{GROUP, KEY_POLICY, KIND, ScalingPolicySpec, VERSION};
use serde_json::{Map, Value, json};

use crate::api::Kind;
use crate::context::Context;
use crate::fail::{Fail, Outcome};
use crate::terminal::out;

/// Create or update a policy from a Lua file.
///
/// A new version is a candidate: its answers are recorded, and nothing else is done with them.
#[derive(Debug, Clone, Args)]
pub(crate) struct ApplyArgs {
    /// Source of the policy, Lua
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Name of the policy [default: that of the file]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// A number of the policy; may be given again
    #[arg(long = "params", value_name = "NAME=NUMBER", value_parser = parameter)]
    params: Vec<(String, f64)>,
    /// A series beyond load1, load5, used and cached; may be given again
    #[arg(long = "series", value_name = "NAME")]
    series: Vec<String>,
}

fn parameter(text: &str) -> Result<(String, f64), String> {
    let (name, number) = text.split_once('=').ok_or("it must be NAME=NUMBER")?;
    let number = number.parse().map_err(|error| format!("{error}"))?;
    Ok((name.to_owned(), number))
}

/// The contract's part of an object's spec.
pub(super) fn contract_spec(object: &Value) -> Result<Spec, String> {
    let spec = ScalingPolicySpec::of_object(object)?;
    Ok(Spec {
        contract: CONTRACT,
        scope: spec.scope,
        source: spec.source,
        params: spec.params,
        series: spec.series,
        feeds: spec.feeds,
    })
}

pub(super) fn read_source(file: &std::path::Path) -> Outcome<String> {
    std::fs::read_to_string(file)
        .map_err(|error| Fail::usage(format!("{} cannot be read: {error}", file.display())))
}

pub(super) async fn apply(context: &Context, args: &ApplyArgs) -> Outcome {
    let source = read_source(&args.file)?;
    let stem = args.file.file_stem().and_then(|stem| stem.to_str());
    let name = args.name.as_deref().or(stem).unwrap_or_default();
    let params: Map<String, Value> = args
        .params
        .iter()
        .map(|(name, number)| (name.clone(), json!(number)))
        .collect();
    let wanted = json!({
        "scope": Scope::Vm,
        "source": source,
        "params": params,
        "series": args.series,
    });
    let api = context.api().await?;
    let known = api.list(Kind::Policy, None).await?;
    let known = known
        .into_iter()
        .find(|one| one["metadata"]["name"] == name);
    let (object, is_new) = match known {
        None => {
            let object = json!({
                "apiVersion": format!("{GROUP}/{VERSION}"),
                "kind": KIND,
                "metadata": {"name": name},
                "spec": wanted,
            });
            let made = api.create(Kind::Policy, "", name, &object, false).await?;
            (made, true)
        }
        Some(old) => {
            // A merge patch removes the parameters that are not named any more by a null.
            let mut wanted = wanted;
            for gone in old["spec"]["params"].as_object().into_iter().flatten() {
                if wanted["params"].get(gone.0).is_none() {
                    wanted["params"][gone.0] = Value::Null;
                }
            }
            let patch = json!({"spec": wanted});
            let made = api.merge(Kind::Policy, "", name, &patch).await?;
            (made, false)
        }
    };
    let spec = contract_spec(&object).map_err(Fail::bug)?;
    let verb = if is_new { "created" } else { "updated" };
    out(&format!(
        "policy {name} {verb}: {} is a candidate now. It decides nothing; its answers are recorded.",
        spec.digest().short()
    ));
    out(&format!(
        "Let a VM have it: bellows kubectl annotate neonvm VM {KEY_POLICY}={name}"
    ));
    Ok(())
}
