//! Carries out one order about a guest's runner.

use fleet_core::Outcome;
use fleet_core::runners::change;
use fleet_core::runners::step::COMPLETION_SECONDS;
use fleet_core::runners::{Key, Order};
use kube::api::{
    Api, ApiResource, DeleteParams, DynamicObject, Patch, PatchParams, PostParams, Preconditions,
};
use protocol::fleet::KEY_MOVES;
use protocol::vm::{API_VERSION, MigrationSpec};
use serde_json::{Value, json};

use super::Access;
use super::look::{KnownGuest, migration_resource};
use crate::look::vm_resource;

/// The one field that a move changes.
const FIELD: &str = "/spec/runnerImage";
const BAD_REQUEST: u16 = 400;
const FORBIDDEN: u16 = 403;
const NOT_FOUND: u16 = 404;
const CONFLICT: u16 = 409;
const INVALID: u16 = 422;

impl Access {
    pub(super) async fn carry_out(&self, key: &Key, known: &KnownGuest, order: &Order) -> Outcome {
        let instance = known.instance.as_ref();
        self.tell_people(key, known, order).await;
        match order {
            Order::Begin(turn) => {
                let (store, owner) = (&self.store, &known.owner);
                store.write_move(&key.0, instance, owner, turn).await
            }
            Order::End(end) => {
                let (store, owner) = (&self.store, &known.owner);
                store.write_move_end(&key.0, instance, owner, end).await
            }
            Order::Name { from, to } => {
                let to = Some(to.as_str());
                self.set_image(key, known, (from.as_deref(), to)).await
            }
            Order::PutBack { from, to } => {
                let from = Some(from.as_str());
                self.set_image(key, known, (from, to.as_deref())).await
            }
            Order::Migrate { migration } => self.migrate(key, known, migration).await,
            Order::Delete { migration } => self.delete(key, known, migration).await,
        }
    }

    fn api(&self, resource: &ApiResource, namespace: &str) -> Api<DynamicObject> {
        Api::namespaced_with(self.looker.client.clone(), namespace, resource)
    }

    /// Changes the field if a dry run of the same write changes it alone.
    async fn set_image(
        &self,
        key: &Key,
        known: &KnownGuest,
        (from, to): (Option<&str>, Option<&str>),
    ) -> Outcome {
        let api = self.api(&vm_resource(), &key.0);
        let stored = match api.get(&key.1).await.map(serde_json::to_value) {
            Ok(Ok(stored)) => stored,
            Ok(Err(error)) => return Outcome::Transient(error.to_string()),
            Err(error) => return outcome(error),
        };
        let is_same = stored["metadata"]["uid"] == *known.owner.uid
            && stored["spec"]["runnerImage"].as_str() == from;
        if !is_same {
            return Outcome::Conflict;
        }
        let body = json!({
            "metadata": {"resourceVersion": stored["metadata"]["resourceVersion"]},
            "spec": {"runnerImage": to},
        });
        let patch = Patch::Merge(&body);
        let trial = PatchParams {
            dry_run: true,
            ..PatchParams::default()
        };
        let tried = match api.patch(&key.1, &trial, &patch).await {
            Ok(tried) => serde_json::to_value(tried).unwrap_or_default(),
            Err(error) => return outcome(error),
        };
        if let Err(reason) = change::only(&stored, &tried, FIELD) {
            return Outcome::Refused(reason);
        }
        let written = api.patch(&key.1, &PatchParams::default(), &patch).await;
        written.map_or_else(outcome, |_| Outcome::Done)
    }

    async fn migrate(&self, key: &Key, known: &KnownGuest, migration: &str) -> Outcome {
        let object = serde_json::from_value(migration_object(key, &known.owner.uid, migration));
        let object = match object {
            Ok(object) => object,
            Err(error) => return Outcome::Refused(error.to_string()),
        };
        let api = self.api(&migration_resource(), &key.0);
        let created = api.create(&PostParams::default(), &object).await;
        created.map_or_else(outcome, |_| Outcome::Done)
    }

    /// Deletes the object that was seen, and no later one of its name.
    async fn delete(&self, key: &Key, known: &KnownGuest, migration: &str) -> Outcome {
        let api = self.api(&migration_resource(), &key.0);
        let params = DeleteParams::default().preconditions(Preconditions {
            uid: known.migration.clone(),
            resource_version: None,
        });
        let deleted = api.delete(migration, &params).await;
        deleted.map_or_else(outcome, |_| Outcome::Done)
    }
}

/// The migration of a move. It goes when its VM goes.
fn migration_object((namespace, vm): &Key, uid: &str, name: &str) -> Value {
    let spec = MigrationSpec {
        vm_name: vm.clone(),
        prevent_migration_to_same_host: false,
        completion_timeout: COMPLETION_SECONDS,
        ..MigrationSpec::default()
    };
    json!({
        "apiVersion": API_VERSION,
        "kind": "VirtualMachineMigration",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "annotations": {KEY_MOVES: uid},
            "ownerReferences": [{
                "apiVersion": API_VERSION, "kind": "VirtualMachine", "name": vm, "uid": uid,
            }],
        },
        "spec": spec,
    })
}

fn outcome(error: kube::Error) -> Outcome {
    match error {
        kube::Error::Api(refusal) => match refusal.code {
            CONFLICT | NOT_FOUND => Outcome::Conflict,
            BAD_REQUEST | FORBIDDEN | INVALID => Outcome::Refused(refusal.message),
            _ => Outcome::Transient(refusal.message),
        },
        error => Outcome::Transient(daemon_kit::chain(&error)),
    }
}
