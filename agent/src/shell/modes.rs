//! Modes of namespaces: watches those with the label [`KEY_MODE`]. A change takes effect at once,
//! without a restart.
//!
//! Unknown modes count as observe: before the first list, and where the label has another value. A
//! cluster that was set up for an agent without modes does not let the agent list namespaces. Then
//! only the setting of the node and the annotations of VMs count.

use std::collections::BTreeMap;

use api_client::watch::{self as api_watch, Config, Error, Event, Retry};
use futures::StreamExt as _;
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind};
use protocol::mode::{KEY_MODE, Mode};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::metrics::AgentMetrics;
use super::state::{StateHandle, Synced};

/// Modes by namespace.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Modes {
    /// Namespaces with the label; `None` before the first list.
    labelled: Option<BTreeMap<String, Mode>>,
}

impl Modes {
    /// Mode of VMs in a namespace without a mode of their own; `default` if the namespace has none.
    pub(super) fn of(&self, namespace: &str, default: Mode) -> Mode {
        let Some(labelled) = &self.labelled else {
            return Mode::Observe;
        };
        labelled.get(namespace).copied().unwrap_or(default)
    }
}

/// Name and mode of a namespace, if it has the label.
fn read(object: &DynamicObject) -> Option<(String, Mode)> {
    let name = object.metadata.name.clone()?;
    let label = object.metadata.labels.as_ref()?.get(KEY_MODE)?;
    let mode = Mode::of(label).unwrap_or_else(|| {
        tracing::warn!(
            namespace = name,
            word = label,
            "no mode: its VMs are only observed"
        );
        Mode::Observe
    });
    Some((name, mode))
}

/// Whether the API refuses to list namespaces.
pub(super) fn is_refused(error: &Error) -> bool {
    matches!(error, Error::InitialListFailed(kube::Error::Api(status))
        if matches!(status.code, 403 | 404))
}

/// The task that watches the namespaces and publishes their modes.
pub(super) struct Namespaces {
    pub kube: kube::Client,
    pub metrics: AgentMetrics,
    pub state: StateHandle,
    pub modes: watch::Sender<Modes>,
}

impl Namespaces {
    /// Runs until cancelled.
    pub(super) async fn run(self, cancel: CancellationToken) {
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("", "v1", "Namespace"));
        let api: Api<DynamicObject> = Api::all_with(self.kube.clone(), &resource);
        let events = api_watch::objects(api, Config::default().labels(KEY_MODE), Retry::Steady);
        let counted = self.metrics.watches.count("Namespaces", events);
        let mut events = counted.take_until(cancel.cancelled_owned()).boxed();
        let mut listed = BTreeMap::new();
        while let Some(event) = events.next().await {
            match event {
                Ok(event) => self.take(event, &mut listed),
                Err(error) => self.failed(&error),
            }
        }
    }

    fn take(&self, event: Event<DynamicObject>, listed: &mut BTreeMap<String, Mode>) {
        match event {
            Event::Init => listed.clear(),
            Event::InitApply(object) => listed.extend(read(&object)),
            Event::InitDone => {
                self.publish(|modes| *modes = std::mem::take(listed));
                self.state.synced(Synced::Namespaces);
            }
            Event::Apply(object) => self.publish(|modes| {
                modes.remove(object.metadata.name.as_deref().unwrap_or_default());
                modes.extend(read(&object));
            }),
            // The namespace or its label is gone.
            Event::Delete(object) => self.publish(|modes| {
                modes.remove(object.metadata.name.as_deref().unwrap_or_default());
            }),
        }
    }

    fn failed(&self, error: &Error) {
        let text = daemon_kit::chain(error);
        if !is_refused(error) {
            tracing::warn!(error = text, "cannot follow the namespaces");
            return;
        }
        if self.modes.borrow().labelled.is_none() {
            tracing::warn!(
                error = text,
                "namespaces may not be listed, so their modes are unknown and count as not set"
            );
        }
        self.publish(|_| {});
        self.state.synced(Synced::Namespaces);
    }

    /// Changes the modes, and publishes them if they differ.
    fn publish(&self, change: impl FnOnce(&mut BTreeMap<String, Mode>)) {
        self.modes.send_if_modified(|modes| {
            let before = modes.clone();
            change(modes.labelled.get_or_insert_default());
            *modes != before
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn namespace(name: &str, label: Option<&str>) -> DynamicObject {
        let labels = label.map(|label| json!({KEY_MODE: label}));
        let object = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}});
        serde_json::from_value(object).expect("an object")
    }

    #[test]
    fn unknown_mode_is_observe() {
        let mut modes = Modes::default();
        assert_eq!(modes.of("a", Mode::Full), Mode::Observe);
        modes.labelled = Some(
            [namespace("a", Some("grow")), namespace("b", Some("Full"))]
                .iter()
                .filter_map(read)
                .collect(),
        );
        assert_eq!(modes.of("a", Mode::Full), Mode::Grow);
        assert_eq!(modes.of("b", Mode::Full), Mode::Observe, "a typing error");
        assert_eq!(modes.of("c", Mode::Full), Mode::Full);
        assert_eq!(read(&namespace("d", None)), None);
    }
}
