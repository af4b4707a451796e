//! Context of every command: the instance, its clients, and how to print.

use std::path::PathBuf;

use hyper::http::Method;
use serde_json::Value;

use crate::api::{Api, ApiOwner};
use crate::args::Global;
use crate::cluster;
use crate::decision::{self, Decisions};
use crate::fail::{Fail, Outcome};
use crate::instance::lock::{self, Holder};
use crate::places::StateDir;
use crate::plugin;
use crate::terminal::Paint;
use crate::unix_http::{self, UnixHttpError};

/// Worker threads of `bellows up`.
const WORKERS_UP: usize = 4;

/// A runtime with one thread for a client, with several for a server.
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

/// The global flags, and what follows from them.
#[derive(Debug, Clone)]
pub(crate) struct Context {
    global: Global,
}

impl Context {
    pub(crate) fn new(global: Global) -> Self {
        Self { global }
    }

    pub(crate) fn state(&self) -> Outcome<StateDir> {
        StateDir::choose(self.global.state_dir.as_deref())
    }

    /// Colours for standard output.
    pub(crate) fn paint(&self) -> Paint {
        Paint::stdout(self.global.color)
    }

    /// Colours for standard error.
    pub(crate) fn paint_err(&self) -> Paint {
        Paint::stderr(self.global.color)
    }

    /// The kubeconfig of the flag, else of the state directory. As a plugin (`kubectl bellows`),
    /// the files that kubectl reads.
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

    /// Whether the commands address a cluster: as a plugin, or with a kubeconfig other than the
    /// state directory's. The components are then in pods, and this machine's instance is not used.
    pub(crate) fn asks_cluster(&self) -> bool {
        match &self.global.kubeconfig {
            Some(path) => !self.state().is_ok_and(|state| state.kubeconfig() == *path),
            None => plugin::is_plugin(),
        }
    }

    /// The agents' last decisions about all VMs. Empty on one machine if `bellows up` does not run.
    ///
    /// # Errors
    ///
    /// If no agent of a cluster answers.
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
        let owner = if self.asks_cluster() {
            ApiOwner::Cluster
        } else {
            ApiOwner::Up
        };
        if self.global.kubeconfig.is_none() && owner == ApiOwner::Cluster {
            return Api::by(plugin::config()?, "kubectl's configuration", owner).await;
        }
        Api::connect(&self.kubeconfig()?, owner).await
    }

    /// Sends a request to the admin API.
    ///
    /// # Errors
    ///
    /// 75 if no `bellows up` runs on the state directory.
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

    /// Reads optional data from the admin API. `null` if it does not answer, or if a cluster is
    /// addressed.
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
