//! State of a guest, from the daemon inside it.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use protocol::runner::{GUESTD_FORWARD, GuestState};

use crate::cluster::Relay;
use crate::guestd_key;
use crate::patience::wait_for;

/// Longest time for which an idle connection is reused. Daemons close connections after a minute of
/// silence, and a request that meets that is lost.
const KEPT: Duration = Duration::from_secs(10);

/// The guest of one VM.
#[derive(Debug, Clone)]
pub struct Guest {
    /// Address of the VM.
    pub ip: IpAddr,
    /// Address of its daemon.
    daemon: SocketAddr,
    /// Relay to the daemon, if it is in another network.
    _relay: Option<Arc<Relay>>,
    /// Key that its daemon requires, if any.
    key: Option<String>,
    http: reqwest::Client,
}

impl Guest {
    /// A client for the guest at an address.
    ///
    /// # Errors
    /// When the HTTP client cannot be made.
    pub fn new(ip: IpAddr) -> Result<Self> {
        Self::asked_at(ip, SocketAddr::new(ip, GUESTD_FORWARD), None)
    }

    /// A guest in a pod. Its daemon can be reached only from the pod's network.
    ///
    /// # Errors
    ///
    /// If the network cannot be entered, or the HTTP client cannot be created.
    pub fn in_pod(ip: IpAddr, network: &Path) -> Result<Self> {
        let relay = Relay::into_network(network, SocketAddr::new(ip, GUESTD_FORWARD))?;
        Self::asked_at(ip, relay.address, Some(Arc::new(relay)))
    }

    fn asked_at(ip: IpAddr, daemon: SocketAddr, relay: Option<Arc<Relay>>) -> Result<Self> {
        crate::kubeconfig::install_crypto();
        let http = reqwest::Client::builder()
            .timeout(Duration::from_secs(30))
            .pool_idle_timeout(KEPT)
            .no_proxy()
            .build()?;
        Ok(Self {
            ip,
            daemon,
            _relay: relay,
            key: guestd_key::of_guest(ip),
            http,
        })
    }

    /// State of the guest.
    ///
    /// # Errors
    ///
    /// If its daemon does not answer.
    pub async fn state(&self) -> Result<GuestState> {
        self.get(String::new()).await
    }

    /// Waits until its daemon answers, and returns the guest's state.
    ///
    /// # Errors
    ///
    /// The last failure.
    pub async fn answers(&self, patience: Duration) -> Result<GuestState> {
        wait_for("an answer of the daemon", patience, || async {
            self.state().await.map_err(|error| format!("{error:#}"))
        })
        .await
    }

    /// State of the guest once its generation differs from `after`, or after `wait_ms`.
    ///
    /// # Errors
    ///
    /// If its daemon does not answer.
    pub async fn next_state(&self, after: u64, wait_ms: u64) -> Result<GuestState> {
        self.get(format!("?after={after}&wait_ms={wait_ms}")).await
    }

    async fn get(&self, query: String) -> Result<GuestState> {
        let url = format!("http://{}/v1/state{query}", self.daemon);
        let mut request = self.http.get(&url);
        if let Some(key) = &self.key {
            request = request.bearer_auth(key);
        }
        let response = request.send().await.with_context(|| format!("GET {url}"))?;
        Ok(response.error_for_status()?.json().await?)
    }

    /// Waits until `wanted` holds for the guest's state, and returns that state.
    ///
    /// # Errors
    ///
    /// Names the wanted state and the last one.
    pub async fn wait(
        &self,
        what: &str,
        patience: Duration,
        wanted: impl Fn(&GuestState) -> bool,
    ) -> Result<GuestState> {
        let began = std::time::Instant::now();
        let mut state = self.state().await?;
        while !wanted(&state) {
            anyhow::ensure!(
                began.elapsed() < patience,
                "{what} did not happen in {patience:?}; the guest sees {state:?}"
            );
            state = self.next_state(state.generation, 1000).await?;
        }
        Ok(state)
    }

    /// Text of a page at a port of the VM.
    ///
    /// # Errors
    /// When it does not answer 200.
    pub async fn page(&self, port: u16, path: &str) -> Result<String> {
        let url = format!("http://{}:{port}{path}", self.ip);
        Ok(self
            .http
            .get(&url)
            .send()
            .await?
            .error_for_status()?
            .text()
            .await?)
    }

    /// The password of its PostgreSQL.
    ///
    /// # Errors
    /// When its runner has none.
    pub fn password(&self) -> Result<String> {
        guestd_key::password_of_guest(self.ip)
            .with_context(|| format!("the runner of {} has no password of PostgreSQL", self.ip))
    }

    /// Connection string of the guest's PostgreSQL.
    ///
    /// # Errors
    ///
    /// If its runner has no password.
    pub fn connection(&self) -> Result<String> {
        Ok(format!(
            "host={} port=5432 user=postgres password={} dbname=bench connect_timeout=5",
            self.ip,
            self.password()?
        ))
    }

    /// A connection to the guest's PostgreSQL.
    ///
    /// # Errors
    /// When it cannot be reached.
    pub async fn postgres(&self) -> Result<tokio_postgres::Client> {
        let config = self.connection()?;
        let (client, connection) = tokio_postgres::connect(&config, tokio_postgres::NoTls).await?;
        tokio::spawn(connection);
        Ok(client)
    }
}
