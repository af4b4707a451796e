//! The `DaemonSet` of the agents: one template for all nodes, whose image a turn changes.

use std::collections::BTreeMap;
use std::time::Duration;

use fleet_core::Outcome;
use protocol::fleet::{DeploymentKind, Lock, TurnSpec};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::objects::AGENT;
use crate::image::{digest, pinned};
use crate::node::texts;
use crate::workload::{Unread, Workload, image_before, image_of};

/// Annotation: the image that the fleet wrote last.
const KEY_IMAGE: &str = "fleet.bellows.dev/agent-image";
/// Annotation: the image before that.
const KEY_BEFORE: &str = "fleet.bellows.dev/agent-image-before";
/// Annotation: the deployment that wrote it.
const KEY_DEPLOYMENT: &str = "fleet.bellows.dev/agent-deployment";
/// Longest time until the controller of `DaemonSet`s has read a change.
const OBSERVED_LIMIT: Duration = Duration::from_secs(20);
/// Between two looks at that.
const OBSERVED_EVERY: Duration = Duration::from_millis(200);

/// The object as it was read.
#[derive(Debug, Clone)]
pub(super) struct DaemonSet {
    object: Value,
}

/// The `DaemonSet` of a namespace.
#[derive(Clone)]
pub(super) struct Access(Workload);

impl DaemonSet {
    fn template(&self) -> &Value {
        &self.object["spec"]["template"]["spec"]
    }

    fn annotation(&self, key: &str) -> &str {
        let annotations = &self.object["metadata"]["annotations"];
        annotations[key].as_str().unwrap_or_default()
    }

    /// Image of the agent in the template.
    pub(super) fn image(&self) -> &str {
        image_of(&self.object, AGENT)
    }

    /// Digest that the template pins. `None` with a tag.
    pub(super) fn sha256(&self) -> Option<String> {
        digest(self.image())
    }

    /// Why its agents are not the fleet's. A changed template of another strategy would restart the
    /// agents of all nodes.
    pub(super) fn problem(&self) -> Option<String> {
        let strategy = self.object["spec"]["updateStrategy"]["type"].as_str();
        match strategy {
            Some("OnDelete") => None,
            other => Some(format!(
                "DaemonSet {AGENT} has updateStrategy {}, not OnDelete: set fleet.enabled in the \
                 chart",
                other.unwrap_or("RollingUpdate")
            )),
        }
    }

    /// Whether its pods may be on a node with these labels.
    pub(super) fn selects(&self, labels: &BTreeMap<String, String>) -> bool {
        let wanted = texts(&self.template()["nodeSelector"]);
        wanted
            .iter()
            .all(|(key, value)| labels.get(key) == Some(value))
    }

    /// Whether somebody else set the image since the deployment with the lock wrote it. A new order
    /// of a person goes before that.
    pub(super) fn has_drifted(&self, lock: Option<&Lock>) -> bool {
        let (wrote, by) = (self.annotation(KEY_IMAGE), self.annotation(KEY_DEPLOYMENT));
        let is_other = !wrote.is_empty() && wrote != self.image();
        let is_new_order = |lock: &Lock| lock.kind == DeploymentKind::User && lock.deployment != by;
        is_other && !lock.is_some_and(is_new_order)
    }

    /// The object with another image, or `None` if it has that image.
    fn with_image(&self, image: &str, by: &str) -> Option<Value> {
        let before = self.image().to_owned();
        if before == image {
            return None;
        }
        let mut object = self.object.clone();
        let spec = &mut object["spec"]["template"]["spec"];
        for list in ["initContainers", "containers"] {
            let containers = spec[list].as_array_mut();
            for container in containers.into_iter().flatten() {
                if container["image"] == before {
                    container["image"] = image.into();
                }
            }
        }
        let annotations = &mut object["metadata"]["annotations"];
        if !annotations.is_object() {
            *annotations = json!({});
        }
        annotations[KEY_IMAGE] = image.into();
        annotations[KEY_BEFORE] = before.into();
        annotations[KEY_DEPLOYMENT] = by.into();
        Some(object)
    }

    /// The object with the image of a turn. `None` if it has that.
    pub(super) fn forward(&self, turn: &TurnSpec) -> Option<Value> {
        let image = pinned(self.image(), &turn.sha256);
        self.with_image(&image, &turn.deployment)
    }

    /// The object with the image from before a turn. `None` if it has not the turn's image.
    ///
    /// # Errors
    /// The image before is not known.
    pub(super) fn backward(&self, turn: &TurnSpec) -> Result<Option<Value>, String> {
        let name = format!("DaemonSet {AGENT}");
        let before = self.annotation(KEY_BEFORE);
        let before = image_before(self.image(), before, turn, &name)?;
        Ok(before.and_then(|before| self.with_image(before, &turn.deployment)))
    }
}

impl Access {
    pub(super) fn new(client: kube::Client, namespace: &str) -> Self {
        Self(Workload::new(client, namespace, "DaemonSet", AGENT))
    }

    pub(super) async fn read(&self) -> Result<DaemonSet, Unread> {
        let object = self.0.read().await?;
        Ok(DaemonSet { object })
    }

    /// Replaces the version that was read, and waits until its controller has read the new one: it
    /// would make a pod of the old template until then.
    pub(super) async fn replace(&self, object: Value) -> Result<(), Outcome> {
        self.0.replace(object).await?;
        self.observed().await.map_err(Outcome::Transient)
    }

    /// Waits until the controller of `DaemonSet`s has read the newest version.
    pub(super) async fn observed(&self) -> Result<(), String> {
        let begun = Instant::now();
        loop {
            if let Ok(DaemonSet { object }) = self.read().await {
                let wanted = object["metadata"]["generation"].as_i64();
                let seen = object["status"]["observedGeneration"].as_i64();
                if seen >= wanted {
                    return Ok(());
                }
            }
            if begun.elapsed() >= OBSERVED_LIMIT {
                let text = "no controller has read the change of DaemonSet";
                return Err(format!("{text} {AGENT}"));
            }
            sleep(OBSERVED_EVERY).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::tests::{lock, turn};

    fn set(image: &str) -> DaemonSet {
        DaemonSet {
            object: json!({
                "metadata": {"name": AGENT, "resourceVersion": "7"},
                "spec": {
                    "updateStrategy": {"type": "OnDelete"},
                    "template": {"spec": {
                        "nodeSelector": {"kind": "worker"},
                        "initContainers": [{"name": "prepare-state", "image": image}],
                        "containers": [
                            {"name": "beside", "image": "other:1"},
                            {"name": AGENT, "image": image, "args": ["--all-addresses"]},
                        ],
                    }},
                },
            }),
        }
    }

    fn pushed(digit: &str) -> DaemonSet {
        let object = set("bellows/agent:0.1.0").forward(&turn(digit, "d1"));
        DaemonSet {
            object: object.expect("another image"),
        }
    }

    /// Requirement: R23
    #[test]
    fn turn_changes_the_images_of_the_agent_alone_and_names_the_one_before() {
        let new = pushed("a");
        let image = format!("bellows/agent@sha256:{}", "a".repeat(64));
        assert_eq!(new.image(), image);
        assert_eq!(new.template()["initContainers"][0]["image"], image);
        assert_eq!(new.template()["containers"][0]["image"], "other:1");
        assert_eq!(new.annotation(KEY_BEFORE), "bellows/agent:0.1.0");
        assert!(new.forward(&turn("a", "d1")).is_none(), "it has it already");
        let mut restored = new.object.clone();
        restored["metadata"] = set("bellows/agent:0.1.0").object["metadata"].clone();
        let text = restored.to_string().replace(&image, "bellows/agent:0.1.0");
        assert_eq!(text, set("bellows/agent:0.1.0").object.to_string());
    }

    /// Requirement: R23
    #[test]
    fn turn_goes_back_to_the_image_before_it_and_only_from_its_own() {
        let new = pushed("a");
        let object = new.backward(&turn("a", "d1")).expect("a known image");
        let object = object.expect("another image");
        assert_eq!(DaemonSet { object }.image(), "bellows/agent:0.1.0");
        assert_eq!(
            new.backward(&turn("b", "d1")),
            Ok(None),
            "it is not its own"
        );
        let mut unknown = new;
        unknown.object["metadata"]["annotations"] = Value::Null;
        let problem = unknown.backward(&turn("a", "d1")).expect_err("unknown");
        assert!(problem.contains("is not known"), "{problem}");
    }

    /// Requirement: R23
    #[test]
    fn image_that_somebody_else_set_holds_until_a_person_orders() {
        let mut set = pushed("a");
        let own = lock("d1", DeploymentKind::User);
        assert!(!set.has_drifted(Some(&own)), "it is as written");
        let containers = &mut set.object["spec"]["template"]["spec"]["containers"];
        containers[1]["image"] = json!("bellows/agent:0.2.0");
        assert!(set.has_drifted(Some(&own)));
        assert!(set.has_drifted(Some(&lock("d2", DeploymentKind::HealthRepair))));
        assert!(!set.has_drifted(Some(&lock("d2", DeploymentKind::User))));
    }

    /// Requirement: R23
    #[test]
    fn template_of_another_strategy_is_not_the_fleets() {
        let mut other = set("bellows/agent:0.1.0");
        assert_eq!(other.problem(), None);
        for strategy in [json!({"type": "RollingUpdate"}), Value::Null] {
            other.object["spec"]["updateStrategy"] = strategy;
            let problem = other.problem().expect("a problem");
            assert!(problem.contains("not OnDelete"), "{problem}");
        }
        let labels = |value: &str| [("kind".to_owned(), value.to_owned())].into();
        assert!(other.selects(&labels("worker")) && !other.selects(&labels("control")));
    }
}
