//! A raw QMP client over a unix socket. Resizes are compared with it, so it shares no code with the
//! components.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};

/// Longest time for one command.
const PATIENCE: Duration = Duration::from_secs(20);

/// Path of the virtio-mem device.
const MEMORY: &str = "/machine/peripheral/vm0";

/// Commands for [`Qmp::run`], written out before they are needed.
#[derive(Debug, Default)]
pub struct Batch {
    commands: Vec<&'static str>,
    text: String,
}

impl Batch {
    /// Plugs a CPU into a slot of [`Qmp::free_cpus`].
    pub fn plug_cpu(&mut self, slot: &Value, id: &str) {
        let mut arguments = slot.clone();
        arguments["id"] = id.into();
        self.add("device_add", arguments);
    }

    /// Asks for a CPU to go.
    pub fn unplug_cpu(&mut self, id: &str) {
        self.add("device_del", json!({ "id": id }));
    }

    /// Sets the size of the virtio-mem device in bytes.
    pub fn set_memory(&mut self, bytes: u64) {
        let arguments = json!({"path": MEMORY, "property": "requested-size", "value": bytes});
        self.add("qom-set", arguments);
    }

    fn add(&mut self, command: &'static str, arguments: Value) {
        self.commands.push(command);
        let line = json!({"execute": command, "arguments": arguments});
        self.text.push_str(&format!("{line}\n"));
    }
}

/// A connection after the handshake.
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

    /// Runs one command. Events in between are skipped.
    ///
    /// # Errors
    ///
    /// QEMU's error.
    pub async fn execute(&mut self, command: &str, arguments: Value) -> Result<Value> {
        let text = json!({"execute": command, "arguments": arguments}).to_string();
        self.write.write_all(format!("{text}\n").as_bytes()).await?;
        self.answer(command).await
    }

    async fn answer(&mut self, command: &str) -> Result<Value> {
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

    /// Sends all commands of a batch in one write, then reads their responses.
    ///
    /// # Errors
    ///
    /// QEMU's error.
    pub async fn run(&mut self, batch: &Batch) -> Result<()> {
        self.write.write_all(batch.text.as_bytes()).await?;
        for command in &batch.commands {
            self.answer(command).await?;
        }
        Ok(())
    }

    /// Arguments of `device_add`, without an id, for each free CPU slot, the lowest first.
    ///
    /// # Errors
    ///
    /// If QEMU does not answer.
    pub async fn free_cpus(&mut self) -> Result<Vec<Value>> {
        let slots = self.execute("query-hotpluggable-cpus", json!({})).await?;
        let slots = slots.as_array().context("no slots")?.iter().rev();
        let free = slots.filter(|slot| slot.get("qom-path").is_none());
        Ok(free
            .map(|slot| {
                let mut arguments = slot["props"].clone();
                arguments["driver"] = slot["type"].clone();
                arguments
            })
            .collect())
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

    /// The size the virtio-mem device has.
    ///
    /// # Errors
    /// When QEMU refuses.
    pub async fn memory(&mut self) -> Result<u64> {
        let arguments = json!({"path": MEMORY, "property": "size"});
        self.execute("qom-get", arguments)
            .await?
            .as_u64()
            .context("size is no number")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::UnixListener;

    /// QEMU with two free CPU slots. It answers a batch of `device_add` only when the whole batch
    /// is there, and refuses its second command.
    async fn played(listener: UnixListener, batch: usize) -> Result<Vec<String>> {
        let (stream, _) = listener.accept().await?;
        let (read, mut write) = stream.into_split();
        let mut lines = BufReader::new(read).lines();
        write.write_all(b"{\"QMP\": {}}\n").await?;
        lines.next_line().await?;
        write.write_all(b"{\"return\": {}}\n").await?;
        lines.next_line().await?;
        let slots = json!({"return": [
            {"type": "cpu", "props": {"core-id": 3}},
            {"type": "cpu", "props": {"core-id": 2}},
            {"type": "cpu", "props": {"core-id": 1}, "qom-path": "/machine/peripheral/c"},
        ]});
        write.write_all(format!("{slots}\n").as_bytes()).await?;
        let mut commands = Vec::new();
        while commands.len() < batch {
            commands.push(lines.next_line().await?.context("closed")?);
        }
        let answers = "{\"return\": {}}\n{\"event\": \"X\"}\n{\"error\": \"full\"}\n";
        write.write_all(answers.as_bytes()).await?;
        Ok(commands)
    }

    #[tokio::test]
    async fn batch_is_sent_whole_before_the_first_answer() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("qmp.sock");
        let qemu = tokio::spawn(played(UnixListener::bind(&socket).unwrap(), 2));
        let mut qmp = Qmp::connect(&socket).await.unwrap();
        let free = qmp.free_cpus().await.unwrap();
        let ids: Vec<&Value> = free.iter().map(|slot| &slot["core-id"]).collect();
        assert_eq!(ids, [2, 3], "the lowest slot first");
        let mut batch = Batch::default();
        batch.plug_cpu(&free[0], "first");
        batch.unplug_cpu("second");
        let error = qmp.run(&batch).await.unwrap_err().to_string();
        assert_eq!(error, "device_del: \"full\"");
        let commands = qemu.await.unwrap().unwrap();
        let sent: Value = serde_json::from_str(&commands[0]).unwrap();
        let arguments = json!({"core-id": 2, "driver": "cpu", "id": "first"});
        assert_eq!(
            sent,
            json!({"execute": "device_add", "arguments": arguments})
        );
    }
}
