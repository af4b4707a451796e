//! The world of an environment of images for one look of a command, as the driver would see it.
//! Pages of agents are not asked: a person's machine may not reach pods.

use daemon_kit::clock::Clock;
use fleet_core::World;
use fleet_store::FleetStore;
use protocol::fleet::{DeploymentKind, Lock};
use protocol::parts::PartName;

use crate::images::ImageGate;
use crate::lease::Seen;
use crate::look::Looker;
use crate::node::Unconnected;
use crate::pulse::Pulses;
use crate::runners::{Pods, Runners};
use crate::{nodes, services};

/// Deployment that a person would start.
const PLANNED: &str = "plan";

/// Reads the world of an environment of the parts that images hold. Without a deployment in
/// progress it is that of a person's new order. `None` if there is no such environment.
///
/// # Errors
/// The list that failed.
pub async fn planned_world(
    client: kube::Client,
    (namespace, name): (&str, &str),
) -> Result<Option<World>, String> {
    let clock = Clock::new();
    let looker = Looker {
        client: client.clone(),
        clock,
        runners: Runners::Pods(Pods::new(client.clone())),
        unconnected: Unconnected::default(),
        images: ImageGate::default(),
        seen: Seen::default(),
        begun: clock.now(),
        asks_pages: false,
    };
    let loaded = FleetStore::new(client).load().await;
    let all = loaded
        .map_err(|error| daemon_kit::chain(&error))?
        .environments;
    let of_name = |one: &&fleet_store::LoadedEnvironment| {
        one.namespace == namespace && one.environment.name == name
    };
    let Some(mut own) = all.iter().find(of_name).cloned() else {
        return Ok(None);
    };
    let lock = own.environment.status.lock.clone();
    own.environment.status.lock = lock.clone().or_else(|| {
        Some(Lock {
            deployment: PLANNED.to_owned(),
            kind: DeploymentKind::User,
            epoch: 0,
        })
    });
    let mut looked = if own.environment.spec.part == PartName::Agent {
        let surroundings = looker.surroundings().await?;
        let pulse = Pulses::default().task();
        nodes::world(&looker, &own, &all, &surroundings, &pulse).await
    } else {
        services::world(&looker, &own, &all).await
    };
    looked.world.environment.status.lock = lock;
    Ok(Some(looked.world))
}
