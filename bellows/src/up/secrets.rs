//! Credentials of the components on one machine. Every local user reaches the loopback, so an
//! address proves nothing.
//!
//! | secret | file | sent by and to |
//! |---|---|---|
//! | permit token | none: created at each start | the agent to the permit server, both in this process |
//! | metrics token | `STATE/metrics.token` | a reader of metrics to every `/metrics` page |
//! | agent key | `STATE/agent.key` | the agent to each monitor, as the token derived for that VM |

use std::path::Path;

use daemon_kit::bearer::{self, Expected, VmKey};

use crate::fail::{Fail, Outcome};
use crate::places::StateDir;

/// The secrets of one run of `bellows up`.
#[derive(Debug, Clone)]
pub(crate) struct Secrets {
    /// The agent sends it with each permit request.
    pub(crate) permit_token: Bearer,
    /// Every metrics page requires it.
    pub(crate) metrics_token: Expected,
    /// Derives the tokens of the monitors.
    pub(crate) agent_key: VmKey,
}

/// A token in memory. Its `Debug` output hides it.
#[derive(Clone)]
pub(crate) struct Bearer(String);

impl Bearer {
    pub(crate) fn reveal(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Debug for Bearer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("(not shown)")
    }
}

impl Secrets {
    /// Creates a permit token, and reads or creates the files.
    ///
    /// # Errors
    ///
    /// 69 if a file cannot be created or read.
    pub(crate) fn load(state: &StateDir) -> Outcome<Self> {
        let unusable = |path: &Path| {
            let name = path.display().to_string();
            move |error: std::io::Error| {
                Fail::missing(format!("{name} cannot be used: {error}"))
                    .rule("the file holds a secret of this machine and is its owner's alone")
                    .fix(format!(
                        "chmod 600 {name}, or remove it: the next start makes it"
                    ))
            }
        };
        let (metrics, key) = (state.metrics_token(), state.agent_key());
        let metrics_token = bearer::kept(&metrics).map_err(unusable(&metrics))?;
        Ok(Self {
            permit_token: Bearer(bearer::random()),
            metrics_token: Expected::new(&metrics_token),
            agent_key: VmKey::load_or_create(&key).map_err(unusable(&key))?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_made_once_and_the_permit_token_at_each_start() {
        let dir = tempfile::tempdir().unwrap();
        let state = StateDir::choose(Some(dir.path())).unwrap();
        let (first, next) = (
            Secrets::load(&state).unwrap(),
            Secrets::load(&state).unwrap(),
        );
        assert_eq!(first.metrics_token, next.metrics_token);
        let token = |secrets: &Secrets| secrets.agent_key.token("default", "pg", "uid");
        assert_eq!(token(&first), token(&next));
        assert_ne!(first.permit_token.reveal(), next.permit_token.reveal());
        std::fs::write(state.agent_key(), "short").unwrap();
        let fail = Secrets::load(&state).unwrap_err();
        assert_eq!(fail.exit() as u8, 69);
        assert!(fail.what().contains("agent.key"), "{fail}");
    }
}
