//! A raw QMP client over a unix socket: the yardstick resizes are measured against, deliberately nothing of ours.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};

/// How long one command may take.
const PATIENCE: Duration = Duration::from_secs(20);

/// A negotiated connection.
#[derive(Debug)]
pub struct Qmp {
    lines: Lines<BufReader<OwnedReadHalf>>,
    write: OwnedWriteHalf,
}

impl Qmp {
    /// Connects and negotiates.
    ///
    /// # Errors
    /// When the socket does not answer as QMP.
    pub async fn connect(socket: &Path) -> Result<Self> {
        let stream = UnixStream::connect(socket)
            .await
            .with_context(|| format!("connect {}", socket.display()))?;
        let (read, write) = stream.into_split();
        let mut qmp = Self {
            lines: BufReader::new(read).lines(),
            write,
        };
        let greeting = qmp.line().await?;
        anyhow::ensure!(greeting.get("QMP").is_some(), "no QMP greeting: {greeting}");
        qmp.execute("qmp_capabilities", json!({})).await?;
        Ok(qmp)
    }

    async fn line(&mut self) -> Result<Value> {
        let line = tokio::time::timeout(PATIENCE, self.lines.next_line())
            .await
            .context("QMP did not answer in time")??
            .context("QMP closed the connection")?;
        Ok(serde_json::from_str(&line)?)
    }

    /// One command; events in between are passed over.
    ///
    /// # Errors
    /// QEMU's own words when it refuses.
    pub async fn execute(&mut self, command: &str, arguments: Value) -> Result<Value> {
        let text = json!({"execute": command, "arguments": arguments}).to_string();
        self.write.write_all(format!("{text}\n").as_bytes()).await?;
        loop {
            let mut answer = self.line().await?;
            if let Some(error) = answer.get("error") {
                bail!("{command}: {error}");
            }
            if let Some(value) = answer.get_mut("return") {
                return Ok(value.take());
            }
        }
    }

    /// Plugs one CPU into the lowest free slot under the name `id`.
    ///
    /// # Errors
    /// When no slot is free or QEMU refuses.
    pub async fn plug_cpu(&mut self, id: &str) -> Result<()> {
        let slots = self.execute("query-hotpluggable-cpus", json!({})).await?;
        let free = slots
            .as_array()
            .context("no slots")?
            .iter()
            .rfind(|slot| slot.get("qom-path").is_none());
        let free = free.context("no free CPU slot")?;
        let mut arguments = free["props"].clone();
        arguments["driver"] = free["type"].clone();
        arguments["id"] = id.into();
        self.execute("device_add", arguments).await.map(drop)
    }

    /// Asks for a CPU to go.
    ///
    /// # Errors
    /// When QEMU refuses.
    pub async fn unplug_cpu(&mut self, id: &str) -> Result<()> {
        self.execute("device_del", json!({ "id": id }))
            .await
            .map(drop)
    }

    /// Names or QOM paths of hot-plugged CPUs.
    ///
    /// # Errors
    /// When QEMU does not answer.
    pub async fn plugged_cpus(&mut self) -> Result<Vec<String>> {
        let slots = self.execute("query-hotpluggable-cpus", json!({})).await?;
        Ok(slots
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|slot| slot["qom-path"].as_str())
            .filter(|path| path.contains("machine/peripheral/"))
            .map(str::to_owned)
            .collect())
    }

    /// Sets the size of the virtio-mem device in bytes.
    ///
    /// # Errors
    /// When QEMU refuses.
    pub async fn set_memory(&mut self, bytes: u64) -> Result<()> {
        let arguments = json!({"path": "/machine/peripheral/vm0", "property": "requested-size", "value": bytes});
        self.execute("qom-set", arguments).await.map(drop)
    }

    /// The size the virtio-mem device has.
    ///
    /// # Errors
    /// When QEMU refuses.
    pub async fn memory(&mut self) -> Result<u64> {
        let arguments = json!({"path": "/machine/peripheral/vm0", "property": "size"});
        self.execute("qom-get", arguments)
            .await?
            .as_u64()
            .context("size is no number")
    }
}
