//! What a person sets for one VM: its bounds and its mode. Both are annotations, so the VM's spec
//! stays its author's.

use protocol::annotations::{ANNOTATION_BOUNDS, ScalingBounds};
use protocol::journal::Action;
use protocol::mode::{KEY_MODE, Mode};
use serde_json::{Value, json};

use crate::actions;
use crate::api::Kind;
use crate::context::Context;
use crate::fail::{Fail, Outcome};

/// A VM, and why something about it is changed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct VmOrder<'a> {
    pub(crate) namespace: &'a str,
    pub(crate) name: &'a str,
    pub(crate) reason: &'a str,
}

/// Bounds the size of a VM. `None` gives the bounds back to its spec.
pub(crate) async fn set_bounds(
    context: &Context,
    order: VmOrder<'_>,
    bounds: Option<ScalingBounds>,
) -> Outcome<Vec<String>> {
    let key = format!("{}/{}", order.namespace, order.name);
    if let Some(bounds) = bounds {
        check(&key, bounds)?;
    }
    let text = bounds.map(|bounds| {
        let (min, max) = (bounds.min, bounds.max);
        let text = format!("{}-{} CPU, {}-{}", min.cpu, max.cpu, min.mem, max.mem);
        (text, json!(json!(bounds).to_string()))
    });
    let (to, value) = text.unwrap_or_else(|| ("its spec's".into(), Value::Null));
    annotate(
        context,
        order,
        ("vm bounds", &to),
        (ANNOTATION_BOUNDS, value),
    )
    .await?;
    Ok(vec![format!("VM {key}: its bounds are {to} now.")])
}

fn check(key: &str, bounds: ScalingBounds) -> Outcome {
    let refused = |what: &str, rule: &str| {
        Err(Fail::usage(format!("VM {key}: {what}")).rule(rule.to_owned()))
    };
    if bounds.min.cpu > bounds.max.cpu {
        return refused(
            "the least CPU is above the most",
            "a VM lives between its bounds",
        );
    }
    if bounds.min.mem > bounds.max.mem {
        return refused(
            "the least memory is above the most",
            "a VM lives between its bounds",
        );
    }
    if bounds.min.cpu.0 == 0 || bounds.min.mem.as_u64().is_none_or(|bytes| bytes == 0) {
        return refused(
            "a lower bound is not above zero",
            "a VM has some CPU and some memory",
        );
    }
    Ok(())
}

/// Sets the mode of a VM. `None` gives it back to its namespace and node.
pub(crate) async fn set_mode(
    context: &Context,
    order: VmOrder<'_>,
    mode: Option<Mode>,
) -> Outcome<Vec<String>> {
    let to = mode.map_or("that of its namespace or node", Mode::as_str);
    let value = mode.map_or(Value::Null, |mode| json!(mode.as_str()));
    annotate(context, order, ("vm mode", to), (KEY_MODE, value)).await?;
    let (namespace, name) = (order.namespace, order.name);
    Ok(vec![format!(
        "VM {namespace}/{name}: its mode is {to} now."
    )])
}

/// Writes an annotation, or removes it, between the two records of the action.
async fn annotate(
    context: &Context,
    order: VmOrder<'_>,
    (what, to): (&str, &str),
    (key, value): (&str, Value),
) -> Outcome {
    let VmOrder {
        namespace,
        name,
        reason,
    } = order;
    let api = context.api().await?;
    let action = Action {
        what: what.to_owned(),
        on: Some(format!("{namespace}/{name}")),
        to: Some(to.to_owned()),
        why: Some(reason.to_owned()),
        ..Action::default()
    };
    let patch = json!({"metadata": {"annotations": {key: value}}});
    let written = api.merge(Kind::Vm, namespace, name, &patch);
    actions::recorded(context, action, written).await.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_that_cross_are_refused() {
        let bounds = |text: &str| serde_json::from_str(text).expect("bounds");
        let good = r#"{"min":{"cpu":0.25,"mem":"1Gi"},"max":{"cpu":2,"mem":"8Gi"}}"#;
        assert_eq!(check("a/b", bounds(good)), Ok(()));
        for bad in [
            r#"{"min":{"cpu":3,"mem":"1Gi"},"max":{"cpu":2,"mem":"8Gi"}}"#,
            r#"{"min":{"cpu":1,"mem":"9Gi"},"max":{"cpu":2,"mem":"8Gi"}}"#,
            r#"{"min":{"cpu":0,"mem":"1Gi"},"max":{"cpu":2,"mem":"8Gi"}}"#,
            r#"{"min":{"cpu":1,"mem":"0"},"max":{"cpu":2,"mem":"8Gi"}}"#,
        ] {
            assert_eq!(check("a/b", bounds(bad)).expect_err(bad).exit() as u8, 64);
        }
    }
}
