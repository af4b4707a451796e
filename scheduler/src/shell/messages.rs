//! Messages for people about pressure and migrations.

use protocol::units::Resources;

use crate::core::amount::{Both, Resource};
use crate::core::event::NodeWarning;
use crate::core::migrate::Picked;
use crate::core::pressure::Pressure;

/// Amounts beyond 64 bits are cut. No machine has as much.
fn resources(amount: Both<u128>) -> Resources {
    amount
        .map(|_, amount| u64::try_from(amount).unwrap_or(u64::MAX))
        .to_resources()
}

/// Why a VM is migrated.
pub(super) fn migration(node: &str, pressure: &Pressure, picked: &Picked) -> String {
    let target = picked
        .target
        .as_ref()
        .map_or_else(String::new, |target| format!("; {target} has room"));
    format!(
        "node {node} is under pressure: {} above its watermark, {} denied, {} leaving already{target}",
        resources(pressure.logical),
        resources(pressure.capacity),
        resources(pressure.accounted),
    )
}

pub(super) fn node(warning: &NodeWarning) -> String {
    match warning {
        NodeWarning::OverBudget(over) => format!(
            "more is reserved than the node has, by {}; nothing is granted on it until that is gone",
            resources(*over)
        ),
        NodeWarning::Unrelieved(choice) => {
            let short = Resource::ALL
                .into_iter()
                .filter(|resource| choice.left.get(*resource) > 0);
            let short: Vec<&str> = short.map(Resource::as_str).collect();
            let passed = choice
                .passed
                .iter()
                .map(|(pod, why)| format!("{pod}: {}", why.as_str()));
            let passed: Vec<String> = passed.collect();
            let who = if passed.is_empty() {
                "no VM on it may be migrated".to_owned()
            } else {
                format!("passed over: {}", passed.join(", "))
            };
            format!(
                "pressure on {} stays, {} more would have to leave; {who}",
                short.join(" and "),
                resources(choice.left)
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::migrate::{Choice, PassedOver};
    use protocol::permit::NamespacedName;

    const GIB: u128 = 1 << 30;

    fn name(name: &str) -> NamespacedName {
        NamespacedName {
            namespace: "d".into(),
            name: name.into(),
        }
    }

    #[test]
    fn messages_name_the_node_and_the_amounts() {
        let pressure = Pressure {
            logical: Both::new(1_500, 2 * GIB),
            capacity: Both::new(500, 0),
            accounted: Both::default(),
        };
        let picked = Picked {
            pod: name("pg-1"),
            pod_uid: "u".into(),
            vm: name("pg"),
            target: Some("n2".into()),
            relief: Both::new(2_000, 8 * GIB),
        };
        let text = migration("n1", &pressure, &picked);
        for part in ["n1", "1500m", "2Gi", "500m", "n2 has room"] {
            assert!(text.contains(part), "{part} in {text}");
        }
        let choice = Choice {
            passed: vec![(name("pg-1"), PassedOver::NoTarget)],
            left: Both::new(0, GIB),
            ..Choice::default()
        };
        let text = node(&NodeWarning::Unrelieved(Box::new(choice)));
        assert!(text.starts_with("pressure on mem stays"), "{text}");
        assert!(text.ends_with("passed over: d/pg-1: no_target"), "{text}");
        let text = node(&NodeWarning::Unrelieved(Box::default()));
        assert!(text.ends_with("no VM on it may be migrated"), "{text}");
        let text = node(&NodeWarning::OverBudget(Both::new(250, 0)));
        assert!(text.contains("250m"), "{text}");
    }
}
