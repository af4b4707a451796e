//! Keeps the webhook's certificate, and the configurations by which API servers trust it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use api_client::watch::{self as api_watch, Retry};
use daemon_kit::chain;
use daemon_kit::clock::Clock;
use futures::StreamExt as _;
use futures::stream::{BoxStream, select_all};
use jiff::Timestamp;
use kube::Client;
use kube::api::{Api, ApiResource, DynamicObject, Patch, PatchParams, PostParams};
use protocol::time::WallTime;
use rustls::ServerConfig;
use serde_json::{Value, json};
use tokio::sync::watch;

use super::identity::{self, Identity};
use super::names::Names;
use crate::shell::watch::resource;

/// First and longest pause before a failed write is tried again.
const RETRY_FIRST: Duration = Duration::from_secs(1);
const RETRY_CAP: Duration = Duration::from_secs(60);
/// Pause between checks of the certificate's end. A check comes sooner if the certificate ends
/// before.
const LOOK_EVERY: Duration = Duration::from_secs(3600);
const GROUP: &str = "admissionregistration.k8s.io";

/// One of the objects that are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Which {
    Secret,
    Mutating,
    Validating,
}

/// The objects, by name.
pub(super) struct WebhookApi {
    secrets: Api<DynamicObject>,
    mutating: Api<DynamicObject>,
    validating: Api<DynamicObject>,
    names: Names,
}

impl WebhookApi {
    pub(super) fn new(client: &Client, names: &Names) -> Self {
        let all = |kind: &str, plural: &str| {
            Api::all_with(client.clone(), &resource(GROUP, kind, plural))
        };
        let secrets = ApiResource::erase::<k8s_openapi::api::core::v1::Secret>(&());
        Self {
            secrets: Api::namespaced_with(client.clone(), &names.namespace, &secrets),
            mutating: all(
                "MutatingWebhookConfiguration",
                "mutatingwebhookconfigurations",
            ),
            validating: all(
                "ValidatingWebhookConfiguration",
                "validatingwebhookconfigurations",
            ),
            names: names.clone(),
        }
    }

    fn of(&self, which: Which) -> (&Api<DynamicObject>, &str) {
        match which {
            Which::Secret => (&self.secrets, &self.names.secret),
            Which::Mutating => (&self.mutating, &self.names.mutating),
            Which::Validating => (&self.validating, &self.names.validating),
        }
    }

    fn watched(&self, which: Which) -> BoxStream<'static, (Which, Result<Seen, api_watch::Error>)> {
        let (api, name) = self.of(which);
        let seen = api_watch::object(api.clone(), name, Retry::Quick);
        seen.map(move |seen| (which, seen.map(|seen| Seen(seen.map(Box::new)))))
            .boxed()
    }
}

/// An object as it was seen last; `None` where there is none.
struct Seen(Option<Box<DynamicObject>>);

/// Objects as last seen; `None` before the first look.
#[derive(Default)]
struct Known {
    secret: Option<Option<Value>>,
    mutating: Option<Option<Value>>,
    validating: Option<Option<Value>>,
    served: Option<Identity>,
}

/// Keeps the secret and both configurations.
pub(super) struct Keeper {
    pub(super) api: WebhookApi,
    /// By which API servers dial.
    pub(super) dialled: Vec<String>,
    pub(super) clock: Clock,
    /// TLS configuration of new connections.
    pub(super) shown: watch::Sender<Option<Arc<ServerConfig>>>,
    /// Set once it serves and API servers trust it.
    pub(super) ready: Arc<AtomicBool>,
}

impl Known {
    fn see(&mut self, which: Which, Seen(object): Seen) {
        let value = object.and_then(|object| serde_json::to_value(object).ok());
        match which {
            Which::Secret => self.secret = Some(value),
            Which::Mutating => self.mutating = Some(value),
            Which::Validating => self.validating = Some(value),
        }
    }
}

/// Why something could not be done.
type Failed = Box<dyn std::error::Error + Send + Sync>;

impl Keeper {
    /// Keeps everything, for ever.
    pub(super) async fn keep(self) {
        let all = [Which::Secret, Which::Mutating, Which::Validating];
        let mut seen = select_all(all.map(|which| self.api.watched(which)));
        let (mut known, mut pause) = (Known::default(), RETRY_FIRST);
        let mut again = LOOK_EVERY;
        loop {
            match tokio::time::timeout(again, seen.next()).await {
                Ok(Some((which, Ok(seen)))) => known.see(which, seen),
                Ok(Some((which, Err(error)))) => {
                    tracing::warn!(what = ?which, error = chain(&error), "watch of a webhook object failed, retrying");
                    continue;
                }
                Ok(None) => return,
                Err(_) => {}
            }
            match self.settle(&mut known).await {
                Ok(()) => (again, pause) = (self.until_look(&known), RETRY_FIRST),
                Err(error) => {
                    tracing::warn!(
                        error = chain(&*error),
                        "failed to update the webhook, retrying"
                    );
                    (again, pause) = (pause, (pause * 2).min(RETRY_CAP));
                }
            }
        }
    }

    async fn settle(&self, known: &mut Known) -> Result<(), Failed> {
        let Some(secret) = &known.secret else {
            return Ok(());
        };
        let now = today(self.clock.wall());
        let identity = match Identity::of(secret.as_ref(), &self.dialled, now) {
            Ok(identity) => identity,
            // The watch shows the result, of this replica or of another.
            Err(unfit) => {
                if known.served.as_ref().is_some_and(|it| it.has_ended(now)) {
                    self.ready.store(false, Ordering::Relaxed);
                }
                return self.renew(secret.as_ref(), &unfit.to_string()).await;
            }
        };
        let served = known.served.as_ref().map(|served| &served.certificate);
        if served != Some(&identity.certificate) {
            tracing::info!(until = %identity.ends, "webhook certificate in use");
            self.shown.send_replace(Some(Arc::clone(&identity.tls)));
        }
        let is_due = identity.is_due(now);
        let why = format!("its certificate ends on {}", identity.ends);
        known.served = Some(identity);
        let trusted = self.be_trusted(known).await;
        if is_due {
            self.renew(secret.as_ref(), &why).await?;
        }
        trusted
    }

    /// Writes the served bundle into the configurations that lack it.
    async fn be_trusted(&self, known: &Known) -> Result<(), Failed> {
        let (Some(served), Some(mutating), Some(validating)) =
            (&known.served, &known.mutating, &known.validating)
        else {
            return Ok(());
        };
        let mut all_trust = true;
        for (which, object) in [(Which::Mutating, mutating), (Which::Validating, validating)] {
            let operations = object.as_ref().map(|object| trust(object, &served.bundle));
            let operations = operations.unwrap_or_default();
            if !operations.is_empty() {
                all_trust = false;
                let (api, name) = self.api.of(which);
                unless_other(patched(api, name, operations).await)?;
                tracing::info!(name, "caBundle of a webhook configuration updated");
            }
        }
        if all_trust {
            self.ready.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Time until the next check of the certificate's end.
    fn until_look(&self, known: &Known) -> Duration {
        let now = today(self.clock.wall());
        known.served.as_ref().map_or(LOOK_EVERY, |served| {
            let left = Duration::try_from(served.ends.duration_since(now));
            left.unwrap_or_default().clamp(RETRY_FIRST, LOOK_EVERY)
        })
    }

    /// Makes the secret again, unless it belongs to another owner.
    async fn renew(&self, secret: Option<&Value>, why: &str) -> Result<(), Failed> {
        let (namespace, name) = (&*self.api.names.namespace, &*self.api.names.secret);
        if secret.is_some_and(|secret| !identity::is_ours(secret)) {
            return Err(format!(
                "secret {namespace}/{name} cannot be used: {why}; another owner manages it: renew it, or delete it to have one made"
            )
            .into());
        }
        tracing::info!(why, "webhook certificate renewed");
        let now = today(self.clock.wall());
        let made = identity::make((namespace, name), &self.dialled, secret, now)?;
        let secrets = &self.api.secrets;
        let Some(version) = secret.map(|secret| &secret["metadata"]["resourceVersion"]) else {
            let object = serde_json::from_value(made)?;
            let created = secrets.create(&PostParams::default(), &object).await;
            return unless_other(created.map(drop));
        };
        let operations = vec![
            json!({"op": "test", "path": "/metadata/resourceVersion", "value": version}),
            json!({"op": "add", "path": "/data", "value": made["data"]}),
        ];
        unless_other(patched(secrets, name, operations).await)
    }
}

/// Accepts a conflict: another replica was faster, and the watch shows its result.
fn unless_other(done: kube::Result<()>) -> Result<(), Failed> {
    match done {
        Err(kube::Error::Api(status)) if matches!(status.code, 409 | 422) => Ok(()),
        other => Ok(other?),
    }
}

async fn patched(api: &Api<DynamicObject>, name: &str, operations: Vec<Value>) -> kube::Result<()> {
    let patch = serde_json::from_value(Value::from(operations)).map_err(kube::Error::SerdeError)?;
    let (params, patch) = (PatchParams::default(), Patch::<()>::Json(patch));
    api.patch(name, &params, &patch).await.map(drop)
}

/// Operations that set the bundle in a configuration.
fn trust(object: &Value, bundle: &str) -> Vec<Value> {
    use base64::Engine as _;
    let coded = base64::engine::general_purpose::STANDARD.encode(bundle);
    let hooks = object["webhooks"].as_array().into_iter().flatten();
    let differ = hooks
        .enumerate()
        .filter(|(_, hook)| hook["clientConfig"]["caBundle"] != *coded);
    let mut operations: Vec<Value> = differ
        .map(|(n, _)| json!({"op": "add", "path": format!("/webhooks/{n}/clientConfig/caBundle"), "value": coded}))
        .collect();
    if !operations.is_empty() {
        let version = &object["metadata"]["resourceVersion"];
        let test = json!({"op": "test", "path": "/metadata/resourceVersion", "value": version});
        operations.insert(0, test);
    }
    operations
}

fn today(wall: WallTime) -> Timestamp {
    Timestamp::from_microsecond(wall.0).unwrap_or(Timestamp::UNIX_EPOCH)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_untrusting_webhooks_are_changed() {
        let hook = |bundle: Value| json!({"clientConfig": {"caBundle": bundle}});
        let mut object = json!({"metadata": {"resourceVersion": "7"},
            "webhooks": [hook(json!("eA==")), hook(Value::Null), hook(json!("b3RoZXI="))]});
        let operations = trust(&object, "x");
        let paths: Vec<_> = operations.iter().map(|one| one["path"].clone()).collect();
        let expected = [
            "/metadata/resourceVersion",
            "/webhooks/1/clientConfig/caBundle",
            "/webhooks/2/clientConfig/caBundle",
        ];
        assert_eq!(paths, expected);
        assert_eq!(operations[0]["value"], "7");
        object["webhooks"] = json!([hook(json!("eA=="))]);
        assert_eq!(trust(&object, "x"), Vec::<Value>::new());
        assert_eq!(trust(&json!({}), "x"), Vec::<Value>::new());
    }
}
