//! The controller of VM objects.

use daemon_kit::journal::{Identity, Journal, Limits};
use kube::Client;
use neonvm_controller::{Metrics, Params, Settings, StateHandle};
use prometheus_client::registry::Registry;
use protocol::units::Resources;

use super::base::Base;
use super::supervisor::{Stage, Supervisor};
use crate::actions::SETS;

/// Name in the status.
const NAME: &str = "controller";

pub(crate) fn start(
    base: &Base,
    supervisor: &mut Supervisor,
    client: &Client,
    registry: &mut Registry,
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
        set_journal: journal(base),
    };
    let token = supervisor.token(Stage::Deciders);
    supervisor.run(NAME, Stage::Deciders, async move {
        neonvm_controller::run(params, token)
            .await
            .map_err(|error| daemon_kit::chain(&error))
    });
}

/// The journal of the changes of sets. If it cannot be written, sets go on without one.
fn journal(base: &Base) -> Option<Journal> {
    let identity = Identity {
        part: SETS.into(),
        node: base.instance.node().to_owned(),
        build: env!("CARGO_PKG_VERSION").into(),
        compute_unit: Resources::default(),
        run: u64::try_from(base.clock.wall().0).unwrap_or(0),
    };
    let folder = base.state.journal().join(SETS);
    let limits = Limits::default();
    Journal::open(&folder, identity, limits, base.clock, Vec::new())
        .inspect_err(|error| {
            let error = daemon_kit::chain(error);
            tracing::error!(error, "no journal of sets is written; sets go on");
        })
        .ok()
}
