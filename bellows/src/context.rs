//! What every command has at hand: where the instance is, how to reach it, how to print.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;

use hyper::http::Method;
use serde_json::Value;

use crate::api::Api;
use crate::cli::Global;
use crate::cluster;
use crate::decision::{self, Decision};
use crate::fail::{Fail, Outcome};
use crate::instance::lock::{self, Holder};
use crate::places::StateDir;
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

    /// The kubeconfig: the flag's, else the state directory's. As a plugin (`kubectl bellows`) the one kubectl uses comes
    /// before the state directory's.
    pub(crate) fn kubeconfig(&self) -> Outcome<PathBuf> {
        if let Some(path) = &self.global.kubeconfig {
            return Ok(path.clone());
        }
        match as_plugin() {
            Some(path) => Ok(path),
            None => Ok(self.state()?.kubeconfig()),
        }
    }

    /// Whether a cluster is asked: by the plugin, or by a kubeconfig that is not the one of our own state directory. Then the
    /// parts are in its pods, and what runs on this machine has nothing to say.
    pub(crate) fn asks_cluster(&self) -> bool {
        match &self.global.kubeconfig {
            Some(path) => !self.state().is_ok_and(|state| state.kubeconfig() == *path),
            None => as_plugin().is_some(),
        }
    }

    /// The agents' last decisions about all VMs; empty where nobody can be asked.
    pub(crate) async fn decisions(&self) -> BTreeMap<String, Decision> {
        if self.asks_cluster() {
            let Ok(api) = self.api().await else {
                return BTreeMap::new();
            };
            let dump = cluster::agents(&api, None).await;
            return decision::by_vm(&dump.unwrap_or(Value::Null));
        }
        let answer = self.admin_if_there("/v1/decisions").await;
        serde_json::from_value(answer["decisions"].clone()).unwrap_or_default()
    }

    /// A client of the API server.
    pub(crate) async fn api(&self) -> Outcome<Api> {
        Api::connect(&self.kubeconfig()?).await
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

    /// Asks the admin API for something that is only an addition: `null` when there is no answer, for example because
    /// the kubeconfig is a cluster's.
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

/// The kubeconfig that kubectl uses, if kubectl started us.
fn as_plugin() -> Option<PathBuf> {
    is_plugin(std::env::args_os().next())
        .then(|| kubectls_own(&|name| std::env::var_os(name)))
        .flatten()
}

/// Whether this program was found by kubectl, which looks for `kubectl-NAME`.
fn is_plugin(program: Option<OsString>) -> bool {
    let name = program
        .map(PathBuf::from)
        .and_then(|path| path.file_name().map(OsString::from));
    name.is_some_and(|name| name.to_string_lossy().starts_with("kubectl-"))
}

/// The file kubectl takes: the first of `KUBECONFIG`, else `~/.kube/config`, if it is there.
fn kubectls_own(variable: &dyn Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let named = variable("KUBECONFIG").and_then(|list| std::env::split_paths(&list).next());
    let named = named.filter(|path| !path.as_os_str().is_empty());
    let usual = || variable("HOME").map(|home| PathBuf::from(home).join(".kube/config"));
    named.or_else(usual).filter(|path| path.is_file())
}

fn explain(state: &StateDir, error: &UnixHttpError) -> Fail {
    let place = state.path().display();
    match (error, lock::holder(state)) {
        (UnixHttpError::Refused { .. }, _) => Fail::bug(telemetry::chain(error)),
        (_, Holder::Nobody) => Fail::try_again(format!("no bellows up runs on {place}"))
            .fix("start it: bellows up --detach; or name the right place: --state-dir DIR"),
        (_, Holder::Process(pid)) => {
            let who = pid.map_or_else(|| "a process".to_owned(), |pid| format!("process {pid}"));
            Fail::try_again(format!("{who} holds {place} but {}", telemetry::chain(error)))
                .rule("bellows up opens its admin socket when it has started")
                .fix("wait a moment; if it stays so, end that process and start it again: guests keep running")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kubectls_own_config_is_taken_by_the_plugin_only() {
        assert!(is_plugin(Some("/usr/local/bin/kubectl-bellows".into())));
        assert!(!is_plugin(Some("/kubectl-x/bellows".into())) && !is_plugin(None));
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join("mine");
        std::fs::write(&file, "").unwrap();
        let list = format!("{}:/other", file.display());
        let lookup = |name: &str| match name {
            "KUBECONFIG" => Some(OsString::from(&list)),
            _ => Some(home.path().into()),
        };
        assert_eq!(kubectls_own(&lookup), Some(file));
        let lookup = |name: &str| (name == "HOME").then(|| home.path().into());
        assert_eq!(kubectls_own(&lookup), None);
        std::fs::create_dir(home.path().join(".kube")).unwrap();
        std::fs::write(home.path().join(".kube/config"), "").unwrap();
        assert_eq!(
            kubectls_own(&lookup),
            Some(home.path().join(".kube/config"))
        );
    }
}
