//! Conditional writes: each replaces the version that was read, or nothing.

use fleet_core::{Outcome, Write};
use kube::api::{DynamicObject, PostParams};
use protocol::fleet::{
    FINALIZER, FleetKind, InstanceSpec, TurnSpec, validate_create, validate_update,
};
use serde_json::{Value, json};

use crate::FleetStore;
use crate::load::LoadedEnvironment;
use crate::objects::{Owner, deployment_object, instance_object, own, typed};

const CONFLICT: u16 = 409;
const NOT_FOUND: u16 = 404;
const INVALID: u16 = 422;

enum Request {
    Create,
    Replace,
    ReplaceStatus,
}

impl FleetStore {
    /// Carries out a write of the engine. `owner` is the VM of an instance, which may be new.
    pub async fn write(
        &self,
        loaded: &mut LoadedEnvironment,
        write: &Write,
        owner: Option<&Owner>,
    ) -> Outcome {
        let part = loaded.environment.spec.part;
        match write {
            Write::Environment(status) => {
                let name = loaded.environment.name.clone();
                self.status(loaded, FleetKind::Environment, &name, &json!(status))
                    .await
            }
            Write::Finalizer(is_there) => self.finalizer(loaded, *is_there).await,
            Write::Deployment { name, status } => {
                self.status(loaded, FleetKind::Deployment, name, &json!(status))
                    .await
            }
            Write::Create { name, spec } => {
                let mut object = deployment_object(&loaded.namespace, name, spec);
                if let Some(environment) = environment(loaded) {
                    own(&mut object, &environment);
                }
                self.send(loaded, FleetKind::Deployment, Request::Create, object)
                    .await
            }
            Write::Turn { guest, turn } => self.turn(loaded, guest, turn, owner).await,
            Write::End {
                guest, part: end, ..
            } => {
                let known = loaded.object(FleetKind::Instance, guest);
                let mut status = known.map_or(Value::Null, |mut object| object["status"].take());
                if !status["parts"].is_object() {
                    status["parts"] = json!({});
                }
                status["parts"][part.as_str()] = json!(end);
                self.status(loaded, FleetKind::Instance, guest, &status)
                    .await
            }
        }
    }

    async fn finalizer(&self, loaded: &mut LoadedEnvironment, is_there: bool) -> Outcome {
        let Some(mut object) = environment(loaded) else {
            return Outcome::Conflict;
        };
        let known = object["metadata"]["finalizers"].as_array();
        let others = known.into_iter().flatten().filter(|one| **one != FINALIZER);
        let own = is_there.then(|| Value::from(FINALIZER));
        let all: Vec<Value> = others.cloned().chain(own).collect();
        object["metadata"]["finalizers"] = all.into();
        self.send(loaded, FleetKind::Environment, Request::Replace, object)
            .await
    }

    async fn turn(
        &self,
        loaded: &mut LoadedEnvironment,
        guest: &str,
        turn: &TurnSpec,
        owner: Option<&Owner>,
    ) -> Outcome {
        let part = loaded.environment.spec.part;
        if let Some(mut object) = loaded.object(FleetKind::Instance, guest) {
            if !object["spec"]["parts"].is_object() {
                object["spec"]["parts"] = json!({});
            }
            object["spec"]["parts"][part.as_str()] = json!(turn);
            return self
                .send(loaded, FleetKind::Instance, Request::Replace, object)
                .await;
        }
        let Some(owner) = owner else {
            return Outcome::Refused(format!("the VM of instance {guest} is not known"));
        };
        let spec = InstanceSpec {
            parts: [(part, turn.clone())].into(),
            runner: None,
        };
        let object = instance_object(&loaded.namespace, guest, owner, &spec);
        self.send(loaded, FleetKind::Instance, Request::Create, object)
            .await
    }

    async fn status(
        &self,
        loaded: &mut LoadedEnvironment,
        kind: FleetKind,
        name: &str,
        status: &Value,
    ) -> Outcome {
        let Some(mut object) = loaded.object(kind, name) else {
            return Outcome::Conflict;
        };
        object["status"] = status.clone();
        self.send(loaded, kind, Request::ReplaceStatus, object)
            .await
    }

    async fn send(
        &self,
        loaded: &mut LoadedEnvironment,
        kind: FleetKind,
        request: Request,
        object: Value,
    ) -> Outcome {
        let name = object["metadata"]["name"]
            .as_str()
            .unwrap_or_default()
            .to_owned();
        let before = match request {
            Request::Create => None,
            Request::Replace | Request::ReplaceStatus => loaded.object(kind, &name),
        };
        if let Err(reason) = checked(kind, before.as_ref(), &object) {
            return Outcome::Refused(reason);
        }
        let object: DynamicObject = match serde_json::from_value(typed(kind, object)) {
            Ok(object) => object,
            Err(error) => return Outcome::Refused(error.to_string()),
        };
        let api = self.of(kind, &loaded.namespace);
        let params = PostParams::default();
        let written = match request {
            Request::Create => api.create(&params, &object).await,
            Request::Replace => api.replace(&name, &params, &object).await,
            Request::ReplaceStatus => api.replace_status(&name, &params, &object).await,
        };
        match written.map(|object| serde_json::to_string(&object)) {
            Ok(Ok(text)) => {
                loaded.keep_object(kind, &name, text.into());
                Outcome::Done
            }
            Ok(Err(error)) => Outcome::Transient(error.to_string()),
            Err(error) => outcome(error),
        }
    }
}

fn environment(loaded: &LoadedEnvironment) -> Option<Value> {
    loaded.object(FleetKind::Environment, &loaded.environment.name)
}

fn checked(kind: FleetKind, before: Option<&Value>, object: &Value) -> Result<(), String> {
    let result = match before {
        Some(before) => validate_update(kind.as_str(), before, object),
        None => validate_create(kind.as_str(), object),
    };
    result.map_err(|errors| {
        let messages: Vec<String> = errors.iter().map(|error| error.to_message()).collect();
        messages.join("; ")
    })
}

pub(crate) fn outcome(error: kube::Error) -> Outcome {
    match error {
        kube::Error::Api(refusal) if matches!(refusal.code, CONFLICT | NOT_FOUND) => {
            Outcome::Conflict
        }
        kube::Error::Api(refusal) if refusal.code == INVALID => Outcome::Refused(refusal.message),
        error => Outcome::Transient(error.to_string()),
    }
}
