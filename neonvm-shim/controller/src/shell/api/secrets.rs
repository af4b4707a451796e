//! Reads and writes of secrets.

use daemon_kit::bearer::VmKey;
use kube::api::{GetParams, Patch};
use kube::core::Request;
use serde_json::{Value, json};

use super::client::{KubeApi, patch_params, post_params};
use super::error::ApiError;
use crate::core::Refusal;
use crate::core::settings::SecretName;
use crate::core::volumes;
use crate::shell::monitor_key::{KEY, MonitorKey, key_of, key_secret};
use crate::shell::secret::{KeyError, is_owned, runner_lacks, runner_secret, token};

impl KubeApi {
    pub(crate) async fn ensure_secret(
        &self,
        namespace: &str,
        name: &str,
        make: impl FnOnce() -> Result<Value, KeyError>,
        fits: impl Fn(&Value) -> bool,
    ) -> Result<Value, Refusal> {
        let secrets = Request::new(format!("/api/v1/namespaces/{namespace}/secrets"));
        let found = match self.send(secrets.get(name, &GetParams::default())).await {
            Err(error) if error.code() == Some(404) => {
                let secret = make().map_err(|error| ApiError::Key(error).refusal())?;
                let body = secret.to_string().into_bytes();
                match self.send(secrets.create(&post_params(), body)).await {
                    // Made by another meanwhile.
                    Err(error) if error.code() == Some(409) => {
                        self.send(secrets.get(name, &GetParams::default())).await
                    }
                    made => made,
                }
            }
            found => found,
        };
        match found {
            Ok(secret) if fits(&secret) => Ok(secret),
            Ok(_) => Err(Refusal::Failed {
                message: format!(
                    "secret {namespace}/{name} is not this VM's: delete it, and a new one is made"
                ),
                permanent: false,
            }),
            Err(error) => Err(error.refusal()),
        }
    }

    /// Makes the secret with the credentials of a VM's runners, or adds the members that it lacks.
    pub(crate) async fn ensure_runner_secret(
        &self,
        namespace: &str,
        name: &str,
        owner: &Value,
    ) -> Result<(), Refusal> {
        let monitor = self.monitor_token(namespace, owner).await?;
        let make = || runner_secret(namespace, name, owner, monitor.as_deref());
        // One that an earlier VM of the name left goes with it, and another's is not ours to use.
        let fits = |secret: &Value| is_owned(secret, owner) && token(secret).is_some();
        let secret = self.ensure_secret(namespace, name, make, fits).await?;
        match runner_lacks(&secret, monitor.as_deref())
            .map_err(|error| ApiError::Key(error).refusal())?
        {
            Some(data) => self.complete(namespace, name, &secret, &data).await,
            None => Ok(()),
        }
    }

    /// Adds members to a secret. The others stay, because runners use them.
    async fn complete(
        &self,
        namespace: &str,
        name: &str,
        secret: &Value,
        data: &Value,
    ) -> Result<(), Refusal> {
        let secrets = Request::new(format!("/api/v1/namespaces/{namespace}/secrets"));
        let patch = Patch::Merge(json!({
            // The version keeps the patch off a secret that was replaced meanwhile.
            "metadata": {"resourceVersion": secret["metadata"]["resourceVersion"]},
            "data": data,
        }));
        match self
            .send(secrets.patch(name, &patch_params(), &patch))
            .await
        {
            Ok(_) => Ok(()),
            // Another client has just changed the secret. The action is tried again.
            Err(error) if error.code() == Some(409) => Err(Refusal::Failed {
                message: format!("secret {namespace}/{name} has changed since it was read"),
                permanent: false,
            }),
            Err(error) => Err(error.refusal()),
        }
    }

    /// Reads the secret with the credentials of a VM's runners; `None` if it is missing. The pods
    /// are older than such secrets then.
    pub(crate) async fn read_runner_secret(
        &self,
        namespace: &str,
        vm: &str,
    ) -> Result<Option<Value>, ApiError> {
        let secrets = Request::new(format!("/api/v1/namespaces/{namespace}/secrets"));
        let name = volumes::runner_secret(vm);
        match self.send(secrets.get(&name, &GetParams::default())).await {
            Ok(secret) => Ok(Some(secret)),
            Err(error) if error.code() == Some(404) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The token of the monitor of the VM that `owner` names; `None` where guests get none.
    async fn monitor_token(
        &self,
        namespace: &str,
        owner: &Value,
    ) -> Result<Option<String>, Refusal> {
        let Some(MonitorKey { secret_name, read }) = &self.monitor_key else {
            return Ok(None);
        };
        let key = read
            .get_or_try_init(|| self.ensure_monitor_key(secret_name))
            .await?;
        let text = |member: &str| owner[member].as_str().unwrap_or_default();
        Ok(Some(key.token(namespace, text("name"), text("uid"))))
    }

    /// Reads the key, or makes it. It is never replaced, because running guests expect tokens that
    /// were derived from it.
    async fn ensure_monitor_key(&self, secret_name: &SecretName) -> Result<VmKey, Refusal> {
        let SecretName { namespace, name } = secret_name;
        let make = || Ok(key_secret(secret_name));
        let found = self.ensure_secret(namespace, name, make, |_| true).await?;
        key_of(&found).ok_or_else(|| Refusal::Failed {
            message: format!(
                "secret {namespace}/{name} must hold 64 hexadecimal digits as {KEY}: delete it, and start \
                 the controller again; running guests take no agent then until they boot again"
            ),
            permanent: false,
        })
    }
}
