//! The controller of VM objects.

use daemon_kit::journal::Journal;
use kube::Client;
use neonvm_controller::{Metrics, Params, Settings, StateHandle};
use prometheus_client::registry::Registry;

use super::base::Base;
use super::supervisor::{Stage, Supervisor};

/// Name in the status.
const NAME: &str = "controller";

pub(crate) fn start(
    base: &Base,
    supervisor: &mut Supervisor,
    client: &Client,
    registry: &mut Registry,
    set_journal: Option<Journal>,
) {
    let state = StateHandle::new(base.clock);
    let (synced, shown) = (state.clone(), state.clone());
    let ready = move || {
        if synced.is_synced() {
            Ok(())
        } else {
            Err("VMs and pods are not listed yet".to_owned())
        }
    };
    base.parts.register(
        NAME,
        None,
        Box::new(ready),
        Some(Box::new(move || shown.dump())),
    );
    let mut settings = Settings::one_machine();
    settings.local_node = Some(base.instance.node().to_owned());
    let params = Params {
        client: client.clone(),
        state_dir: base.state.path().to_owned(),
        settings,
        clock: base.clock,
        stages: base.stages.clone(),
        metrics: Metrics::register(registry),
        state,
        set_journal,
    };
    let token = supervisor.token(Stage::Deciders);
    supervisor.run(NAME, Stage::Deciders, async move {
        neonvm_controller::run(params, token)
            .await
            .map_err(|error| daemon_kit::chain(&error))
    });
}
