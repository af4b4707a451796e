//! The pools of overlay addresses, as requests to the API server.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use daemon_kit::clock::Clock;
use kube::Client;
use kube::api::{GetParams, Patch};
use kube::core::Request;
use protocol::vm::IpAllocation;
use serde_json::{Value, json};
use tokio::sync::Mutex;
use tokio::time::timeout;

use super::api::{ApiError, KubeApi, patch_params, post_params};
use super::clock::pause;
use super::decode::DecodeError;
use super::metrics::{IpamAction, IpamMetrics};
use super::state::StateHandle;
use crate::core::overlay::{Claim, ConfigError, Holder, Leaks, Overlay, Range, claim_any, release};
use crate::core::{ActionResponse, Refusal};

/// Attempts at a write that another one's write came before, and the pause between them.
const TRIES: u32 = 5;
const PAUSE: Duration = Duration::from_millis(100);
/// Limit of all requests to the pools for one VM.
const LIMIT: Duration = Duration::from_secs(10);
/// How often addresses of VMs that are gone are looked for, within the time they have to be away.
const SWEEPS: u32 = 10;

/// The configuration of the overlay could not be read.
#[derive(Debug, thiserror::Error)]
pub enum OverlayError {
    /// The network attachment could not be read.
    #[error("failed to read network attachment {namespace}/{name}")]
    Read {
        /// Namespace of the network attachment.
        namespace: String,
        /// Name of the network attachment.
        name: String,
        /// Why the API server did not return it.
        #[source]
        source: ApiError,
    },
    /// The configuration is unusable.
    #[error("unusable configuration of network attachment {namespace}/{name}")]
    Config {
        /// Namespace of the network attachment.
        namespace: String,
        /// Name of the network attachment.
        name: String,
        /// Fault in its `spec.config`.
        #[source]
        source: ConfigError,
    },
}

/// Reads the overlay's ranges from a NetworkAttachmentDefinition; its namespace is that of the
/// pools.
///
/// # Errors
/// [`OverlayError`].
pub(super) async fn overlay(
    client: &Client,
    namespace: &str,
    name: &str,
) -> Result<Overlay, OverlayError> {
    let (namespace, name) = (namespace.to_owned(), name.to_owned());
    let path =
        format!("/apis/k8s.cni.cncf.io/v1/namespaces/{namespace}/network-attachment-definitions");
    let api = KubeApi::new(client.clone());
    let found = api
        .send(Request::new(path).get(&name, &GetParams::default()))
        .await;
    match found {
        Ok(found) => {
            let config = found["spec"]["config"].as_str().unwrap_or_default();
            Overlay::read(&namespace, config).map_err(|source| OverlayError::Config {
                namespace,
                name,
                source,
            })
        }
        Err(source) => Err(OverlayError::Read {
            namespace,
            name,
            source,
        }),
    }
}

/// The pools of an overlay. One at a time of this process works on them: waiting costs less than
/// writes that are refused.
#[derive(Debug)]
pub(super) struct Pools {
    overlay: Overlay,
    turn: Mutex<()>,
    metrics: IpamMetrics,
    clock: Clock,
}

/// A pool as it was read.
struct Pool {
    version: Value,
    allocations: BTreeMap<String, IpAllocation>,
}

impl Pools {
    pub(super) fn new(overlay: Overlay, metrics: IpamMetrics, clock: Clock) -> Self {
        Self {
            overlay,
            turn: Mutex::new(()),
            metrics,
            clock,
        }
    }

    /// An address for this VM.
    pub(super) async fn take(
        &self,
        api: &KubeApi,
        holder: &Holder,
    ) -> Result<ActionResponse, Refusal> {
        self.timed(IpamAction::acquire, self.taken(api, holder))
            .await
    }

    /// Releases the address of this VM.
    pub(super) async fn give_back(
        &self,
        api: &KubeApi,
        holder: &Holder,
    ) -> Result<ActionResponse, Refusal> {
        let done = async {
            let _turn = self.turn.lock().await;
            self.released(api, holder).await?;
            Ok(ActionResponse::AddressReleased)
        };
        self.timed(IpamAction::release, done).await
    }

    async fn timed(
        &self,
        action: IpamAction,
        work: impl Future<Output = Result<ActionResponse, Refusal>>,
    ) -> Result<ActionResponse, Refusal> {
        let began = self.clock.now();
        let _ongoing = self.metrics.begins(action);
        let result = timeout(LIMIT, work)
            .await
            .unwrap_or_else(|_| Err(ApiError::Timeout.refusal()));
        let took = self.clock.now().since(began);
        self.metrics.ended(action, result.is_ok(), took);
        result
    }

    async fn taken(&self, api: &KubeApi, holder: &Holder) -> Result<ActionResponse, Refusal> {
        let _turn = self.turn.lock().await;
        for _ in 0..TRIES {
            let mut pools = Vec::new();
            for range in &self.overlay.ranges {
                pools.push(self.read(api, range).await.map_err(|e| e.refusal())?);
            }
            let held = pools.iter().map(|pool| &pool.allocations);
            let (index, claim) = claim_any(&self.overlay, held, holder);
            let range = &self.overlay.ranges[index];
            let (address, mask) = match claim {
                Claim::Held(address) => (address, range.mask()),
                Claim::Take { address, change } => {
                    if !self.write(api, range, &pools[index], change).await? {
                        pause(PAUSE).await;
                        continue;
                    }
                    (address, range.mask())
                }
                Claim::Full => {
                    let names: Vec<&str> = self
                        .overlay
                        .ranges
                        .iter()
                        .map(|range| range.pool.as_str())
                        .collect();
                    return Err(Refusal::Failed {
                        message: format!("every address of {} is held", names.join(" and ")),
                        permanent: true,
                    });
                }
            };
            return Ok(ActionResponse::Address { address, mask });
        }
        Err(contended())
    }

    /// Removes the VM's address from every pool.
    async fn released(&self, api: &KubeApi, holder: &Holder) -> Result<(), Refusal> {
        for range in &self.overlay.ranges {
            let mut done = false;
            for _ in 0..TRIES {
                let pool = self.read(api, range).await.map_err(|e| e.refusal())?;
                done = match release(&pool.allocations, holder) {
                    None => true,
                    Some(change) => self.write(api, range, &pool, change).await?,
                };
                if done {
                    break;
                }
                pause(PAUSE).await;
            }
            if !done {
                return Err(contended());
            }
        }
        Ok(())
    }

    /// Reads a pool, and makes it if it is not there.
    async fn read(&self, api: &KubeApi, range: &Range) -> Result<Pool, ApiError> {
        let pools = self.objects();
        let found = match api
            .send(pools.get(&range.pool, &GetParams::default()))
            .await
        {
            Err(error) if error.code() == Some(404) => {
                let object = json!({
                    "apiVersion": "vm.neon.tech/v1",
                    "kind": "IPPool",
                    "metadata": {"name": range.pool, "namespace": self.overlay.namespace},
                    "spec": {"range": range.cidr, "allocations": {}},
                });
                let body = object.to_string().into_bytes();
                match api.send(pools.create(&post_params(), body)).await {
                    Err(error) if error.code() == Some(409) => {
                        api.send(pools.get(&range.pool, &GetParams::default()))
                            .await?
                    }
                    made => made?,
                }
            }
            found => found?,
        };
        let allocations = serde_json::from_value(found["spec"]["allocations"].clone());
        Ok(Pool {
            version: found["metadata"]["resourceVersion"].clone(),
            // Addresses in a malformed pool stay with their holders.
            allocations: allocations.map_err(|source| {
                ApiError::Decode(DecodeError {
                    kind: "IPPool",
                    source,
                })
            })?,
        })
    }

    /// Whether the pool was as it was read, and is changed.
    async fn write(
        &self,
        api: &KubeApi,
        range: &Range,
        pool: &Pool,
        change: Value,
    ) -> Result<bool, Refusal> {
        let patch = Patch::Merge(json!({
            "metadata": {"resourceVersion": pool.version},
            "spec": {"allocations": change},
        }));
        let request = self.objects().patch(&range.pool, &patch_params(), &patch);
        match api.send(request).await {
            Ok(_) => Ok(true),
            Err(error) if error.code() == Some(409) => Ok(false),
            Err(error) => Err(error.refusal()),
        }
    }

    fn objects(&self) -> Request {
        let namespace = &self.overlay.namespace;
        Request::new(format!(
            "/apis/vm.neon.tech/v1/namespaces/{namespace}/ippools"
        ))
    }

    /// Looks for addresses of VMs that are gone, for ever.
    pub(super) async fn sweep(self: Arc<Self>, api: Arc<KubeApi>, state: StateHandle) {
        let mut leaks = Leaks::default();
        let every = self.overlay.grace.to_duration() / SWEEPS;
        loop {
            pause(every).await;
            if !state.is_synced() {
                continue;
            }
            for range in &self.overlay.ranges {
                if let Err(error) = self.sweep_one(&api, &state, range, &mut leaks).await {
                    tracing::warn!(
                        pool = range.pool,
                        ?error,
                        "failed to look for leaked addresses"
                    );
                }
            }
        }
    }

    async fn sweep_one(
        &self,
        api: &KubeApi,
        state: &StateHandle,
        range: &Range,
        leaks: &mut Leaks,
    ) -> Result<(), Refusal> {
        let pool = self.read(api, range).await.map_err(|e| e.refusal())?;
        let known = |id: &str| state.knows(id);
        let (grace, now) = (self.overlay.grace, self.clock.now());
        for holder in leaks.look(&range.pool, &pool.allocations, known, grace, now) {
            // A VM of the same name that comes after this read writes its uid first. That write
            // comes after our read of the pool, so our write would be refused.
            let Some(change) = release(&pool.allocations, &holder) else {
                continue;
            };
            if is_there(api, &holder.id).await.map_err(|e| e.refusal())? {
                continue;
            }
            let _turn = self.turn.lock().await;
            if self.write(api, range, &pool, change).await? {
                tracing::warn!(
                    pool = range.pool,
                    vm = holder.id,
                    "leaked address taken back"
                );
            }
            // The pool is another one now: the rest is for the next time.
            return Ok(());
        }
        Ok(())
    }
}

/// Whether there is a VM of that namespace and name. An id that names none is left alone.
async fn is_there(api: &KubeApi, id: &str) -> Result<bool, ApiError> {
    let Some((namespace, name)) = id.split_once('/') else {
        return Ok(true);
    };
    let vms = Request::new(format!(
        "/apis/vm.neon.tech/v1/namespaces/{namespace}/virtualmachines"
    ));
    match api.send(vms.get(name, &GetParams::default())).await {
        Ok(_) => Ok(true),
        Err(error) if error.code() == Some(404) => Ok(false),
        Err(error) => Err(error),
    }
}

fn contended() -> Refusal {
    Refusal::Failed {
        message: "another controller changed the pool at each attempt".into(),
        permanent: false,
    }
}
