//! The agent: decides the size of each VM on this machine.

use std::net::IpAddr;
use std::path::Path;

use agent::{Config, Params, RunError, StateHandle};
use kube::Client;

use super::base::Base;
use super::supervisor::{Stage, Supervisor};
use crate::fail::{Fail, Outcome};

/// Name in the status.
pub(crate) const NAME: &str = "agent";

/// Reads a configuration file. Without one, the built-in configuration.
///
/// # Errors
///
/// 64 with every problem of the file.
pub(crate) fn config(file: Option<&Path>) -> Outcome<Config> {
    let Some(path) = file else {
        let mut config =
            Config::one_machine().map_err(|error| Fail::bug(daemon_kit::chain(&error)))?;
        // Costs nothing until somebody makes a policy.
        config.policies = Some(agent::PolicySettings::default());
        return Ok(config);
    };
    Config::from_file(&path.display().to_string()).map_err(|error| {
        Fail::usage(format!(
            "--agent-config {}: {}",
            path.display(),
            daemon_kit::chain(&error)
        ))
    })
}

pub(crate) async fn start(
    base: &Base,
    supervisor: &mut Supervisor,
    client: &Client,
    mut config: Config,
) -> Outcome<StateHandle> {
    if config.dump_state.take().is_some() {
        tracing::warn!(
            "dumpState of the agent's configuration is not served on one machine: use `bellows dump agent`"
        );
    }
    let state = StateHandle::new();
    let address = IpAddr::V4(base.instance.agent());
    let params = Params {
        clock: base.clock,
        stages: base.stages.clone(),
        state: state.clone(),
        journal: Some(base.state.journal()),
        events_folder: Some(base.state.path().join("events")),
        permit_token: Some(base.secrets.permit_token.reveal().to_owned()),
        metrics_token: Some(base.secrets.metrics_token),
        monitor_key: Some(base.secrets.agent_key.clone()),
        ..Params::new(
            config,
            base.instance.node().to_owned(),
            client.clone(),
            address,
        )
    };
    let bound = agent::bind(params).await.map_err(|error| explain(&error))?;
    let addresses = bound
        .addresses()
        .map_err(|error| Fail::bug(format!("the agent's addresses are unknown: {error}")))?;
    let (ready, reports) = (state.clone(), state.clone());
    base.parts.register(
        NAME,
        Some(format!("http://{}/metrics", addresses.metrics)),
        Box::new(move || ready.ready()),
        Some(Box::new(move || state.dump())),
    );
    let token = supervisor.token(Stage::Deciders);
    supervisor.run(NAME, Stage::Deciders, async move {
        bound
            .run(token)
            .await
            .map_err(|error| daemon_kit::chain(&error))
    });
    Ok(reports)
}

fn explain(error: &RunError) -> Fail {
    let what = format!("the agent does not start: {}", daemon_kit::chain(error));
    match error {
        RunError::Events(_) => Fail::missing(what)
            .fix("check the event clients of the configuration and the credentials in the environment"),
        RunError::Bind { source, .. } if source.kind() == std::io::ErrorKind::AddrInUse => Fail::try_again(what)
            .fix("end the process that listens there, or use another --state-dir, which gets other addresses"),
        RunError::Bind { .. } => Fail::missing(what),
        RunError::Crashed(_) => Fail::bug(what),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_built_in_config_is_good_and_a_bad_one_is_usage() {
        assert_eq!(
            config(None).unwrap().scheduler.scheduler_name,
            crate::instance::SCHEDULER_NAME
        );
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("c.json");
        std::fs::write(&path, r#"{"surprise": 1}"#).unwrap();
        let fail = config(Some(&path)).unwrap_err();
        assert_eq!(fail.exit() as u8, 64);
        assert!(
            fail.what().contains("surprise") && fail.what().contains("scaling"),
            "{fail}"
        );
    }
}
