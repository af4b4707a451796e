//! Reading of all objects. A record that cannot be read hurts itself alone.

use std::collections::BTreeMap;
use std::sync::Arc;

use fleet_core::{Deployment, Environment, ImageCheck, Revision};
use kube::api::{Api, DynamicObject, ListParams};
use protocol::fleet::{
    DeploymentSpec, EnvironmentSpec, FINALIZER, FleetKind, InstancePart, InstanceSpec,
    InstanceStatus, KEY_ENVIRONMENT, KEY_HOOK, TurnSpec, validate_create,
};
use protocol::parts::PartName;
use protocol::time::WallTime;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::FleetStore;
use crate::revisions::read_data;

/// All objects of the fleet.
#[derive(Debug, Default)]
pub struct Loaded {
    /// Environments with what belongs to them.
    pub environments: Vec<LoadedEnvironment>,
    /// Objects that were left out.
    pub problems: Vec<Problem>,
}

/// An object that was left out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Kind, namespace and name.
    pub object: String,
    /// A sentence for people.
    pub reason: String,
}

/// JSON of an object. A parsed one takes several times as much memory.
pub(crate) type ObjectText = Arc<str>;

/// An environment with what belongs to it.
#[derive(Debug, Clone)]
pub struct LoadedEnvironment {
    /// Namespace of all its objects.
    pub namespace: String,
    /// The environment that the engine decides about.
    pub environment: Environment,
    /// Its revisions by name.
    pub revisions: BTreeMap<String, Revision>,
    /// Deployments that name the environment.
    pub deployments: Vec<Deployment>,
    /// Whether its channel calls the started version urgent.
    pub is_critical: bool,
    /// Turns and ends of the environment's part, by instance. Empty until
    /// [`FleetStore::load_instances`] has read them.
    pub turns: BTreeMap<String, (Option<TurnSpec>, Option<InstancePart>)>,
    objects: BTreeMap<(FleetKind, String), ObjectText>,
}

impl LoadedEnvironment {
    /// The environment without its turns.
    #[must_use]
    pub fn without_turns(&self) -> Self {
        Self {
            namespace: self.namespace.clone(),
            environment: self.environment.clone(),
            revisions: self.revisions.clone(),
            deployments: self.deployments.clone(),
            is_critical: self.is_critical,
            turns: BTreeMap::new(),
            objects: self.objects.clone(),
        }
    }

    /// One of its objects as it was read, for a write that holds its version.
    pub(crate) fn object(&self, kind: FleetKind, name: &str) -> Option<Value> {
        let text = self.objects.get(&(kind, name.to_owned()))?;
        serde_json::from_str(text).ok()
    }

    pub(crate) fn keep_object(&mut self, kind: FleetKind, name: &str, text: ObjectText) {
        self.objects.insert((kind, name.to_owned()), text);
    }

    /// Identity of one of its objects, as it was read.
    #[must_use]
    pub fn uid(&self, kind: FleetKind, name: &str) -> Option<String> {
        let object = self.object(kind, name)?;
        object["metadata"]["uid"].as_str().map(str::to_owned)
    }

    /// Whether its selector matches an object with these labels.
    #[must_use]
    pub fn selects(&self, labels: &BTreeMap<String, String>) -> bool {
        self.environment.spec.selector.matches(labels)
    }
}

pub(crate) struct Read<'a> {
    pub(crate) namespace: &'a str,
    pub(crate) name: &'a str,
    object: &'a Value,
}

impl FleetStore {
    /// Reads all objects.
    ///
    /// # Errors
    /// The first call that failed.
    pub async fn load(&self) -> kube::Result<Loaded> {
        let mut loaded = self.load_environments().await?;
        if !loaded.environments.is_empty() {
            self.load_instances(&mut loaded).await?;
        }
        Ok(loaded)
    }

    /// Reads all objects but the instances.
    ///
    /// # Errors
    /// The first call that failed.
    pub async fn load_environments(&self) -> kube::Result<Loaded> {
        let environments = values(&self.all(FleetKind::Environment), "").await?;
        if environments.is_empty() {
            return Ok(Loaded::default());
        }
        let deployments = values(&self.all(FleetKind::Deployment), "").await?;
        let revisions = values(&self.revisions(), KEY_ENVIRONMENT).await?;
        let mut loaded = Loaded::default();
        for object in &environments {
            let read = read_of(object);
            match environment(&read) {
                Ok(environment) => loaded.environments.push(LoadedEnvironment {
                    namespace: read.namespace.to_owned(),
                    objects: [(
                        (FleetKind::Environment, read.name.to_owned()),
                        object.to_string().into(),
                    )]
                    .into(),
                    environment,
                    revisions: BTreeMap::new(),
                    deployments: Vec::new(),
                    turns: BTreeMap::new(),
                    is_critical: false,
                }),
                Err(reason) => loaded.leave_out(FleetKind::Environment.as_str(), &read, reason),
            }
        }
        loaded.add_revisions(&revisions);
        loaded.add_deployments(&deployments);
        self.add_critical(&mut loaded).await;
        Ok(loaded)
    }

    /// Adds the instances to what [`Self::load_environments`] has read.
    ///
    /// # Errors
    /// The first call that failed. Some instances may be missing then.
    pub async fn load_instances(&self, loaded: &mut Loaded) -> kube::Result<()> {
        let instances = self.all(FleetKind::Instance);
        let params = ListParams::default();
        api_client::pages::each(&instances, &params, |object| loaded.add_instance(object)).await
    }
}

pub(crate) async fn values(api: &Api<DynamicObject>, label: &str) -> kube::Result<Vec<Value>> {
    let params = ListParams::default().labels(label);
    let mut values = Vec::new();
    api_client::pages::each(api, &params, |object| values.push(object)).await?;
    Ok(values)
}

pub(crate) fn read_of(object: &Value) -> Read<'_> {
    let text = |member: &str| object["metadata"][member].as_str().unwrap_or_default();
    Read {
        namespace: text("namespace"),
        name: text("name"),
        object,
    }
}

/// Checks a record by the rules of its admission: an older version may have stored it.
pub(crate) fn checked(kind: FleetKind, object: &Value) -> Result<(), String> {
    validate_create(kind.as_str(), object).map_err(|errors| {
        let messages: Vec<String> = errors.iter().map(|error| error.to_message()).collect();
        messages.join("; ")
    })
}

pub(crate) fn status<T: DeserializeOwned + Default>(object: &Value) -> Result<T, String> {
    match object.get("status") {
        None | Some(Value::Null) => Ok(T::default()),
        Some(status) => T::deserialize(status).map_err(|error| format!(".status: {error}")),
    }
}

fn environment(read: &Read<'_>) -> Result<Environment, String> {
    checked(FleetKind::Environment, read.object)?;
    Ok(Environment {
        name: read.name.to_owned(),
        spec: EnvironmentSpec::of_object(read.object)?,
        status: status(read.object)?,
        is_deleted: read.object["metadata"]["deletionTimestamp"].is_string(),
        has_finalizer: has_finalizer(read.object),
    })
}

fn has_finalizer(object: &Value) -> bool {
    let all = object["metadata"]["finalizers"].as_array();
    all.into_iter().flatten().any(|one| *one == FINALIZER)
}

fn deployment(read: &Read<'_>) -> Result<Deployment, String> {
    checked(FleetKind::Deployment, read.object)?;
    let created = &read.object["metadata"]["creationTimestamp"];
    Ok(Deployment {
        name: read.name.to_owned(),
        created: WallTime::deserialize(created).map_err(|error| error.to_string())?,
        spec: DeploymentSpec::of_object(read.object)?,
        status: status(read.object)?,
        answers: answers(read.object),
    })
}

/// Answers of hooks, by the hooks' names.
fn answers(object: &Value) -> BTreeMap<String, String> {
    let all = object["metadata"]["annotations"].as_object();
    let of_hooks = all.into_iter().flatten().filter_map(|(key, value)| {
        let name = key.strip_prefix(KEY_HOOK)?;
        Some((name.to_owned(), value.as_str()?.to_owned()))
    });
    of_hooks.collect()
}

impl Loaded {
    fn leave_out(&mut self, kind: &str, read: &Read<'_>, reason: String) {
        self.problems.push(Problem {
            object: format!("{kind} {}/{}", read.namespace, read.name),
            reason,
        });
    }

    fn of(&mut self, namespace: &str, name: &str) -> Option<&mut LoadedEnvironment> {
        let mut all = self.environments.iter_mut();
        all.find(|one| one.namespace == namespace && one.environment.name == name)
    }

    fn add_revisions(&mut self, revisions: &[Value]) {
        for object in revisions {
            let read = read_of(object);
            let owner = object["metadata"]["labels"][KEY_ENVIRONMENT].as_str();
            let data = match read_data(object) {
                Ok(data) => data,
                Err(reason) => {
                    self.leave_out("ControllerRevision", &read, reason);
                    continue;
                }
            };
            if let Some(environment) = owner.and_then(|owner| self.of(read.namespace, owner)) {
                let revision = Revision {
                    rollout: data.spec.rollout,
                    program: data.resolved,
                    image: ImageCheck::default(),
                };
                environment.revisions.insert(read.name.to_owned(), revision);
            }
        }
    }

    fn add_deployments(&mut self, deployments: &[Value]) {
        for object in deployments {
            let read = read_of(object);
            let one = match deployment(&read) {
                Ok(one) => one,
                Err(reason) => {
                    self.leave_out(FleetKind::Deployment.as_str(), &read, reason);
                    continue;
                }
            };
            if let Some(environment) = self.of(read.namespace, &one.spec.environment) {
                let text = object.to_string().into();
                environment.keep_object(FleetKind::Deployment, &one.name, text);
                environment.deployments.push(one);
            }
        }
    }

    fn add_instance(&mut self, object: Value) {
        let read = read_of(&object);
        let parsed = checked(FleetKind::Instance, &object)
            .and_then(|()| InstanceSpec::of_object(&object))
            .and_then(|spec| Ok((spec, status::<InstanceStatus>(&object)?)));
        let (spec, status) = match parsed {
            Ok(parsed) => parsed,
            Err(reason) => {
                self.leave_out(FleetKind::Instance.as_str(), &read, reason);
                return;
            }
        };
        let (namespace, name) = (read.namespace.to_owned(), read.name.to_owned());
        let text = ObjectText::from(object.to_string());
        let environments = self.environments.iter_mut();
        for one in environments.filter(|one| one.namespace == namespace) {
            let part: PartName = one.environment.spec.part;
            let of_part = (
                spec.parts.get(&part).cloned(),
                status.parts.get(&part).cloned(),
            );
            one.keep_object(FleetKind::Instance, &name, Arc::clone(&text));
            one.turns.insert(name.clone(), of_part);
        }
    }
}
