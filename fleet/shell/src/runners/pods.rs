//! Runners in pods. Each is asked by TLS that trusts its VM's certificate alone, and is shown its
//! VM's token.
//!
//! * A pod belongs to a VM by the uid of its owner, by its label and by the VM's status.
//! * A runner is never asked in the clear.
//! * Credentials are read again if a runner refuses them, at most every [`READ_EVERY`].

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use daemon_kit::http_client::{HttpClient, HttpError};
use hyper::{Method, StatusCode};
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind};
use protocol::annotations::LABEL_VM_NAME;
use protocol::runner::ORDERS_NAME;
use protocol::time::WallTime;
use protocol::vm::VirtualMachine;
use rustls::pki_types::ServerName;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::Runner;
use super::secret::{Credentials, credentials, secret_name};

/// Longest connection attempt, with the TLS handshake.
const CONNECT_LIMIT: Duration = Duration::from_secs(2);
/// Longest read of a secret.
const SECRET_LIMIT: Duration = Duration::from_secs(5);
/// Container of a pod's runner.
const CONTAINER: &str = "neonvm-runner";
/// Shortest time between two reads of a secret.
const READ_EVERY: Duration = Duration::from_secs(30);

/// A pod that says that it belongs to a VM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Pod {
    namespace: String,
    name: String,
    /// Value of the label with the VM's name.
    vm: String,
    /// Uid of the VM that owns it.
    owner: String,
    address: Option<IpAddr>,
    started: Option<WallTime>,
    /// Image of the runner's container. Empty without one.
    pub(crate) image: String,
    /// Whether its containers have ended.
    is_over: bool,
}

impl Pod {
    /// `None` for a pod that no VM owns.
    pub(crate) fn read(object: &Value) -> Option<Self> {
        let metadata = &object["metadata"];
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let owners = metadata["ownerReferences"].as_array();
        let mut owners = owners.into_iter().flatten();
        let owner = owners.find(|owner| {
            let group = owner["apiVersion"].as_str().unwrap_or_default();
            owner["kind"] == "VirtualMachine"
                && group.starts_with("vm.neon.tech/")
                && owner["controller"] == true
        })?;
        let containers = object["status"]["containerStatuses"].as_array();
        let starts = containers.into_iter().flatten().filter_map(|one| {
            let at = one["state"]["running"]["startedAt"].as_str()?;
            WallTime::parse(at).ok()
        });
        let ip = object["status"]["podIP"].as_str();
        Some(Self {
            namespace: text(&metadata["namespace"])?,
            name: text(&metadata["name"])?,
            vm: text(&metadata["labels"][LABEL_VM_NAME])?,
            owner: text(&owner["uid"])?,
            address: ip.and_then(|ip| ip.parse().ok()),
            started: starts.max(),
            image: image(&object["spec"]),
            is_over: matches!(
                object["status"]["phase"].as_str(),
                Some("Succeeded" | "Failed")
            ),
        })
    }
}

/// Image of a pod's runner.
fn image(spec: &Value) -> String {
    let containers = spec["containers"].as_array();
    let mut containers = containers.into_iter().flatten();
    let runner = containers.find(|one| one["name"] == CONTAINER);
    let image = runner.and_then(|one| one["image"].as_str());
    image.unwrap_or_default().to_owned()
}

/// Pods of VMs by namespace and uid of their owner.
#[derive(Debug, Default)]
pub(crate) struct PodsByOwner(BTreeMap<(String, String), Vec<Pod>>);

impl FromIterator<Pod> for PodsByOwner {
    fn from_iter<I: IntoIterator<Item = Pod>>(pods: I) -> Self {
        let mut all = Self::default();
        for pod in pods {
            let key = (pod.namespace.clone(), pod.owner.clone());
            all.0.entry(key).or_default().push(pod);
        }
        all
    }
}

impl PodsByOwner {
    fn owned_by(&self, vm: &VirtualMachine) -> impl Iterator<Item = &Pod> {
        let key = (vm.metadata.namespace.clone(), vm.metadata.uid.clone());
        let pods = self.0.get(&key).filter(|_| !vm.metadata.uid.is_empty());
        pods.into_iter().flatten()
    }

    /// Whether a VM has another pod than that of its status, such as the source of a move.
    pub(crate) fn has_other(&self, vm: &VirtualMachine) -> bool {
        let current = vm.status.as_ref().map(|status| status.pod_name.as_str());
        self.owned_by(vm)
            .any(|pod| Some(pod.name.as_str()) != current && !pod.is_over)
    }

    /// The pod of a VM's runner.
    pub(crate) fn of(&self, vm: &VirtualMachine) -> Option<&Pod> {
        let status = vm.status.as_ref()?;
        self.owned_by(vm)
            .find(|pod| pod.vm == vm.metadata.name && pod.name == status.pod_name)
    }
}

impl Pod {
    /// Address and port of the runner, and its start.
    pub(crate) fn runner_at(&self, vm: &VirtualMachine) -> (Option<SocketAddr>, Option<WallTime>) {
        let port = u16::try_from(vm.spec.runner_port).ok();
        let at = self.address.zip(port).map(SocketAddr::from);
        (at, self.started)
    }
}

/// Namespace, VM and its uid.
type VmKey = (String, String, String);

#[derive(Debug)]
struct Cached {
    credentials: Credentials,
    read: Instant,
    in_doubt: bool,
}

/// Access to runners in pods; clones share the credentials.
#[derive(Clone)]
pub(crate) struct Pods {
    client: kube::Client,
    cached: Arc<Mutex<BTreeMap<VmKey, Cached>>>,
}

impl std::fmt::Debug for Pods {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pods").finish_non_exhaustive()
    }
}

impl Pods {
    pub(crate) fn new(client: kube::Client) -> Self {
        Self {
            client,
            cached: Arc::default(),
        }
    }

    /// Forgets the credentials of VMs that are gone.
    pub(crate) fn keep_only(&self, vms: &[VirtualMachine]) {
        let is_there = |(namespace, name, uid): &VmKey| {
            vms.iter().any(|vm| {
                let metadata = &vm.metadata;
                metadata.namespace == *namespace && metadata.name == *name && metadata.uid == *uid
            })
        };
        if !self.lock().is_empty() {
            self.lock().retain(|key, _| is_there(key));
        }
    }

    pub(super) async fn send(
        &self,
        runner: &Runner,
        method: Method,
        path: &str,
        body: Bytes,
        limit: Duration,
    ) -> Result<Bytes, HttpError> {
        let at = runner.at.ok_or_else(|| {
            let text = format!(
                "no pod of VM {}/{} has an address",
                runner.namespace, runner.vm
            );
            HttpError::Connect(io::Error::other(text))
        })?;
        let credentials = self.credentials(runner).await?;
        let stream = timeout(CONNECT_LIMIT, connect(at, &credentials)).await;
        let stream = stream.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
        let stream = stream.map_err(|error| {
            if is_other_certificate(&error) {
                self.doubt(runner);
            }
            HttpError::Connect(error)
        })?;
        let client = HttpClient::over(stream, "runner").await?;
        let mut client = client.with_authorization(Some(credentials.token));
        let sent = client.send(method, path, body, limit).await;
        if let Err(HttpError::Status(StatusCode::UNAUTHORIZED, _)) = &sent {
            self.doubt(runner);
        }
        sent
    }

    async fn credentials(&self, runner: &Runner) -> Result<Credentials, HttpError> {
        let key = key_of(runner);
        if let Some(cached) = self.lock().get(&key) {
            let is_due = cached.in_doubt && cached.read.elapsed() >= READ_EVERY;
            if !is_due {
                return Ok(cached.credentials.clone());
            }
        }
        let failed = |text: String| {
            let name = secret_name(&runner.vm);
            let text = format!("secret {}/{name}: {text}", runner.namespace);
            HttpError::Connect(io::Error::other(text))
        };
        let secret = ApiResource::from_gvk(&GroupVersionKind::gvk("", "v1", "Secret"));
        let api: Api<DynamicObject> =
            Api::namespaced_with(self.client.clone(), &runner.namespace, &secret);
        let name = secret_name(&runner.vm);
        let read = timeout(SECRET_LIMIT, api.get(&name)).await;
        let read = read.map_err(|_| failed("the API did not answer in time".to_owned()))?;
        let read = read.map_err(|error| failed(daemon_kit::chain(&error)))?;
        let read = serde_json::to_value(read).map_err(|error| failed(error.to_string()))?;
        let credentials =
            credentials(&read, &runner.uid).map_err(|text| failed(text.to_owned()))?;
        let cached = Cached {
            credentials: credentials.clone(),
            read: Instant::now(),
            in_doubt: false,
        };
        self.lock().insert(key, cached);
        Ok(credentials)
    }

    /// Marks credentials as outdated.
    fn doubt(&self, runner: &Runner) {
        if let Some(cached) = self.lock().get_mut(&key_of(runner)) {
            cached.in_doubt = true;
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<VmKey, Cached>> {
        // Only whole values are stored.
        self.cached.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn key_of(runner: &Runner) -> VmKey {
    (
        runner.namespace.clone(),
        runner.vm.clone(),
        runner.uid.clone(),
    )
}

async fn connect(at: SocketAddr, credentials: &Credentials) -> io::Result<TlsStream<TcpStream>> {
    let stream = TcpStream::connect(at).await?;
    // Orders are small. They must not wait for another packet.
    stream.set_nodelay(true)?;
    let name = ServerName::try_from(ORDERS_NAME).map_err(io::Error::other)?;
    let connector = TlsConnector::from(Arc::clone(&credentials.certificate));
    connector.connect(name, stream).await
}

fn is_other_certificate(error: &io::Error) -> bool {
    let cause = error
        .get_ref()
        .and_then(|cause| cause.downcast_ref::<rustls::Error>());
    matches!(cause, Some(rustls::Error::InvalidCertificate(_)))
}

#[cfg(test)]
mod tests;
