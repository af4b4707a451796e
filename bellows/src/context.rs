//! What every command has at hand: where the instance is, how to reach it, how to print.

use std::path::PathBuf;

use hyper::http::Method;
use serde_json::Value;

use crate::api::{Api, Asked};
use crate::args::Global;
use crate::cluster;
use crate::decision::{self, Decisions};
use crate::fail::{Fail, Outcome};
use crate::instance::lock::{self, Holder};
use crate::places::StateDir;
use crate::plugin;
use crate::terminal::Paint;
use crate::unix_http::{self, UnixHttpError};

/// Threads of a command that only asks.
const WORKERS_UP: usize = 4;

/// A runtime: one thread to ask, several to serve.
pub(crate) fn runtime(is_server: bool) -> Outcome<tokio::runtime::Runtime> {
    let mut builder = if is_server {
        tokio::runtime::Builder::new_multi_thread()
    } else {
        tokio::runtime::Builder::new_current_thread()
    };
    if is_server {
        builder.worker_threads(WORKERS_UP);
    }
    builder
        .enable_all()
        .build()
        .map_err(|error| Fail::bug(format!("the runtime does not start: {error}")))
}

/// The flags of every command, made useful.
#[derive(Debug, Clone)]
pub(crate) struct Context {
    global: Global,
}

impl Context {
    /// From the flags.
    pub(crate) fn new(global: Global) -> Self {
        Self { global }
    }

    /// The state directory.
    pub(crate) fn state(&self) -> Outcome<StateDir> {
        StateDir::choose(self.global.state_dir.as_deref())
    }

    /// Colours on standard output.
    pub(crate) fn paint(&self) -> Paint {
        Paint::stdout(self.global.color)
    }

    /// Colours on standard error.
    pub(crate) fn paint_err(&self) -> Paint {
        Paint::stderr(self.global.color)
    }

    /// The kubeconfig: the flag's, else the state directory's. As a plugin (`kubectl bellows`)
    /// those that kubectl reads, as `KUBECONFIG` names them.
    pub(crate) fn kubeconfig(&self) -> Outcome<PathBuf> {
        if let Some(path) = &self.global.kubeconfig {
            return Ok(path.clone());
        }
        if plugin::is_plugin() {
            let files = std::env::join_paths(plugin::files());
            return files
                .map(PathBuf::from)
                .map_err(|error| Fail::usage(error.to_string()));
        }
        Ok(self.state()?.kubeconfig())
    }

    /// Whether a cluster is asked: by the plugin, or by a kubeconfig that is not the one of our own
    /// state directory. Then the parts are in its pods, and what runs on this machine has nothing
    /// to say.
    pub(crate) fn asks_cluster(&self) -> bool {
        match &self.global.kubeconfig {
            Some(path) => !self.state().is_ok_and(|state| state.kubeconfig() == *path),
            None => plugin::is_plugin(),
        }
    }

    /// The agents' last decisions about all VMs. One machine has none without `bellows up`.
    ///
    /// # Errors
    /// When no agent of a cluster can be asked.
    pub(crate) async fn decisions(&self) -> Outcome<Decisions> {
        if self.asks_cluster() {
            let dump = cluster::agents(&self.api().await?, None).await?;
            return Ok(decision::by_vm(&dump));
        }
        let answer = self.admin_if_there("/v1/decisions").await;
        Ok(serde_json::from_value(answer["decisions"].clone()).unwrap_or_default())
    }

    /// A client of the API server.
    pub(crate) async fn api(&self) -> Outcome<Api> {
        let asked = if self.asks_cluster() {
            Asked::Cluster
        } else {
            Asked::Up
        };
        if self.global.kubeconfig.is_none() && asked == Asked::Cluster {
            return Api::by(plugin::config()?, "kubectl's configuration", asked).await;
        }
        Api::connect(&self.kubeconfig()?, asked).await
    }

    /// Asks the admin API.
    ///
    /// # Errors
    /// 75 when no `bellows up` runs on the state directory.
    pub(crate) async fn admin(
        &self,
        method: Method,
        route: &str,
        body: Option<&Value>,
    ) -> Outcome<Value> {
        let state = self.state()?;
        unix_http::exchange(&state.admin_socket(), method, route, body)
            .await
            .map_err(|error| explain(&state, &error))
    }

    /// Asks the admin API for something that is only an addition: `null` when there is no answer,
    /// for example because the kubeconfig is a cluster's.
    pub(crate) async fn admin_if_there(&self, route: &str) -> Value {
        let Ok(state) = self.state() else {
            return Value::Null;
        };
        if self.asks_cluster() {
            return Value::Null;
        }
        unix_http::exchange(&state.admin_socket(), Method::GET, route, None)
            .await
            .unwrap_or(Value::Null)
    }
}

fn explain(state: &StateDir, error: &UnixHttpError) -> Fail {
    let place = state.path().display();
    match (error, lock::holder(state)) {
        (UnixHttpError::Refused { .. }, _) => Fail::bug(daemon_kit::chain(error)),
        (_, Holder::Nobody) => Fail::try_again(format!("no bellows up runs on {place}"))
            .fix("start it: bellows up --detach; or name the right place: --state-dir DIR"),
        (_, Holder::Process(pid)) => {
            let who = pid.map_or_else(|| "a process".to_owned(), |pid| format!("process {pid}"));
            Fail::try_again(format!("{who} holds {place} but {}", daemon_kit::chain(error)))
                .rule("bellows up opens its admin socket when it has started")
                .fix("wait a moment; if it stays so, end that process and start it again: guests keep running")
        }
    }
}
