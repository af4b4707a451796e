//! A caller with the token of a service account. It sends requests as they are, without a client's
//! reads before them.

use std::path::PathBuf;

use anyhow::{Context as _, Result, bail};
use hyper::http::Request;
use serde_json::Value;

use super::files::private_file;
use super::plane::ControlPlane;
use crate::attacks::Outcome;
use crate::checkout;
use crate::kubeconfig::client_of;

/// The path of VMs of a namespace.
#[must_use]
pub fn vms(namespace: &str) -> String {
    format!("/apis/vm.neon.tech/v1/namespaces/{namespace}/virtualmachines")
}

/// Applies the account and the rights of a component, but no workload.
///
/// # Errors
///
/// If `kubectl` fails.
pub fn apply_rights(plane: &ControlPlane, part: &str) -> Result<()> {
    let folder = checkout().join("deploy").join(part).display().to_string();
    let made = plane.ask(&["kustomize", &folder])?;
    let is_right = |one: &&str| {
        let mut kinds = one.lines().filter_map(|line| line.strip_prefix("kind: "));
        kinds.any(|kind| ["Namespace", "ServiceAccount"].contains(&kind) || kind.contains("Role"))
    };
    let rights: Vec<&str> = made.split("\n---\n").filter(is_right).collect();
    plane.apply(&rights.join("\n---\n"))
}

/// A caller of the API.
#[derive(Clone)]
pub struct Caller {
    client: kube::Client,
    /// By which a program calls as this one.
    pub kubeconfig: PathBuf,
}

impl Caller {
    /// With the token of a service account of `namespace`: bound to the pod `pod`, as the kubelet's
    /// are, or to none.
    ///
    /// # Errors
    /// When there is no token to be had.
    pub async fn of(
        plane: &ControlPlane,
        namespace: &str,
        account: &str,
        pod: Option<&str>,
    ) -> Result<Self> {
        let mut words = vec!["create", "token", account, "--namespace", namespace];
        if let Some(pod) = pod {
            words.extend(["--bound-object-kind=Pod", "--bound-object-name", pod]);
        }
        let token = plane.ask(&words)?;
        let file = plane
            .dir()
            .join(format!("{account}-{}.kubeconfig", pod.unwrap_or("unbound")));
        private_file(&file, &plane.token_kubeconfig(token.trim()))?;
        let client = client_of(&file).await?;
        Ok(Self {
            client,
            kubeconfig: file,
        })
    }

    /// Creates an object at a path.
    ///
    /// # Errors
    ///
    /// The server's error, or that it cannot be reached.
    pub async fn create(&self, path: &str, object: &Value) -> kube::Result<Value> {
        self.send("POST", path, "application/json", object).await
    }

    /// Changes an object by a merge patch.
    ///
    /// # Errors
    /// As [`Caller::create`].
    pub async fn patch(&self, path: &str, patch: &Value) -> kube::Result<Value> {
        let kind = "application/merge-patch+json";
        self.send("PATCH", path, kind, patch).await
    }

    /// Deletes an object.
    ///
    /// # Errors
    /// As [`Caller::create`].
    pub async fn delete(&self, path: &str) -> kube::Result<Value> {
        self.send("DELETE", path, "application/json", &Value::Null)
            .await
    }

    async fn send(
        &self,
        method: &str,
        path: &str,
        kind: &str,
        body: &Value,
    ) -> kube::Result<Value> {
        let body = match body {
            Value::Null => Vec::new(),
            body => body.to_string().into_bytes(),
        };
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("content-type", kind)
            .body(body)
            .map_err(kube::Error::HttpError)?;
        self.client.request(request).await
    }
}

/// Converts the server's answer into an outcome.
///
/// # Errors
///
/// If the request failed for another reason than missing rights. Then nothing was tested.
pub fn outcome(answer: kube::Result<Value>) -> Result<Outcome> {
    match answer {
        Ok(object) => {
            let name = &object["metadata"]["name"];
            Ok(Outcome::Succeeded(format!("the API took {name}")))
        }
        Err(kube::Error::Api(status)) => {
            let by_policy = status.message.contains("denied request");
            if status.code != 403 && !by_policy {
                bail!("the attempt means nothing: {}", status.message);
            }
            let said = status.message.split("denied request: ").last();
            let said = said.unwrap_or_default().chars().take(200).collect();
            Ok(Outcome::Refused(said))
        }
        Err(error) => Err(error).context("the API was not reached"),
    }
}
