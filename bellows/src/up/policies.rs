//! The controller of policies: which version of each decides.

use std::sync::Arc;

use agent::StateHandle;
use kube::Client;
use policy_controller::{Agents, LOOK_EVERY, Params};

use super::base::Base;
use super::supervisor::{Stage, Supervisor};

/// Name in the status.
const NAME: &str = "policies";

pub(crate) fn start(base: &Base, supervisor: &mut Supervisor, client: &Client, agent: StateHandle) {
    base.parts.register(NAME, None, Box::new(|| Ok(())), None);
    let params = Params {
        client: client.clone(),
        clock: base.clock,
        agents: Agents::Here {
            node: base.instance.node().to_owned(),
            read: Arc::new(move || agent.policy_reports()),
        },
        every: LOOK_EVERY,
    };
    let token = supervisor.token(Stage::Deciders);
    supervisor.run(NAME, Stage::Deciders, async move {
        policy_controller::run(params, token).await;
        Ok(())
    });
}
