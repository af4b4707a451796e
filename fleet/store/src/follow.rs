//! Reading and writing of channels, and of what follows from them.

use fleet_core::Environment;
use kube::api::PostParams;
use protocol::fleet::{
    ChannelSpec, ChannelStatus, DeploymentSpec, EnvironmentSpec, EnvironmentStatus, FleetKind,
    KEY_ENVIRONMENT, RevisionData,
};
use serde_json::json;

use crate::FleetStore;
use crate::channels::{Follower, LoadedChannel};
use crate::load::{Loaded, LoadedEnvironment, Problem, checked, read_of, status, values};
use crate::objects::{deployment_object, revision_object, typed};
use crate::revisions::{KeptRevision, kept_revisions};

const CONFLICT: u16 = 409;

impl FleetStore {
    /// Reads all channels. One that cannot be read is listed, and hurts no other.
    ///
    /// # Errors
    /// The call that failed.
    pub async fn channels(&self) -> kube::Result<(Vec<LoadedChannel>, Vec<Problem>)> {
        let (mut all, mut problems) = (Vec::new(), Vec::new());
        for object in values(&self.all(FleetKind::Channel), "").await? {
            let read = read_of(&object);
            let parsed = checked(FleetKind::Channel, &object)
                .and_then(|()| ChannelSpec::of_object(&object))
                .and_then(|spec| Ok((spec, status::<ChannelStatus>(&object)?)));
            let (namespace, name) = (read.namespace.to_owned(), read.name.to_owned());
            match parsed {
                Ok((spec, status)) => all.push(LoadedChannel {
                    namespace,
                    name,
                    spec,
                    status,
                    object,
                }),
                Err(reason) => problems.push(Problem {
                    object: format!("FleetChannel {namespace}/{name}"),
                    reason,
                }),
            }
        }
        Ok((all, problems))
    }

    /// Marks environments whose channel calls their started version urgent. A channel that cannot
    /// be read calls nothing urgent.
    pub(crate) async fn add_critical(&self, loaded: &mut Loaded) {
        let follows = |one: &LoadedEnvironment| one.environment.spec.source.channel.is_some();
        if !loaded.environments.iter().any(follows) {
            return;
        }
        let (channels, _) = self.channels().await.unwrap_or_default();
        for one in &mut loaded.environments {
            let Environment { spec, status, .. } = &one.environment;
            let mut urgent = channels
                .iter()
                .filter(|it| it.status.calls_urgent(&status.desired));
            one.is_critical = urgent.any(|channel| {
                channel.namespace == one.namespace
                    && spec.source.channel.as_ref() == Some(&channel.name)
            });
        }
    }

    /// Writes the status of a channel, if the object is as it was read or written last.
    ///
    /// # Errors
    /// The call that failed. A conflict is one.
    pub async fn write_channel(&self, channel: &mut LoadedChannel) -> kube::Result<()> {
        let mut object = typed(FleetKind::Channel, channel.object.clone());
        object["status"] = json!(channel.status);
        let object = serde_json::from_value(object).map_err(kube::Error::SerdeError)?;
        let api = self.of(FleetKind::Channel, &channel.namespace);
        let params = PostParams::default();
        let written = api.replace_status(&channel.name, &params, &object).await?;
        channel.object = serde_json::to_value(written).map_err(kube::Error::SerdeError)?;
        Ok(())
    }

    /// Environments that follow a channel. Those that cannot be read, or go away, are left out.
    ///
    /// # Errors
    /// The call that failed.
    pub async fn followers(&self, channel: &LoadedChannel) -> kube::Result<Vec<Follower>> {
        let namespace = &channel.namespace;
        let environments = values(&self.of(FleetKind::Environment, namespace), "").await?;
        let mut followers = Vec::new();
        for object in environments {
            let name = read_of(&object).name.to_owned();
            let parsed = checked(FleetKind::Environment, &object)
                .and_then(|()| EnvironmentSpec::of_object(&object))
                .and_then(|spec| Ok((spec, status::<EnvironmentStatus>(&object)?)));
            let Ok((spec, status)) = parsed else {
                continue;
            };
            let follows = spec.source.channel.as_ref() == Some(&channel.name);
            if !follows || object["metadata"]["deletionTimestamp"].is_string() {
                continue;
            }
            let label = format!("{KEY_ENVIRONMENT}={name}");
            let revisions = values(&self.revisions_of(namespace), &label).await?;
            followers.push(Follower {
                revisions: kept_revisions(&revisions),
                name,
                spec,
                status,
                object,
            });
        }
        Ok(followers)
    }

    /// Makes the next revision of an environment. Another one of its number is a conflict.
    ///
    /// # Errors
    /// The call that failed.
    pub async fn create_revision(
        &self,
        namespace: &str,
        follower: &Follower,
        data: &RevisionData,
    ) -> kube::Result<KeptRevision> {
        let newest = follower.revisions.first();
        let number = newest.map_or(1, |newest| newest.number.saturating_add(1));
        let object = revision_object(&follower.object, number, data);
        let object = serde_json::from_value(object).map_err(kube::Error::SerdeError)?;
        let api = self.revisions_of(namespace);
        let created = api.create(&PostParams::default(), &object).await?;
        Ok(KeptRevision {
            name: created.metadata.name.unwrap_or_default(),
            number,
            data: data.clone(),
        })
    }

    /// Makes a deployment. Returns `false` if there is one of its name.
    ///
    /// # Errors
    /// The call that failed.
    pub async fn create_deployment(
        &self,
        namespace: &str,
        name: &str,
        spec: &DeploymentSpec,
    ) -> kube::Result<bool> {
        let object = deployment_object(namespace, name, spec);
        let object = serde_json::from_value(object).map_err(kube::Error::SerdeError)?;
        let api = self.of(FleetKind::Deployment, namespace);
        match api.create(&PostParams::default(), &object).await {
            Ok(_) => Ok(true),
            Err(kube::Error::Api(refusal)) if refusal.code == CONFLICT => Ok(false),
            Err(error) => Err(error),
        }
    }
}
