//! Events on deployments whose image is not used.

use std::collections::BTreeSet;
use std::time::Duration;

use api_client::events::Warning;
use fleet_core::{Deployment, ImageCheck, World};
use fleet_store::LoadedEnvironment;
use k8s_openapi::api::core::v1::{Event, ObjectReference};
use kube::api::{Api, PostParams};
use protocol::fleet::{FleetKind, GROUP, VERSION};
use protocol::time::WallTime;
use tokio::time::timeout;

use crate::changes::{Change, ChangeKind, change};
use crate::records::Records;

/// Reason of the events.
const REASON: &str = "ImageRefused";
const COMPONENT: &str = "bellows-fleet";
/// Longest time for one event.
const EVENT_LIMIT: Duration = Duration::from_secs(5);
const CONFLICT: u16 = 409;

/// Writer of one event for each deployment and each reason.
#[derive(Debug, Default)]
pub(crate) struct Refusals {
    /// Deployments and reasons of events that the API has.
    told: BTreeSet<(String, String)>,
}

impl Refusals {
    /// Writes the events that are missing. One that fails is written by a later look.
    pub(crate) async fn tell(
        &mut self,
        client: &kube::Client,
        records: &Records,
        loaded: &LoadedEnvironment,
        world: &World,
        now: WallTime,
    ) {
        let running = world.deployments.iter();
        let running = running.filter(|one| !one.status.state.is_terminal());
        let refused: BTreeSet<_> = running.filter_map(|one| refusal(world, one)).collect();
        self.told.retain(|one| refused.contains(one));
        for (deployment, why) in refused {
            let key = (deployment, why);
            if self.told.contains(&key) {
                continue;
            }
            let uid = loaded.uid(FleetKind::Deployment, &key.0);
            let about = ObjectReference {
                api_version: Some(format!("{GROUP}/{VERSION}")),
                kind: Some(FleetKind::Deployment.as_str().to_owned()),
                name: Some(key.0.clone()),
                namespace: Some(loaded.namespace.clone()),
                uid: uid.map(str::to_owned),
                ..ObjectReference::default()
            };
            let written = timeout(EVENT_LIMIT, event(client, about, &key.1, now)).await;
            let written = written.unwrap_or_else(|_| Err("no answer in time".to_owned()));
            let on = format!("{}/{}", loaded.namespace, key.0);
            let refused = change(ChangeKind::Refuse, on, String::new(), key.1.clone());
            if written.is_ok() {
                self.told.insert(key);
            }
            records.tell(&Change {
                failure: written.err(),
                ..refused
            });
        }
    }
}

fn refusal(world: &World, deployment: &Deployment) -> Option<(String, String)> {
    let revision = world.revisions.get(&deployment.spec.revision)?;
    match &revision.image {
        ImageCheck::Refused(why) => Some((deployment.name.clone(), why.clone())),
        _ => None,
    }
}

async fn event(
    client: &kube::Client,
    about: ObjectReference,
    why: &str,
    now: WallTime,
) -> Result<(), String> {
    let warning = Warning {
        about,
        component: COMPONENT.to_owned(),
        reason: REASON.to_owned(),
        message: why.to_owned(),
        unix_us: now.0,
    };
    let events: Api<Event> = Api::namespaced(client.clone(), warning.namespace());
    let (params, event) = (PostParams::default(), warning.into_event());
    match events.create(&params, &event).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(refusal)) if refusal.code == CONFLICT => Ok(()),
        Err(error) => Err(daemon_kit::chain(&error)),
    }
}
