//! Why an instance that is no VM runs the image that it runs: a node's agent, or a `Deployment`.

use protocol::fleet::InstanceSpec;
use serde_json::{Value, json};

use super::{add_decision, lines, named};
use crate::api::Api;
use crate::commands::fleet::objects::list_envs;
use crate::commands::fleet::world;
use crate::context::Context;
use crate::fail::{Fail, Outcome};
use crate::output::{Format, print_value};
use crate::terminal::out;

pub(super) async fn why(
    context: &Context,
    api: &Api,
    (namespace, name): (&str, &str),
    format: Format,
) -> Outcome {
    let object = named(api, namespace, name).await?;
    let object = object.ok_or_else(|| {
        Fail::not_so(format!("fleet instance {namespace}/{name} does not exist"))
            .rule("an instance begins with its first turn")
            .fix(format!(
                "see which there are: kubectl get fi -n {namespace}"
            ))
    })?;
    let spec = InstanceSpec::of_object(&object).unwrap_or_default();
    let envs = list_envs(api, Some(namespace)).await?;
    let mut parts = Vec::new();
    for (part, turn) in spec.parts {
        let env = envs.iter().find(|env| env.name == turn.environment);
        let (turn, last) = world::turn_of(&object, part);
        let mut facts = json!({
            "part": part,
            "runs": Value::Null,
            "environment": env.map(|env| env.name.clone()),
            "turn": turn,
            "end": last,
        });
        if let Some(last) = &last {
            facts["runs"] = json!({"version": last.version, "sha256": last.sha256});
        }
        if let Some(env) = env {
            add_decision(context, api, env, name, &mut facts).await?;
        }
        parts.push(facts);
    }
    let answer = json!({"namespace": namespace, "instance": name, "parts": parts});
    if matches!(format, Format::Json | Format::Yaml) {
        return print_value(format, &answer);
    }
    for line in lines(&answer) {
        out(&line);
    }
    Ok(())
}
