//! The controller of policies: which version of each decides.

use std::sync::Arc;

use agent::{Config, StateHandle};
use daemon_kit::journal::Journal;
use kube::Client;
use policy_controller::{Agents, LOOK_EVERY, Params, SetParams};
use protocol::units::Resources;

use super::base::Base;
use super::supervisor::{Stage, Supervisor};
use crate::commands::policy::program;

/// Name in the status.
const NAME: &str = "policies";
/// File of the state directory with the nodes that policies ask for.
const WISHES: &str = "capacity-wishes.json";

/// What the agent's configuration says of policies of sets.
pub(crate) struct OfSets {
    unit: Resources,
    feed_ports: Vec<u16>,
    journal: Option<Journal>,
}

impl OfSets {
    /// `None` where policies are switched off.
    pub(crate) fn of(config: &Config, journal: Option<Journal>) -> Option<Self> {
        let mut feed_ports = config.policies.as_ref()?.feed_ports.clone();
        // The agent reads this page of each guest anyway.
        feed_ports.push(config.metrics.system.port);
        Some(Self {
            unit: config.scaling.compute_unit,
            feed_ports,
            journal,
        })
    }
}

pub(crate) fn start(
    base: &Base,
    supervisor: &mut Supervisor,
    client: &Client,
    agent: StateHandle,
    of_sets: OfSets,
) {
    base.parts.register(NAME, None, Box::new(|| Ok(())), None);
    let params = Params {
        client: client.clone(),
        clock: base.clock,
        agents: Agents::Here {
            node: base.instance.node().to_owned(),
            read: Arc::new(move || agent.policy_reports()),
        },
        every: LOOK_EVERY,
        sets: Some(SetParams {
            // Without the program each version's report says that it is missing.
            program: program::find().ok(),
            unit: of_sets.unit,
            feed_ports: of_sets.feed_ports,
            wish_file: Some(base.state.path().join(WISHES)),
            journal: of_sets.journal,
        }),
    };
    let token = supervisor.token(Stage::Deciders);
    supervisor.run(NAME, Stage::Deciders, async move {
        policy_controller::run(params, token).await;
        Ok(())
    });
}
