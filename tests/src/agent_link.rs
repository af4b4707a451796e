//! The agent's side of the monitor link, for requests to a monitor in a real guest.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use futures::{SinkExt as _, StreamExt as _};
use protocol::monitor::{
    AgentBody, AgentFrame, MonitorBody, MonitorFrame, PATH, Version, VersionResponse,
};
use serde_json::json;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;
use tokio_tungstenite::tungstenite::handshake::client::Request;
use tokio_tungstenite::tungstenite::http::header::AUTHORIZATION;
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream};

/// Longest time for one response.
const PATIENCE: Duration = Duration::from_secs(60);

/// A connection after its handshake.
#[derive(Debug)]
pub struct AgentLink {
    socket: WebSocketStream<MaybeTlsStream<tokio::net::TcpStream>>,
    next_id: u64,
}

impl AgentLink {
    /// Connects to a monitor that requires no token, and negotiates v1.
    ///
    /// # Errors
    ///
    /// If it does not answer with version 1.
    pub async fn dial(address: SocketAddr) -> Result<Self> {
        Self::connect(format!("ws://{address}{PATH}").into_client_request()?).await
    }

    /// Connects with the token of the VM's monitor, from the run directory of its runner.
    ///
    /// # Errors
    ///
    /// If there is no token, or the monitor does not answer with version 1.
    pub async fn dial_with_token(address: SocketAddr, rundir: &Path) -> Result<Self> {
        let token = std::fs::read_to_string(rundir.join("monitor.token"))?;
        let mut request = format!("ws://{address}{PATH}").into_client_request()?;
        let shown = format!("Bearer {}", token.trim()).parse()?;
        request.headers_mut().insert(AUTHORIZATION, shown);
        Self::connect(request).await
    }

    /// The same in v2, with these capabilities.
    ///
    /// # Errors
    /// When the monitor does not answer with version 2, or names no capabilities of its own.
    pub async fn dial_v2(address: SocketAddr, capabilities: &[&str]) -> Result<Self> {
        let request = format!("ws://{address}{PATH}").into_client_request()?;
        let (mut link, version) = Self::agree(request, r#"{"min":1,"max":2}"#).await?;
        ensure!(version == Version::V2, "the monitor speaks {version:?}");
        let names = json!({"names": capabilities});
        let frame = json!({"content": names, "type": "Capabilities", "id": link.next_id});
        link.next_id += 2;
        link.socket.send(Message::text(frame.to_string())).await?;
        let named = link.text().await?;
        ensure!(named.contains(r#""type":"Capabilities""#), "{named}");
        Ok(link)
    }

    async fn connect(request: Request) -> Result<Self> {
        let (link, version) = Self::agree(request, r#"{"min":1,"max":1}"#).await?;
        ensure!(version == Version::V1, "the monitor speaks {version:?}");
        Ok(link)
    }

    /// Dials and agrees on a version of this range.
    async fn agree(request: Request, range: &'static str) -> Result<(Self, Version)> {
        let url = request.uri().to_string();
        let (socket, _) = tokio_tungstenite::connect_async(request)
            .await
            .with_context(|| format!("dial {url}"))?;
        let mut link = Self {
            socket,
            next_id: protocol::monitor::AGENT_FIRST_ID,
        };
        link.socket.send(Message::text(range)).await?;
        match serde_json::from_str(&link.text().await?)? {
            VersionResponse::Version(version) => Ok((link, version)),
            other => bail!("the monitor answered the handshake with {other:?}"),
        }
    }

    async fn text(&mut self) -> Result<String> {
        tokio::time::timeout(PATIENCE, self.next_text())
            .await
            .context("the monitor did not answer in time")?
    }

    async fn next_text(&mut self) -> Result<String> {
        loop {
            let message = self.socket.next().await;
            let message = message.context("the monitor closed the connection")??;
            if let Message::Text(text) = message {
                return Ok(text.to_string());
            }
        }
    }

    /// Asks something and returns the answer with the same id; the monitor's own requests in
    /// between are passed over.
    ///
    /// # Errors
    /// When no answer comes.
    pub async fn ask(&mut self, body: AgentBody) -> Result<MonitorBody> {
        let id = self.next_id;
        self.next_id += 2;
        self.socket
            .send(Message::text(AgentFrame { body, id }.encode()))
            .await?;
        loop {
            let frame = MonitorFrame::decode(&self.text().await?)?;
            if frame.id == id {
                return Ok(frame.body);
            }
        }
    }

    /// Waits for a frame of the monitor's own.
    ///
    /// # Errors
    /// When none comes within `patience`.
    pub async fn own_request(&mut self, patience: Duration) -> Result<MonitorBody> {
        Ok(MonitorFrame::decode(&self.own_frame(patience).await?)?.body)
    }

    /// The same as the text that came.
    ///
    /// # Errors
    /// When none comes within `patience`.
    pub async fn own_frame(&mut self, patience: Duration) -> Result<String> {
        tokio::time::timeout(patience, self.next_text())
            .await
            .context("the monitor asked for nothing")?
    }
}
