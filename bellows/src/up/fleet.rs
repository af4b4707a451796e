//! The driver of rollouts: brings new versions of parts to running guests.

use fleet::Params;
use kube::Client;

use super::base::Base;
use super::supervisor::{Stage, Supervisor};

/// Name in the status.
const NAME: &str = "fleet";

pub(crate) fn start(base: &Base, supervisor: &mut Supervisor, client: &Client) {
    base.parts.register(NAME, None, Box::new(|| Ok(())), None);
    let params = Params {
        client: client.clone(),
        clock: base.clock,
        state_dir: base.state.path().to_owned(),
    };
    let token = supervisor.token(Stage::Deciders);
    supervisor.run(NAME, Stage::Deciders, async move {
        fleet::run(params, token).await;
        Ok(())
    });
}
