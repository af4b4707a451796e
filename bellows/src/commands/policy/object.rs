//! `bellows policy apply`.

use std::path::PathBuf;

use clap::Args;
use hyper::http::Method;
use policy_contract::{FeedSource, Pack, Scope, Spec};
use protocol::journal::Action;
use protocol::policy::{GROUP, KEY_POLICY, KIND, ScalingPolicySpec, VERSION};
use serde_json::{Map, Value, json};

use super::{compiles, pack};
use crate::actions;
use crate::api::{Api, Kind};
use crate::context::Context;
use crate::fail::{Fail, Outcome};
use crate::terminal::out;

/// Create or update a policy from a Lua file.
///
/// A new version is a candidate: its answers are recorded, and nothing else is done with them. On
/// one machine the journal's part `people` has who applied it, what and why, before it is applied.
/// In a cluster nothing is recorded here and the reason is not kept: the API server's audit log has
/// the request.
#[derive(Debug, Clone, Args)]
pub(crate) struct ApplyArgs {
    /// Source of the policy, Lua. Or a packed policy with its digest: FILE@sha256:DIGEST
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
    /// A figure of the guest, as NAME=PORT:METRIC; may be given again [default: those that it has]
    #[arg(long = "feed", value_name = "NAME=PORT:METRIC", value_parser = feed)]
    feeds: Vec<FeedSource>,
    /// What the policy decides about
    #[arg(long, value_enum, default_value_t = ScopeArg::Vm, value_name = "SCOPE")]
    scope: ScopeArg,
    /// Why it is applied, for the journal; one line of at most 1,000 bytes
    #[arg(long, value_name = "TEXT", value_parser = actions::reason)]
    reason: Option<String>,
    /// Apply it on each machine that this one knows, too (`bellows up --peers-listen`)
    #[arg(long)]
    peers: bool,
}

/// What a policy decides about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum ScopeArg {
    /// The size of a VM
    Vm,
    /// The number of the members of sets of VMs
    Set,
}

impl From<ScopeArg> for Scope {
    fn from(scope: ScopeArg) -> Self {
        match scope {
            ScopeArg::Vm => Self::Vm,
            ScopeArg::Set => Self::Set,
        }
    }
}

pub(super) fn feed(text: &str) -> Result<FeedSource, String> {
    let parts = text.split_once('=').and_then(|(name, page)| {
        let (port, metric) = page.split_once(':')?;
        Some((name, port.parse().ok()?, metric))
    });
    let (name, port, metric) = parts.ok_or("it must be NAME=PORT:METRIC")?;
    Ok(FeedSource {
        metric: metric.to_owned(),
        name: name.to_owned(),
        port,
    })
}

pub(super) fn parameter(text: &str) -> Result<(String, f64), String> {
    let (name, number) = text.split_once('=').ok_or("it must be NAME=NUMBER")?;
    let number = number.parse().map_err(|_| {
        format!("`{number}` is no number; give the option again for each parameter")
    })?;
    Ok((name.to_owned(), number))
}

/// The contract's part of an object's spec.
pub(crate) fn contract_spec(object: &Value) -> Result<Spec, String> {
    ScalingPolicySpec::of_object(object).map(Spec::from)
}

pub(super) fn read_source(file: &std::path::Path) -> Outcome<String> {
    std::fs::read_to_string(file)
        .map_err(|error| Fail::usage(format!("{} cannot be read: {error}", file.display())))
}

/// Name of the policy, and the members of the spec that the arguments give.
fn named(args: &ApplyArgs) -> Outcome<(String, Value)> {
    if let Some(pack) = pack::find(&args.file)? {
        return packed(args, &pack);
    }
    let stem = args.file.file_stem().and_then(|stem| stem.to_str());
    let name = args.name.as_deref().or(stem).unwrap_or_default();
    Ok((name.to_owned(), wanted(args)?))
}

/// A packed policy determines all members that its digest covers.
fn packed(args: &ApplyArgs, pack: &Pack) -> Outcome<(String, Value)> {
    let has_set = args.scope == ScopeArg::Set;
    if !args.params.is_empty() || !args.series.is_empty() || !args.feeds.is_empty() || has_set {
        return Err(
            Fail::usage("a packed policy takes no --params, --series, --feed and --scope")
                .rule("its digest covers all of them")
                .fix("pack it with them: bellows policy pack FILE.lua --params NAME=NUMBER"),
        );
    }
    let mut wanted = serde_json::to_value(&pack.spec).map_err(|e| Fail::bug(e.to_string()))?;
    if let Some(members) = wanted.as_object_mut() {
        members.remove("contract");
    }
    Ok((
        args.name.clone().unwrap_or_else(|| pack.name.clone()),
        wanted,
    ))
}

/// The members of the spec that the arguments give, for the source of a policy.
fn wanted(args: &ApplyArgs) -> Outcome<Value> {
    let source = read_source(&args.file)?;
    let params: Map<String, Value> = args
        .params
        .iter()
        .map(|(name, number)| (name.clone(), json!(number)))
        .collect();
    let mut wanted = json!({
        "scope": Scope::from(args.scope),
        "source": source,
        "params": params,
        "series": args.series,
    });
    if !args.feeds.is_empty() {
        wanted["feeds"] = json!(args.feeds);
    }
    Ok(wanted)
}

/// The version that the policy gets. `None` for a spec that no policy may have.
fn next_version(old: Option<&Value>, wanted: &Value) -> Option<Spec> {
    let mut object = json!({"spec": old.map_or_else(|| json!({}), |old| old["spec"].clone())});
    for (member, value) in wanted.as_object()? {
        object["spec"][member] = value.clone();
    }
    contract_spec(&object).ok()
}

/// Creates the object, or changes the old one.
pub(crate) async fn put(
    api: &Api,
    name: &str,
    old: Option<&Value>,
    mut wanted: Value,
) -> Outcome<Value> {
    let Some(old) = old else {
        let object = json!({
            "apiVersion": format!("{GROUP}/{VERSION}"),
            "kind": KIND,
            "metadata": {"name": name},
            "spec": wanted,
        });
        return api.create(Kind::Policy, "", name, &object, false).await;
    };
    // A merge patch removes the parameters that are not named any more by a null.
    for gone in old["spec"]["params"].as_object().into_iter().flatten() {
        if wanted["params"].get(gone.0).is_none() {
            wanted["params"][gone.0] = Value::Null;
        }
    }
    let patch = json!({"spec": wanted});
    api.merge(Kind::Policy, "", name, &patch).await
}

pub(super) async fn apply(context: &Context, args: &ApplyArgs) -> Outcome {
    let (name, wanted) = named(args)?;
    let name = name.as_str();
    let order = args.peers.then(|| json!({"name": name, "spec": wanted}));
    let api = context.api().await?;
    let known = api.list(Kind::Policy, None).await?;
    let old = known.iter().find(|one| one["metadata"]["name"] == name);
    let next = next_version(old, &wanted);
    let action = Action {
        what: "policy apply".into(),
        on: Some(name.to_owned()),
        to: next.as_ref().map(|next| next.digest().short()),
        why: args.reason.clone(),
        ..Action::default()
    };
    let carry_out = async {
        // The API server refuses what breaks the schema, and says which member does.
        if let Some(next) = next.filter(|next| next.check().is_ok()) {
            compiles::ensure(name, &next)?;
        }
        put(&api, name, old, wanted).await
    };
    let object = actions::recorded(context, action, carry_out).await?;
    let spec = contract_spec(&object).map_err(Fail::bug)?;
    let verb = if old.is_none() { "created" } else { "updated" };
    out(&format!(
        "policy {name} {verb}: {} is a candidate now. It decides nothing; its answers are recorded.",
        spec.digest().short()
    ));
    if let Some(order) = order {
        apply_on_peers(context, &order).await?;
    }
    let kubectl = if context.asks_cluster() {
        "kubectl"
    } else {
        "bellows kubectl"
    };
    let (what, kind) = match spec.scope {
        Scope::Vm => ("VM", "neonvm VM"),
        Scope::Set => ("VM set", "vmset SET"),
    };
    out(&format!(
        "Let a {what} have it: {kubectl} annotate {kind} {KEY_POLICY}={name}"
    ));
    Ok(())
}

/// Applies the policy on each other machine. One that fails does not stop the others.
async fn apply_on_peers(context: &Context, order: &Value) -> Outcome {
    let response = context
        .admin(Method::POST, "/v1/peers/policies", Some(order))
        .await?;
    let mut failed = Vec::new();
    for (machine, error) in response["machines"].as_object().into_iter().flatten() {
        match error.as_str() {
            None => out(&format!("applied on {machine}")),
            Some(error) => failed.push(format!("{machine}: {error}")),
        }
    }
    if failed.is_empty() {
        return Ok(());
    }
    Err(Fail::try_again(format!(
        "the policy was not applied on {}",
        failed.join("; ")
    ))
    .rule("each machine keeps its own policies")
    .fix("send the same command again: machines that have it change nothing"))
}

#[cfg(test)]
mod tests {
    use daemon_kit::exit::Exit;

    use super::*;

    /// Requirement: V40
    #[test]
    fn v40_packed_policy_gets_its_own_digest_over_an_old_object() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("db.policy");
        let mut spec = Spec::of_source("return function(i) return std.hold('x') end");
        spec.params = [("a".into(), 1.0)].into();
        let bytes = Pack::new("db", spec.clone(), None).unwrap().to_bytes();
        std::fs::write(&file, &bytes).unwrap();
        let pin = policy_contract::Digest::of_bytes(&bytes);
        let args = |file: String| ApplyArgs {
            file: file.into(),
            name: None,
            params: vec![],
            series: vec![],
            feeds: vec![],
            scope: ScopeArg::Vm,
            reason: None,
            peers: false,
        };
        let path = file.display();
        let (name, wanted) = named(&args(format!("{path}@sha256:{pin}"))).unwrap();
        assert_eq!(name, "db");
        let feeds = json!([{"name": "jobs", "port": 9200, "metric": "jobs"}]);
        let old = json!({"spec": {"source": "old", "params": {}, "feeds": feeds}});
        let digest = next_version(Some(&old), &wanted).unwrap().digest().short();
        assert_eq!(
            digest,
            spec.digest().short(),
            "the feeds of before are gone"
        );

        let refused = |file: String, exit: Exit, words: &str| {
            let fail = named(&args(file)).unwrap_err();
            assert_eq!(fail.exit(), exit, "{fail}");
            assert!(fail.to_string().contains(words), "{fail}");
        };
        refused(format!("{path}"), Exit::Config, "no digest is given");
        refused(
            format!("{path}@sha256:abc"),
            Exit::Config,
            "64 lower-case hex digits",
        );
        let mut more = args(format!("{path}@sha256:{pin}"));
        more.params = vec![("a".into(), 2.0)];
        assert_eq!(named(&more).unwrap_err().exit(), Exit::Config);
        std::fs::write(&file, [&bytes[..], b" "].concat()).unwrap();
        refused(
            format!("{path}@sha256:{pin}"),
            Exit::NotSo,
            "fix: get the file again",
        );
    }

    #[test]
    fn feed_is_a_name_a_port_and_a_metric() {
        let read = feed("load=9100:host_load1").unwrap();
        assert_eq!(
            (&*read.name, read.port, &*read.metric),
            ("load", 9100, "host_load1")
        );
        for bad in [
            "load",
            "load=9100",
            "load=x:host_load1",
            "load=70000:host_load1",
        ] {
            feed(bad).unwrap_err();
        }
    }

    #[test]
    fn recorded_digest_is_that_of_the_object_after_the_change() {
        let source = "return function(i) return std.hold('x') end";
        let wanted = json!({"scope": "vm", "source": source, "params": {"a": 1.0}, "series": []});
        let new = next_version(None, &wanted).unwrap().digest().short();
        let feeds = json!([{"name": "jobs", "port": 9200, "metric": "jobs"}]);
        let old = json!({"spec": {"source": "old", "params": {"b": 2.0}, "feeds": feeds}});
        let changed = next_version(Some(&old), &wanted).unwrap().digest().short();
        assert_ne!(changed, new, "the feeds stay and are part of the digest");
        let mut spec = wanted.clone();
        spec["feeds"] = feeds;
        let object = contract_spec(&json!({"spec": spec})).unwrap();
        assert_eq!(changed, object.digest().short());
    }
}
