//! The modes of namespaces: follows those that carry the label [`KEY_MODE`]. A change takes effect
//! at once, without a restart.
//!
//! What is not known does nothing: until the namespaces have been listed, and where a label is no
//! mode, VMs are only observed. An API that does not let us list them, as on a cluster that was set
//! up for an agent without modes, cannot tell of any: then the setting of the node and the
//! annotations of VMs are all there is.

use std::collections::BTreeMap;

use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind};
use kube::runtime::watcher::{self, Event};
use protocol::mode::{KEY_MODE, Mode};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::follow::follow;
use super::metrics::{AgentMetrics, Watcher};
use super::state::{StateHandle, Synced};

/// What is known of the namespaces.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Modes {
    /// Those with a label; `None` before they were listed.
    labelled: Option<BTreeMap<String, Mode>>,
}

impl Modes {
    /// The mode of a namespace's VMs that do not say one themselves; `default` where the namespace
    /// says none either.
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
    let word = object.metadata.labels.as_ref()?.get(KEY_MODE)?;
    let mode = Mode::of(word).unwrap_or_else(|| {
        tracing::warn!(namespace = name, word, "no mode: its VMs are only observed");
        Mode::Observe
    });
    Some((name, mode))
}

/// Whether the API says that it will not tell.
fn is_refused(error: &watcher::Error) -> bool {
    matches!(error, watcher::Error::InitialListFailed(kube::Error::Api(status))
        if matches!(status.code, 403 | 404))
}

/// Follows the namespaces and publishes their modes.
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
        let config = watcher::Config::default().labels(KEY_MODE);
        let mut listed = BTreeMap::new();
        follow(
            (api, config),
            Watcher::Namespaces,
            &self.metrics,
            &cancel,
            |event| match event {
                Ok(event) => self.take(event, &mut listed),
                Err(error) => self.failed(&error),
            },
        )
        .await;
    }

    fn take(&self, event: Event<DynamicObject>, listed: &mut BTreeMap<String, Mode>) {
        let metrics = &self.metrics;
        match event {
            Event::Init => {
                metrics.watch_call(Watcher::Namespaces, "List");
                listed.clear();
            }
            Event::InitApply(object) => listed.extend(read(&object)),
            Event::InitDone => {
                metrics.watch_call(Watcher::Namespaces, "Watch");
                metrics.watch_event(Watcher::Namespaces, "BOOKMARK");
                self.publish(|modes| *modes = std::mem::take(listed));
                self.state.synced(Synced::Namespaces);
            }
            Event::Apply(object) => {
                metrics.watch_event(Watcher::Namespaces, "MODIFIED");
                self.publish(|modes| {
                    modes.remove(object.metadata.name.as_deref().unwrap_or_default());
                    modes.extend(read(&object));
                });
            }
            // It is gone, or its label is.
            Event::Delete(object) => {
                metrics.watch_event(Watcher::Namespaces, "DELETED");
                self.publish(|modes| {
                    modes.remove(object.metadata.name.as_deref().unwrap_or_default());
                });
            }
        }
    }

    fn failed(&self, error: &watcher::Error) {
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

    /// Changes what is known, and tells of it where it is another than before.
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
    fn what_is_not_known_is_only_observed() {
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
