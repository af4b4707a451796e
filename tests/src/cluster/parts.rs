//! Our parts in a cluster, by the manifests they are deployed with.

use std::time::Duration;

use anyhow::Result;
use serde_json::Value;

use super::nodes::Cluster;
use crate::patience::wait_for;

/// Longest time until a component is ready on a busy machine.
const PATIENCE: Duration = Duration::from_secs(240);
/// Folders of `deploy`, and the namespaces their pods are in.
const PARTS: [(&str, &str); 3] = [
    ("scheduler", "kube-system"),
    ("controller", "neonvm-system"),
    ("agent", "kube-system"),
];

impl Cluster {
    /// Applies the kinds and all parts, and waits until of each one pod is ready.
    ///
    /// # Errors
    /// When the API refuses a manifest or a part is not ready in time.
    pub async fn deploy(&self) -> Result<()> {
        let plane = self.plane();
        plane.install_kinds()?;
        for (part, _) in PARTS {
            let folder = crate::checkout().join("deploy").join(part);
            plane.ask(&["apply", "-k", &folder.display().to_string()])?;
        }
        // The pair has one leader; the other replica waits for its turn and is not ready.
        for (part, namespace) in PARTS {
            let args = ["get", "pods", "-n", namespace, "-o", "json"];
            let what = format!("a ready {part}");
            wait_for(&what, PATIENCE, || async {
                let pods = plane.ask(&args).map_err(|error| format!("{error:#}"))?;
                let pods: Value = serde_json::from_str(&pods).map_err(|e| e.to_string())?;
                let mut pods = pods["items"].as_array().into_iter().flatten();
                let ready = pods.any(|pod| is_named(pod, part) && is_ready(pod));
                if ready { Ok(()) } else { Err(String::new()) }
            })
            .await?;
        }
        Ok(())
    }
}

fn is_named(pod: &Value, part: &str) -> bool {
    let name = pod["metadata"]["name"].as_str().unwrap_or_default();
    name.contains(part)
}

/// Whether a pod's Ready condition is True.
#[must_use]
pub fn is_ready(pod: &Value) -> bool {
    let conditions = pod["status"]["conditions"].as_array();
    let mut conditions = conditions.into_iter().flatten();
    conditions.any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
}
