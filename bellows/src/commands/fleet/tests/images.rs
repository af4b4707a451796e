//! Environments of images: agents and the control plane.

use fleet_store::revision_object;
use protocol::fleet::{EnvironmentSpec, Resolved, RevisionData};
use serde_json::json;

use super::{NAMESPACE, Site};

impl Site {
    /// An environment that follows the channel, with the revision that the fleet would make.
    async fn with_part(&self, name: &str, part: &str, rest: &str) {
        let line = format!("env create {name} --part {part} --channel stable {rest}");
        assert_eq!(self.run(&line).await, Ok(()), "{line}");
        let environment = self.get("fleetenvironments", name);
        let data = RevisionData {
            spec: EnvironmentSpec::of_object(&environment).expect("a spec"),
            resolved: Resolved {
                version: "1.0.0".to_owned(),
                sha256: "a".repeat(64),
                bundle: String::new(),
            },
        };
        let revision = revision_object(&environment, 1, &data);
        self.api.put("controllerrevisions", revision);
    }
}

/// Requirement: B23
#[tokio::test]
async fn control_plane_has_environments_plans_and_orders_of_their_own() {
    let site = Site::with_channel().await;
    let limits = "--max-active 134 --progress 300 --min-healthy 66";
    site.with_part("c", "controller", limits).await;
    site.with_part("agents", "agent", "").await;
    let spec = &site.get("fleetenvironments", "c")["spec"];
    assert_eq!(
        (&spec["type"], &spec["part"]),
        (&json!("Service"), &json!("controller"))
    );
    let service = json!({"maxActivePercent": 134, "progressSeconds": 300});
    assert_eq!(spec["service"], service);
    assert_eq!(
        site.get("fleetenvironments", "agents")["spec"]["type"],
        "Daemon"
    );
    for name in ["c", "agents"] {
        for line in [
            format!("plan {name}"),
            format!("plan {name} -o json"),
            format!("start {name} --revision {name}-r1"),
            format!("stop {name}"),
            format!("env show {name}"),
            format!("history {name}"),
        ] {
            assert_eq!(site.run(&line).await, Ok(()), "{line}");
        }
    }
    let (code, text) = site.refused("env set agents --max-active 150").await;
    assert_eq!(code, 64, "{text}");
    assert!(text.contains("only for the parts scheduler"), "{text}");
    let program = site.program("1.0.0").display().to_string();
    let line = format!("env create s --part scheduler --to 1.0.0 --program {program}");
    let (code, text) = site.refused(&line).await;
    assert_eq!(code, 64, "{text}");
    assert!(text.contains("scheduler is a container image"), "{text}");
}

/// Requirement: B23
#[tokio::test]
async fn last_turn_of_an_instance_that_is_no_vm_is_explained() {
    let site = Site::with_channel().await;
    site.with_part("c", "controller", "").await;
    let name = "deployment-neonvm-controller";
    let (code, text) = site.refused(&format!("why {name} --instance")).await;
    assert_eq!(code, 1, "{text}");
    assert!(text.contains("does not exist"), "{text}");
    let turn = json!({
        "environment": "c", "deployment": "c-r1-1", "revision": "c-r1", "version": "1.0.0",
        "sha256": "a".repeat(64), "token": "t", "epoch": 1, "attempt": 1,
    });
    site.api.put(
        "fleetinstances",
        json!({
            "apiVersion": "fleet.bellows.dev/v1alpha1", "kind": "FleetInstance",
            "metadata": {"name": name, "namespace": NAMESPACE},
            "spec": {"parts": {"controller": turn}},
        }),
    );
    for format in ["table", "json"] {
        let line = format!("why {name} --instance -o {format}");
        assert_eq!(site.run(&line).await, Ok(()), "{line}");
    }
}
