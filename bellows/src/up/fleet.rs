//! The driver of rollouts: brings new versions of parts to running guests.

use fleet::{Location, Metrics, Params, Pulses};
use kube::Client;
use prometheus_client::registry::Registry;

use super::base::Base;
use super::journal;
use super::supervisor::{Stage, Supervisor};
use crate::actions::FLEET;

/// Name in the status.
const NAME: &str = "fleet";

pub(crate) fn start(
    base: &Base,
    supervisor: &mut Supervisor,
    client: &Client,
    registry: &mut Registry,
) {
    base.parts.register(NAME, None, Box::new(|| Ok(())), None);
    let journal = journal::open(base, FLEET);
    let params = Params {
        client: client.clone(),
        clock: base.clock,
        state_dir: base.state.path().to_owned(),
        location: Location::Machine,
        stages: base.stages.clone(),
        metrics: Metrics::register(registry),
        journal: journal.clone(),
        pulses: Pulses::default(),
        schedules: true,
    };
    let token = supervisor.token(Stage::Deciders);
    supervisor.run(NAME, Stage::Deciders, async move {
        fleet::run(params, token).await;
        if let Some(journal) = journal {
            journal.close().await;
        }
        Ok(())
    });
}
