//! Wishes for nodes as objects, and as a file on one machine. A program of the operator reads
//! either.

use std::collections::BTreeMap;
use std::path::PathBuf;

use kube::api::{Api, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use protocol::policy::{CapacityWishSpec, GROUP, VERSION, WISH_KIND};
use serde_json::json;

use crate::core::sets::WishChange;

const NOT_FOUND: u16 = 404;

pub(super) struct Wishes {
    api: Api<DynamicObject>,
    file: Option<PathBuf>,
    /// Content of the file, once it is written.
    written: Option<Vec<u8>>,
}

impl Wishes {
    pub(super) fn new(api: Api<DynamicObject>, file: Option<PathBuf>) -> Self {
        Self {
            api,
            file,
            written: None,
        }
    }

    pub(super) async fn list(&self) -> kube::Result<Vec<DynamicObject>> {
        match self.api.list(&ListParams::default()).await {
            Ok(list) => Ok(list.items),
            // The kind came later than the policies.
            Err(kube::Error::Api(refusal)) if refusal.code == NOT_FOUND => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }

    /// Keeps the file as the objects are.
    pub(super) fn keep(&mut self, wishes: &BTreeMap<String, CapacityWishSpec>) {
        let Some(file) = &self.file else { return };
        let all: Vec<_> = wishes
            .iter()
            .map(|(name, wish)| {
                json!({"name": name, "nodes": wish.nodes, "why": wish.why, "since": wish.since})
            })
            .collect();
        let content = format!("{}\n", json!({"wishes": all})).into_bytes();
        if self.written.as_ref() == Some(&content) {
            return;
        }
        match daemon_kit::durable::replace(file, &content) {
            Ok(()) => self.written = Some(content),
            Err(error) => {
                let (file, error) = (file.display().to_string(), error.to_string());
                tracing::warn!(file, error, "failed to write the wishes for nodes");
            }
        }
    }

    pub(super) async fn change(&self, changes: Vec<WishChange>) {
        for change in changes {
            let (name, changed) = match change {
                WishChange::Put(name, spec) => {
                    tracing::info!(name, nodes = spec.nodes, why = spec.why, "nodes are wanted");
                    let changed = self.put(&name, &spec).await;
                    (name, changed)
                }
                WishChange::Drop(name) => {
                    tracing::info!(name, "no nodes are wanted any more");
                    let deleted = self.api.delete(&name, &DeleteParams::default()).await;
                    (name, deleted.map(|_| ()))
                }
            };
            if let Err(error) = changed {
                let error = daemon_kit::chain(&error);
                tracing::warn!(name, error, "failed to change a wish for nodes");
            }
        }
    }

    async fn put(&self, name: &str, spec: &CapacityWishSpec) -> kube::Result<()> {
        let patch = Patch::Merge(json!({"spec": spec}));
        match self.api.patch(name, &PatchParams::default(), &patch).await {
            Err(kube::Error::Api(refusal)) if refusal.code == NOT_FOUND => {}
            patched => return patched.map(|_| ()),
        }
        let object = json!({
            "apiVersion": format!("{GROUP}/{VERSION}"),
            "kind": WISH_KIND,
            "metadata": {"name": name},
            "spec": spec,
        });
        let object = serde_json::from_value(object).map_err(kube::Error::SerdeError)?;
        let created = self.api.create(&PostParams::default(), &object).await;
        created.map(|_| ())
    }
}
