//! The gossip: who is there, and what each machine publishes.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use chitchat::{
    ChitchatConfig, ChitchatHandle, ChitchatId, FailureDetectorConfig, ProtocolVersion,
    spawn_chitchat,
};
use peers_core::MachineId;

use crate::keys::Keys;
use crate::published::Published;
use crate::transport::Sealed;

/// Each machine talks to some others at this pace.
const GOSSIP_EVERY: Duration = Duration::from_millis(500);
/// Times the usual pause after which a machine counts as dead.
const PHI: f64 = 8.0;
/// A machine that is dead is forgotten after this time.
const FORGET_AFTER: Duration = Duration::from_secs(24 * 3600);

/// A living machine, as heard.
#[derive(Debug, Clone)]
pub(crate) struct Heard {
    pub(crate) id: MachineId,
    /// Start of its run, µs since 1970.
    pub(crate) generation: u64,
    pub(crate) address: SocketAddr,
    pub(crate) published: Published,
}

pub(crate) struct Gossip {
    handle: ChitchatHandle,
    dropped: Arc<AtomicU64>,
}

impl Gossip {
    pub(crate) async fn start(
        id: &MachineId,
        generation: u64,
        listen: SocketAddr,
        seeds: &[SocketAddr],
        keys: &Keys,
    ) -> anyhow::Result<Self> {
        let dropped = Arc::new(AtomicU64::new(0));
        let config = ChitchatConfig {
            chitchat_id: ChitchatId::new(Arc::clone(id), generation, listen),
            cluster_id: "bellows".to_owned(),
            gossip_interval: GOSSIP_EVERY,
            listen_addr: listen,
            seed_nodes: seeds.iter().map(ToString::to_string).collect(),
            failure_detector_config: FailureDetectorConfig {
                phi_threshold: PHI,
                sampling_window_size: 100,
                max_interval: Duration::from_secs(2),
                initial_interval: GOSSIP_EVERY,
                dead_node_grace_period: FORGET_AFTER,
            },
            marked_for_deletion_grace_period: FORGET_AFTER,
            catchup_callback: None,
            extra_liveness_predicate: None,
            protocol_version: ProtocolVersion::V0,
        };
        let transport = Sealed {
            keys: keys.clone(),
            dropped: Arc::clone(&dropped),
        };
        let handle = spawn_chitchat(config, Vec::new(), &transport).await?;
        Ok(Self { handle, dropped })
    }

    /// Publishes a value. `None` takes it back.
    pub(crate) async fn publish(&self, key: &str, value: Option<String>) {
        let chitchat = self.handle.chitchat();
        let mut chitchat = chitchat.lock().await;
        let own = chitchat.self_node_state();
        match value {
            Some(value) if own.get(key) != Some(value.as_str()) => own.set(key, value),
            None if own.get(key).is_some() => own.delete(key),
            _ => {}
        }
    }

    /// Begins a conversation with a machine that nobody has heard of.
    pub(crate) fn greet(&self, address: SocketAddr) {
        if let Err(error) = self.handle.gossip(address) {
            tracing::warn!(%error, "the gossip has ended");
        }
    }

    /// All living machines but this one.
    pub(crate) async fn heard(&self) -> Vec<Heard> {
        let own = self.handle.chitchat_id();
        let chitchat = self.handle.chitchat();
        let chitchat = chitchat.lock().await;
        let others = chitchat.live_nodes().filter(|id| *id != own);
        let heard = others.filter_map(|id| {
            let state = chitchat.node_state(id)?;
            Some(Heard {
                id: Arc::clone(&id.node_id),
                generation: id.generation_id,
                address: id.gossip_advertise_addr,
                published: Published::read(|key| state.get(key)),
            })
        });
        heard.collect()
    }

    /// Datagrams that no key opened.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Whether the gossip still runs.
    pub(crate) async fn ended(&self) -> String {
        match self.handle.termination_watcher().await {
            Ok(()) => "the gossip ended".to_owned(),
            Err(error) => format!("the gossip ended: {error}"),
        }
    }
}
