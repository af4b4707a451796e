//! Gossip's datagrams, sealed.
//!
//! The gossip library keeps its codec to itself: only its own UDP socket makes bytes of a message.
//! So that socket is bound to the loopback, and a second one beside it, the relay, is its only
//! partner. The relay's bytes are sealed and pass through the socket that other machines reach.
//!
//! ```text
//! library ─► inner socket ─► relay ─► seal ─► outer socket ─► network
//! ```

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use chitchat::ChitchatEnvelope;
use chitchat::transport::{RecvOutcome, SendOutcome, Socket, Transport, UdpTransport};
use tokio::net::UdpSocket;
use tokio::time::timeout;

use crate::keys::Keys;
use crate::seal;

/// Longest datagram, bytes.
const DATAGRAM_BYTES: usize = 65_507;
/// Longest passage over the loopback.
const PASSAGE: Duration = Duration::from_millis(200);

/// Makes sealed sockets.
pub(crate) struct Sealed {
    pub(crate) keys: Keys,
    /// Datagrams that no key opened, or that are no gossip.
    pub(crate) dropped: Arc<AtomicU64>,
}

#[async_trait]
impl Transport for Sealed {
    async fn open(&self, listen_addr: SocketAddr) -> anyhow::Result<Box<dyn Socket>> {
        let outer = UdpSocket::bind(listen_addr).await?;
        let loopback = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let inner = UdpTransport.open(loopback).await?;
        let relay = UdpSocket::bind(loopback).await?;
        Ok(Box::new(SealedSocket {
            keys: self.keys.clone(),
            dropped: Arc::clone(&self.dropped),
            inner_addr: inner.local_addr()?,
            relay_addr: relay.local_addr()?,
            outer,
            inner,
            relay,
            buffer: vec![0; DATAGRAM_BYTES],
        }))
    }
}

struct SealedSocket {
    keys: Keys,
    dropped: Arc<AtomicU64>,
    outer: UdpSocket,
    inner: Box<dyn Socket>,
    inner_addr: SocketAddr,
    relay: UdpSocket,
    relay_addr: SocketAddr,
    buffer: Vec<u8>,
}

impl SealedSocket {
    /// Bytes of a message. `None` if they do not pass the loopback in time.
    async fn encode(&mut self, envelope: ChitchatEnvelope) -> anyhow::Result<Option<Vec<u8>>> {
        self.inner.send(self.relay_addr, envelope).await?;
        let mut bytes = vec![0; DATAGRAM_BYTES];
        loop {
            let Ok(received) = timeout(PASSAGE, self.relay.recv_from(&mut bytes)).await else {
                return Ok(None);
            };
            let (length, from) = received?;
            // Every process of the machine can send to the relay.
            if from == self.inner_addr {
                bytes.truncate(length);
                return Ok(Some(bytes));
            }
        }
    }

    /// The message of these bytes. `None` if they are not one.
    async fn decode(&mut self, bytes: &[u8]) -> anyhow::Result<Option<RecvOutcome>> {
        self.relay.send_to(bytes, self.inner_addr).await?;
        loop {
            let Ok(received) = timeout(PASSAGE, self.inner.recv()).await else {
                return Ok(None);
            };
            let received = received?;
            if received.from_addr == self.relay_addr {
                return Ok(Some(received));
            }
        }
    }
}

#[async_trait]
impl Socket for SealedSocket {
    fn local_addr(&self) -> anyhow::Result<SocketAddr> {
        Ok(self.outer.local_addr()?)
    }

    async fn send(
        &mut self,
        to: SocketAddr,
        envelope: ChitchatEnvelope,
    ) -> anyhow::Result<SendOutcome> {
        let mut num_bytes_sent = 0;
        if let Some(bytes) = self.encode(envelope).await?
            && let Some(datagram) = seal::seal(&self.keys, &bytes)
        {
            // An error here would end the gossip: a peer that is away is no reason for that.
            match self.outer.send_to(&datagram, to).await {
                Ok(sent) => num_bytes_sent = sent,
                Err(error) => tracing::debug!(%error, %to, "a datagram was not sent"),
            }
        }
        Ok(SendOutcome { num_bytes_sent })
    }

    async fn recv(&mut self) -> anyhow::Result<RecvOutcome> {
        loop {
            let (length, from) = match self.outer.recv_from(&mut self.buffer).await {
                Ok(received) => received,
                // An ICMP error of a datagram that was sent before.
                Err(error) => {
                    tracing::debug!(%error, "no datagram was received");
                    tokio::time::sleep(Duration::from_millis(10)).await;
                    continue;
                }
            };
            if let Some(bytes) = seal::open(&self.keys, &self.buffer[..length])
                && let Some(mut received) = self.decode(&bytes).await?
            {
                received.from_addr = from;
                received.num_bytes_received = length;
                return Ok(received);
            }
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}
