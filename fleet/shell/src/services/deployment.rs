//! A `Deployment` of the control plane: its image, who set it, and how it is set by server-side
//! apply.

use std::collections::BTreeMap;

use fleet_core::service::rolling_budget;
use protocol::fleet::{DeploymentKind, InstancePart, Lock, TurnResult, TurnSpec};
use protocol::time::WallTime;
use serde_json::{Value, json};

use super::kind::Kind;
use crate::image::{digest, pinned};
use crate::node::{texts, time};
use crate::workload::{WRITER, image_before, image_of};

/// Annotation: the image that the fleet wrote last.
const KEY_IMAGE: &str = "fleet.bellows.dev/image";
/// Annotation: the image before that.
const KEY_BEFORE: &str = "fleet.bellows.dev/image-before";
/// Annotation: the deployment that wrote it.
const KEY_DEPLOYMENT: &str = "fleet.bellows.dev/image-deployment";
/// Annotation: when it was written.
const KEY_SINCE: &str = "fleet.bellows.dev/image-since";

/// The object as it was read.
#[derive(Debug, Clone)]
pub(super) struct Deployment {
    object: Value,
    kind: Kind,
}

/// Shares that Kubernetes keeps while it replaces pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shares {
    pub(crate) min_healthy_percent: u32,
    pub(crate) max_active_percent: u32,
}

impl Deployment {
    pub(super) fn new(object: Value, kind: Kind) -> Self {
        Self { object, kind }
    }

    pub(super) fn metadata(&self) -> &Value {
        &self.object["metadata"]
    }

    fn template(&self) -> &Value {
        &self.object["spec"]["template"]["spec"]
    }

    fn annotation(&self, key: &str) -> &str {
        self.metadata()["annotations"][key]
            .as_str()
            .unwrap_or_default()
    }

    /// Image of the part in the template.
    pub(super) fn image(&self) -> &str {
        image_of(&self.object, self.kind.name)
    }

    /// Digest that the template pins. `None` with a tag.
    pub(super) fn sha256(&self) -> Option<String> {
        digest(self.image())
    }

    pub(super) fn labels(&self) -> BTreeMap<String, String> {
        texts(&self.metadata()["labels"])
    }

    /// Selector of its pods, as a query has it.
    pub(super) fn pod_labels(&self) -> String {
        let labels = texts(&self.object["spec"]["selector"]["matchLabels"]);
        let labels: Vec<String> = labels
            .iter()
            .map(|(key, value)| format!("{key}={value}"))
            .collect();
        labels.join(",")
    }

    pub(super) fn replicas(&self) -> u32 {
        let replicas = self.object["spec"]["replicas"].as_u64().unwrap_or(1);
        u32::try_from(replicas).unwrap_or(u32::MAX)
    }

    pub(super) fn available(&self) -> u32 {
        let available = self.object["status"]["availableReplicas"].as_u64();
        available
            .and_then(|one| u32::try_from(one).ok())
            .unwrap_or(0)
    }

    /// Time at which the fleet set the image that it has.
    pub(super) fn set_at(&self) -> Option<WallTime> {
        let is_ours = self.annotation(KEY_IMAGE) == self.image();
        is_ours
            .then(|| time(&self.metadata()["annotations"][KEY_SINCE]))
            .flatten()
    }

    /// Why its pods are not the fleet's to replace.
    pub(super) fn problem(&self) -> Option<String> {
        let name = self.kind.name;
        let strategy = &self.object["spec"]["strategy"]["type"];
        if *strategy == "Recreate" {
            return Some(format!(
                "Deployment {name} has strategy Recreate, by which all pods are away: take \
                 RollingUpdate"
            ));
        }
        if self.image().is_empty() {
            return Some(format!("Deployment {name} has no container {name}"));
        }
        (self.replicas() == 0).then(|| format!("Deployment {name} has no replicas"))
    }

    /// Whether the API server holds the fleet for the writer of the image.
    fn is_written_by_us(&self) -> bool {
        let container = format!("k:{{\"name\":\"{}\"}}", self.kind.name);
        let all = self.metadata()["managedFields"].as_array();
        let mut all = all.into_iter().flatten();
        all.any(|one| {
            let pod = &one["fieldsV1"]["f:spec"]["f:template"]["f:spec"];
            one["manager"] == WRITER && pod["f:containers"][&container]["f:image"].is_object()
        })
    }

    /// Whether somebody else set the image since the fleet wrote it. A new order of a person goes
    /// before that.
    pub(super) fn has_drifted(
        &self,
        lock: Option<&Lock>,
        turn: Option<&TurnSpec>,
        last: Option<&InstancePart>,
    ) -> bool {
        let wrote = self.annotation(KEY_IMAGE);
        let is_kept = last.is_some_and(|last| last.last.result == TurnResult::Good);
        if wrote.is_empty() && !is_kept {
            return false;
        }
        if self.is_written_by_us() && (wrote.is_empty() || wrote == self.image()) {
            return false;
        }
        let by = match self.annotation(KEY_DEPLOYMENT) {
            "" => turn.map_or("", |turn| turn.deployment.as_str()),
            by => by,
        };
        let is_new_order = |lock: &Lock| lock.kind == DeploymentKind::User && lock.deployment != by;
        !lock.is_some_and(is_new_order)
    }

    /// Fields that the fleet applies for an image, on the version that was read.
    fn fields(&self, image: &str, by: &str, shares: Shares, now: WallTime) -> Value {
        let before = self.image();
        let of = |list: &str| -> Vec<Value> {
            let all = self.template()[list].as_array().into_iter().flatten();
            let own = all.filter(|one| one["image"] == before);
            own.map(|one| json!({"name": one["name"], "image": image}))
                .collect()
        };
        let mut spec = json!({"template": {"spec": {"containers": of("containers")}}});
        let beside = of("initContainers");
        if !beside.is_empty() {
            spec["template"]["spec"]["initContainers"] = beside.into();
        }
        if self.kind.has_budget {
            let healthy = shares.min_healthy_percent;
            let budget = rolling_budget(self.replicas(), healthy, shares.max_active_percent);
            spec["strategy"] = json!({"rollingUpdate": {
                "maxUnavailable": budget.max_unavailable, "maxSurge": budget.max_surge,
            }});
        }
        json!({
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {
                "name": self.kind.name,
                "namespace": self.metadata()["namespace"],
                "resourceVersion": self.metadata()["resourceVersion"],
                "annotations": {
                    (KEY_IMAGE): image, (KEY_BEFORE): before, (KEY_DEPLOYMENT): by,
                    (KEY_SINCE): now.to_string(),
                },
            },
            "spec": spec,
        })
    }

    /// Fields for the image of a turn. `None` if it has that.
    pub(super) fn forward(&self, turn: &TurnSpec, shares: Shares, now: WallTime) -> Option<Value> {
        let image = pinned(self.image(), &turn.sha256);
        let is_other = image != self.image();
        is_other.then(|| self.fields(&image, &turn.deployment, shares, now))
    }

    /// Fields for the image from before a turn. `None` if it has not the turn's image.
    ///
    /// # Errors
    /// The image before is not known.
    pub(super) fn backward(
        &self,
        turn: &TurnSpec,
        shares: Shares,
        now: WallTime,
    ) -> Result<Option<Value>, String> {
        let name = format!("Deployment {}", self.kind.name);
        let before = self.annotation(KEY_BEFORE);
        let before = image_before(self.image(), before, turn, &name)?;
        Ok(before.map(|before| self.fields(before, &turn.deployment, shares, now)))
    }
}

#[cfg(test)]
mod tests;
