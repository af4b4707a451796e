//! Requests to the Kubernetes API: list, get, create, patch and delete. They work with the embedded
//! server and with a cluster's.

mod kind;
mod refusal;

use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use hyper::http::{Method, Request};
use kube::config::{KubeConfigOptions, Kubeconfig};
use serde_json::Value;

use crate::fail::{Fail, Outcome};
use crate::forward::{self, ForwardError, PodPort};
use kind::shown_name;
pub(crate) use kind::{ApiOwner, Kind};
use refusal::explain_status;

/// Longest time to connect. Short, because the embedded server is on this machine.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest time for a response.
const READ_TIMEOUT: Duration = Duration::from_secs(30);

/// A client of one API server.
#[derive(Clone)]
pub(crate) struct Api {
    client: kube::Client,
    server: String,
    owner: ApiOwner,
}

impl Api {
    /// A client from a kubeconfig file. It opens no connection.
    ///
    /// # Errors
    ///
    /// 75 if the embedded server's file is missing, 64 if a cluster's is. 64 if the file is no
    /// kubeconfig.
    pub(crate) async fn connect(kubeconfig: &Path, owner: ApiOwner) -> Outcome<Self> {
        let shown = kubeconfig.display().to_string();
        if !kubeconfig.exists() {
            let what = format!("{shown} does not exist");
            return Err(match owner {
                ApiOwner::Up => Fail::try_again(what)
                    .rule("bellows up writes it when it starts")
                    .fix("start it: bellows up --detach; or name the right place: --state-dir DIR or --kubeconfig FILE"),
                ApiOwner::Cluster => Fail::usage(what).fix("name the right one: --kubeconfig FILE"),
            });
        }
        let file = Kubeconfig::read_from(kubeconfig).map_err(|error| no_config(&shown, &error))?;
        Self::by(file, &shown, owner).await
    }

    /// A client from a kubeconfig. `shown` names the file in errors. It opens no connection.
    ///
    /// # Errors
    ///
    /// 64 if the kubeconfig is incomplete.
    pub(crate) async fn by(file: Kubeconfig, shown: &str, owner: ApiOwner) -> Outcome<Self> {
        let mut config = kube::Config::from_custom_kubeconfig(file, &KubeConfigOptions::default())
            .await
            .map_err(|error| no_config(shown, &error))?;
        config.connect_timeout = Some(CONNECT_TIMEOUT);
        config.read_timeout = Some(READ_TIMEOUT);
        // A user waits for the command. A refused connection is reported at once, without retries.
        config.default_retry = false;
        if config
            .cluster_url
            .host()
            .is_some_and(|host| host.starts_with("127.") || host == "localhost")
        {
            config.proxy_url = None;
        }
        let server = config.cluster_url.to_string();
        let client = api_client::connect(config).map_err(|error| no_config(shown, &error))?;
        Ok(Self {
            client,
            server,
            owner,
        })
    }

    /// The client, for parts that bring their own requests.
    pub(crate) fn client(&self) -> kube::Client {
        self.client.clone()
    }

    /// Lists the objects of a kind. `None` selects all namespaces.
    pub(crate) async fn list(&self, kind: Kind, namespace: Option<&str>) -> Outcome<Vec<Value>> {
        self.list_by(kind, namespace, "").await
    }

    /// Lists the objects of a kind that `query` selects, such as `?labelSelector=…`.
    pub(crate) async fn list_by(
        &self,
        kind: Kind,
        namespace: Option<&str>,
        query: &str,
    ) -> Outcome<Vec<Value>> {
        let path = format!("{}{query}", kind.collection(namespace));
        let mut list: Value = self
            .send(Method::GET, &path, None)
            .await
            .map_err(|error| self.explain(kind, "", error))?;
        match list.get_mut("items").map(Value::take) {
            Some(Value::Array(items)) => Ok(items),
            _ => Err(Fail::bug(format!("{}{path} answered no list", self.server))),
        }
    }

    /// Reads one object.
    ///
    /// # Errors
    ///
    /// 1 if it does not exist.
    pub(crate) async fn get(&self, kind: Kind, namespace: &str, name: &str) -> Outcome<Value> {
        let path = format!("{}/{name}", kind.collection(Some(namespace)));
        let shown = shown_name(kind, namespace, name);
        self.send(Method::GET, &path, None)
            .await
            .map_err(|error| self.explain(kind, &shown, error))
    }

    /// Creates an object. With `dry_run` the server only checks it and fills in defaults.
    pub(crate) async fn create(
        &self,
        kind: Kind,
        namespace: &str,
        name: &str,
        object: &Value,
        dry_run: bool,
    ) -> Outcome<Value> {
        let query = if dry_run { "?dryRun=All" } else { "" };
        let path = format!("{}{query}", kind.collection(Some(namespace)));
        let shown = shown_name(kind, namespace, name);
        self.send(Method::POST, &path, Some(object))
            .await
            .map_err(|error| self.explain(kind, &shown, error))
    }

    /// Requests the deletion of an object. Returns before the object is gone.
    pub(crate) async fn delete(&self, kind: Kind, namespace: &str, name: &str) -> Outcome<Value> {
        let path = format!("{}/{name}", kind.collection(Some(namespace)));
        let shown = shown_name(kind, namespace, name);
        self.send(Method::DELETE, &path, None)
            .await
            .map_err(|error| self.explain(kind, &shown, error))
    }

    /// Applies a merge patch to an object.
    pub(crate) async fn merge(
        &self,
        kind: Kind,
        namespace: &str,
        name: &str,
        patch: &Value,
    ) -> Outcome<Value> {
        let path = format!("{}/{name}", kind.collection(Some(namespace)));
        let shown = shown_name(kind, namespace, name);
        let request = Request::patch(&path)
            .header("content-type", "application/merge-patch+json")
            .header("accept", "application/json")
            .body(patch.to_string().into_bytes())
            .map_err(kube::Error::HttpError);
        let sent = match request {
            Ok(request) => self.client.request(request).await,
            Err(error) => Err(error),
        };
        sent.map_err(|error| self.explain(kind, &shown, error))
    }

    /// Replaces an object, if nobody has changed it since it was read. With `dry_run` the server
    /// only checks it.
    ///
    /// # Errors
    ///
    /// 75 if it was changed.
    pub(crate) async fn replace(
        &self,
        kind: Kind,
        namespace: &str,
        name: &str,
        object: &Value,
        dry_run: bool,
    ) -> Outcome<Value> {
        let query = if dry_run { "?dryRun=All" } else { "" };
        let path = format!("{}/{name}{query}", kind.collection(Some(namespace)));
        let shown = shown_name(kind, namespace, name);
        self.put(&path, object).await.map_err(|error| match error {
            kube::Error::Api(status) if status.code == 409 => {
                let what = format!("{} {shown} was changed meanwhile", kind.label());
                Fail::try_again(what)
                    .rule("an object is changed as it was read")
                    .fix("give the order again")
            }
            error => self.explain(kind, &shown, error),
        })
    }

    /// Replaces the status of an object. Returns `false` if somebody has changed the object since
    /// it was read.
    pub(crate) async fn replace_status_if_unchanged(
        &self,
        kind: Kind,
        namespace: &str,
        name: &str,
        object: &Value,
    ) -> Outcome<bool> {
        let path = format!("{}/{name}/status", kind.collection(Some(namespace)));
        match self.put(&path, object).await {
            Ok(_) => Ok(true),
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(false),
            Err(error) => {
                let shown = shown_name(kind, namespace, name);
                Err(self.explain(kind, &shown, error))
            }
        }
    }

    /// Reads the JSON at a path of the API.
    pub(crate) async fn read(&self, path: &str) -> Result<Value, kube::Error> {
        self.send(Method::GET, path, None).await
    }

    /// Reads the text at a path of the API.
    pub(crate) async fn text(&self, path: &str) -> Result<String, kube::Error> {
        let request = Request::builder().uri(path).body(Vec::new());
        let request = request.map_err(kube::Error::HttpError)?;
        self.client.request_text(request).await
    }

    /// Reads the JSON at a path of a pod's port, through a forwarded port.
    pub(crate) async fn at_port(
        &self,
        port: PodPort<'_>,
        path: &str,
    ) -> Result<Value, ForwardError> {
        forward::get(&self.client, port, path).await
    }

    /// Reads the bytes at a path of a pod's port, through a forwarded port.
    pub(crate) async fn bytes_at_port(
        &self,
        port: PodPort<'_>,
        path: &str,
    ) -> Result<Bytes, ForwardError> {
        forward::bytes(&self.client, port, path).await
    }

    /// Posts JSON to a path of the API and returns the response.
    pub(crate) async fn post(&self, path: &str, body: &Value) -> Result<Value, kube::Error> {
        self.send(Method::POST, path, Some(body)).await
    }

    /// Replaces the object at a path of the API.
    pub(crate) async fn put(&self, path: &str, body: &Value) -> Result<Value, kube::Error> {
        self.send(Method::PUT, path, Some(body)).await
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Value, kube::Error> {
        let bytes = body.map(Value::to_string).unwrap_or_default().into_bytes();
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("content-type", "application/json")
            .header("accept", "application/json")
            .body(bytes)
            .map_err(kube::Error::HttpError)?;
        self.client.request(request).await
    }

    fn explain(&self, kind: Kind, name: &str, error: kube::Error) -> Fail {
        match error {
            kube::Error::Api(status) => explain_status(kind, name, &status, self.owner),
            kube::Error::SerdeError(error) => {
                Fail::bug(format!("{} did not answer JSON: {error}", self.server))
            }
            other => {
                let what = format!("{} does not answer: {}", self.server, innermost(&other));
                let (rule, fix) = match self.owner {
                    ApiOwner::Up => (
                        "the commands ask the API server that bellows up runs",
                        "start it: bellows up --detach; see why it stopped: the end of up.log in the state directory",
                    ),
                    ApiOwner::Cluster => (
                        "the commands ask the cluster's API server",
                        "see whether kubectl reaches it: kubectl get nodes; or name another: --kubeconfig FILE",
                    ),
                };
                Fail::try_again(what).rule(rule).fix(fix)
            }
        }
    }
}

fn no_config(shown: &str, error: &dyn std::error::Error) -> Fail {
    Fail::usage(format!("{shown}: {}", daemon_kit::chain(error))).rule("it must be a kubeconfig")
}

fn innermost(error: &dyn std::error::Error) -> String {
    let mut at = error;
    while let Some(source) = at.source() {
        at = source;
    }
    at.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn missing_kubeconfig_suggests_a_start() {
        for (owner, exit) in [(ApiOwner::Up, 75), (ApiOwner::Cluster, 64)] {
            let fail = Api::connect(Path::new("/nonexistent/kubeconfig"), owner)
                .await
                .map(|_| ())
                .unwrap_err();
            assert_eq!(fail.exit() as u8, exit);
            let to_start = fail.to_string().contains("bellows up");
            assert_eq!(to_start, owner == ApiOwner::Up, "{fail}");
        }
    }
}
