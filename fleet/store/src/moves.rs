//! Reading and writing of moves of guests to other runners, in the instances of their VMs.

use fleet_core::{Outcome, is_open};
use kube::api::{DynamicObject, PostParams};
use protocol::fleet::{
    FleetKind, InstanceSpec, InstanceStatus, RunnerMove, RunnerMoveEnd, instance_name,
    validate_create, validate_update,
};
use serde_json::{Value, json};

use crate::FleetStore;
use crate::instances::{Instances, LoadedInstance};
use crate::load::{Problem, checked, read_of, status, values};
use crate::objects::{Owner, instance_object, typed};
use crate::write::outcome;

impl FleetStore {
    /// Reads all instances. One that cannot be read is listed, and hurts no other.
    ///
    /// # Errors
    /// The call that failed.
    pub async fn instances(&self) -> kube::Result<(Instances, Vec<Problem>)> {
        let (mut all, mut problems) = (Instances::new(), Vec::new());
        for object in values(&self.all(FleetKind::Instance), "").await? {
            let read = read_of(&object);
            let key = (read.namespace.to_owned(), read.name.to_owned());
            match instance(&object) {
                Ok(instance) => {
                    all.insert(key, instance);
                }
                Err(reason) => problems.push(Problem {
                    object: format!("FleetInstance {}/{}", key.0, key.1),
                    reason,
                }),
            }
        }
        Ok((all, problems))
    }

    /// Writes a decision to move a guest. Without an instance it makes one.
    pub async fn write_move(
        &self,
        namespace: &str,
        known: Option<&LoadedInstance>,
        owner: &Owner,
        turn: &RunnerMove,
    ) -> Outcome {
        let Some(known) = known else {
            let spec = InstanceSpec {
                runner: Some(turn.clone()),
                ..InstanceSpec::default()
            };
            return self.create_instance(namespace, owner, &spec).await.1;
        };
        let mut object = typed(FleetKind::Instance, known.object.clone());
        object["spec"]["runner"] = json!(turn);
        let checked = validate_update(FleetKind::Instance.as_str(), &known.object, &object);
        if let Err(errors) = checked {
            return refused(&errors);
        }
        let (object, name) = match sendable(object) {
            Ok(sendable) => sendable,
            Err(outcome) => return outcome,
        };
        let api = self.of(FleetKind::Instance, namespace);
        let sent = api.replace(&name, &PostParams::default(), &object).await;
        sent.map_or_else(outcome, |_| Outcome::Done)
    }

    /// Writes the end of a move. Without an instance it makes one.
    pub async fn write_move_end(
        &self,
        namespace: &str,
        known: Option<&LoadedInstance>,
        owner: &Owner,
        end: &RunnerMoveEnd,
    ) -> Outcome {
        let object = match known {
            Some(known) => known.object.clone(),
            None => {
                let spec = InstanceSpec::default();
                match self.create_instance(namespace, owner, &spec).await {
                    (Some(object), _) => object,
                    (None, outcome) => return outcome,
                }
            }
        };
        let mut object = typed(FleetKind::Instance, object);
        object["status"]["runner"] = json!(end);
        let (object, name) = match sendable(object) {
            Ok(sendable) => sendable,
            Err(outcome) => return outcome,
        };
        let api = self.of(FleetKind::Instance, namespace);
        let params = PostParams::default();
        let sent = api.replace_status(&name, &params, &object).await;
        sent.map_or_else(outcome, |_| Outcome::Done)
    }

    async fn create_instance(
        &self,
        namespace: &str,
        owner: &Owner,
        spec: &InstanceSpec,
    ) -> (Option<Value>, Outcome) {
        let object = instance_object(namespace, &instance_name(&owner.name), owner, spec);
        if let Err(errors) = validate_create(FleetKind::Instance.as_str(), &object) {
            return (None, refused(&errors));
        }
        let (object, _) = match sendable(object) {
            Ok(sendable) => sendable,
            Err(outcome) => return (None, outcome),
        };
        let api = self.of(FleetKind::Instance, namespace);
        match api.create(&PostParams::default(), &object).await {
            Ok(created) => (serde_json::to_value(created).ok(), Outcome::Done),
            Err(error) => (None, outcome(error)),
        }
    }
}

fn instance(object: &Value) -> Result<LoadedInstance, String> {
    checked(FleetKind::Instance, object)?;
    let spec = InstanceSpec::of_object(object)?;
    let status: InstanceStatus = status(object)?;
    let mut turns = spec.parts.iter();
    Ok(LoadedInstance {
        has_open_turn: turns.any(|(part, turn)| is_open(Some(turn), status.parts.get(part))),
        turn: spec.runner,
        end: status.runner,
        object: object.clone(),
    })
}

fn sendable(object: Value) -> Result<(DynamicObject, String), Outcome> {
    let name = read_of(&object).name.to_owned();
    let object = serde_json::from_value(object);
    let object = object.map_err(|error| Outcome::Refused(error.to_string()))?;
    Ok((object, name))
}

fn refused(errors: &[protocol::admission::FieldError]) -> Outcome {
    let messages: Vec<String> = errors.iter().map(|error| error.to_message()).collect();
    Outcome::Refused(messages.join("; "))
}
