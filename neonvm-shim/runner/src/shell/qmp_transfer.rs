//! QMP commands of a migration, in their order.
//!
//! Arguments are plain JSON: options that exist only in some versions of QEMU are set by name (see
//! [`Qmp::known_capabilities`]), and new members of a newer QEMU must not break the parsing of a
//! reply.

use std::fs::Permissions;
use std::net::SocketAddrV4;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::Duration;

use protocol::migration::{Destination, Progress, RamProgress, StreamOptions};
use serde::Serialize;
use serde_json::{Value, json};

use super::qmp::Qmp;
use crate::config::Accel;
use crate::core::paths::Paths;
use crate::core::sizer::QmpFailure;
use crate::core::transfer::View;

/// Cache for deltas of pages that are sent again, in bytes (docs/compatibility/neonvm.md §2.9).
const XBZRLE_CACHE_BYTES: u64 = 256 << 20;
/// Ids of the root disk's drive and its export, and of the job and node that copy it.
const DRIVE: &str = "root";
const COPY: &str = "moving-root";
/// Names of the connections that QEMU inherits.
const TO_DISK: &str = "moving-to-disk";
const TO_TARGET: &str = "moving-to-target";
/// Longest wait for the end of a copy in sync, during which the guest is stopped.
const COPY_END: Duration = Duration::from_secs(30);
/// Pause between two queries of that.
const COPY_LOOK: Duration = Duration::from_millis(5);

/// QEMU's role in an encrypted connection.
#[derive(Debug, Clone, Copy)]
enum Side {
    Server,
    Client,
}

impl Side {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Server => "server",
            Self::Client => "client",
        }
    }

    /// Id of the keys' object of that role. A guest that arrived and leaves has one of each.
    const fn keys(self) -> &'static str {
        match self {
            Self::Server => "moving-server",
            Self::Client => "moving-client",
        }
    }
}

/// Connection of a QEMU to the target's.
#[derive(Debug)]
pub enum Via {
    Address(SocketAddrV4),
    /// An open connection, passed by descriptor.
    Descriptor(OwnedFd),
}

macro_rules! command {
    ($type:ident, $name:literal) => {
        #[derive(Debug, Serialize)]
        #[serde(transparent)]
        pub(super) struct $type(pub(super) Value);

        impl qapi::qmp::QmpCommand for $type {}
        impl qapi::Command for $type {
            type Ok = Value;
            const NAME: &'static str = $name;
            const ALLOW_OOB: bool = false;
        }
    };
}

command!(QueryMigrate, "query-migrate");
command!(QueryStatus, "query-status");
command!(QueryJobs, "query-block-jobs");
command!(QueryBlock, "query-block");
command!(QueryNodes, "query-named-block-nodes");
command!(QueryCapabilities, "query-migrate-capabilities");
command!(SetCapabilities, "migrate-set-capabilities");
command!(SetParameters, "migrate-set-parameters");
command!(Migrate, "migrate");
command!(Incoming, "migrate-incoming");
command!(StartPostCopy, "migrate-start-postcopy");
command!(Cancel, "migrate_cancel");
command!(GoOn, "migrate-continue");
command!(Stop, "stop");
command!(Cont, "cont");
command!(Get, "qom-get");
command!(List, "qom-list");
command!(ObjectAdd, "object-add");
command!(ObjectDel, "object-del");
command!(NbdStart, "nbd-server-start");
command!(NbdStop, "nbd-server-stop");
command!(ExportAdd, "block-export-add");
command!(NodeAdd, "blockdev-add");
command!(NodeDel, "blockdev-del");
command!(GetFd, "getfd");
command!(Mirror, "blockdev-mirror");
command!(JobCancel, "block-job-cancel");

type Step = Result<(), QmpFailure>;

fn failure(command: &str, message: &str) -> QmpFailure {
    QmpFailure {
        command: command.to_owned(),
        message: message.to_owned(),
    }
}

impl Qmp {
    /// Machine type with its version, such as `pc-q35-10.0`.
    ///
    /// # Errors
    /// QEMU refuses or does not answer.
    pub async fn machine_type(&self) -> Result<String, QmpFailure> {
        let arguments = json!({"path": "/machine", "property": "type"});
        let found = self.execute(Get(arguments)).await?;
        let text = found.as_str().unwrap_or_default();
        Ok(text.strip_suffix("-machine").unwrap_or(text).to_owned())
    }

    /// Virtual size of the root disk in bytes.
    ///
    /// # Errors
    /// QEMU refuses, does not answer, or has no such disk.
    pub async fn disk_bytes(&self) -> Result<u64, QmpFailure> {
        let drive = self.drive().await?;
        let bytes = drive["inserted"]["image"]["virtual-size"].as_u64();
        bytes.ok_or_else(|| failure("query-block", "the root disk has no size"))
    }

    async fn drive(&self) -> Result<Value, QmpFailure> {
        let drives = self.execute(QueryBlock(json!({}))).await?;
        let mut drives = drives.as_array().into_iter().flatten();
        let drive = drives.find(|drive| drive["device"] == DRIVE);
        drive
            .cloned()
            .ok_or_else(|| failure("query-block", "there is no root disk"))
    }

    /// State of migration, virtual machine and disk copy.
    ///
    /// # Errors
    /// QEMU refuses or does not answer.
    pub async fn view(&self) -> Result<View, QmpFailure> {
        let migration = self.execute(QueryMigrate(json!({}))).await?;
        let status = self.execute(QueryStatus(json!({}))).await?;
        let jobs = self.execute(QueryJobs(json!({}))).await?;
        let text_of = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let mut state = text_of(&migration["status"]);
        if state.is_empty() {
            state = "none".to_owned();
        }
        let mut jobs = jobs.as_array().into_iter().flatten();
        let copy = jobs.find(|job| job["device"] == COPY);
        Ok(View {
            error: migration["error-desc"].as_str().map(str::to_owned),
            run: text_of(&status["status"]),
            copy: copy.map(|job| job["ready"] == true),
            progress: progress(&migration, &state),
            migration: state,
        })
    }

    async fn known_capabilities(&self) -> Result<Vec<String>, QmpFailure> {
        let known = self.execute(QueryCapabilities(json!({}))).await?;
        let known = known.as_array().into_iter().flatten();
        let names = known.filter_map(|one| one["capability"].as_str());
        Ok(names.map(str::to_owned).collect())
    }

    /// Makes QEMU read the keys in a directory for one role.
    async fn load_keys(&self, dir: &Path, side: Side) -> Step {
        let objects = self.execute(List(json!({"path": "/objects"}))).await?;
        let mut objects = objects.as_array().into_iter().flatten();
        if objects.any(|object| object["name"] == side.keys()) {
            // The keys may have changed.
            self.execute(ObjectDel(json!({"id": side.keys()}))).await?;
        }
        let keys = json!({"qom-type": "tls-creds-psk", "id": side.keys(), "endpoint": side.as_str(), "dir": dir});
        self.execute(ObjectAdd(keys)).await.map(drop)
    }

    /// Sets the options on which both sides must agree. The stream is encrypted by the keys of
    /// `side`, if any.
    async fn agree(&self, how: StreamOptions, with_disk: bool, side: Option<Side>) -> Step {
        let wanted = [
            // QEMU sends events instead of being polled.
            ("events", true),
            // The sender's belief does not decide which side runs: the runner waits for the
            // receiver's report.
            ("return-path", false),
            ("xbzrle", true),
            ("auto-converge", how.auto_converge),
            ("postcopy-ram", how.post_copy),
            // Only the order to run activates the disk, so that the source can continue until then.
            ("late-block-activate", true),
            // A copy of the disk must end between the guest's last write and its resumption.
            ("pause-before-switchover", with_disk),
        ];
        let known = self.known_capabilities().await?;
        let list: Vec<Value> = wanted
            .into_iter()
            .filter(|(name, _)| known.iter().any(|known| known == name))
            .map(|(name, state)| json!({"capability": name, "state": state}))
            .collect();
        self.execute(SetCapabilities(json!({"capabilities": list})))
            .await?;
        // An empty name removes the setting of an earlier migration.
        let keys = side.map_or("", Side::keys);
        let mut parameters = json!({"xbzrle-cache-size": XBZRLE_CACHE_BYTES, "tls-creds": keys});
        if how.max_bandwidth.0 > 0 {
            parameters["max-bandwidth"] = json!(how.max_bandwidth.0);
        }
        self.execute(SetParameters(parameters)).await.map(drop)
    }

    /// Listens for a guest at an address; encrypted by the keys in a directory, if one is given.
    ///
    /// # Errors
    /// QEMU refuses, for example because it cannot encrypt, or does not answer.
    pub async fn listen(&self, at: &Destination, how: StreamOptions, keys: Option<&Path>) -> Step {
        if let Some(dir) = keys {
            self.load_keys(dir, Side::Server).await?;
        }
        let side = keys.map(|_| Side::Server);
        self.agree(how, at.disk.is_some(), side).await?;
        let sockets = at.sockets.as_deref().map(Paths::new);
        if let Some(disk) = at.disk {
            let address = match &sockets {
                Some(paths) => json!({"type": "unix", "data": {"path": paths.disk()}}),
                None => json!({"type": "inet", "data": inet(disk.nbd)}),
            };
            let mut server = json!({"addr": address, "max-connections": 1});
            if let Some(side) = side {
                server["tls-creds"] = json!(side.keys());
            }
            self.execute(NbdStart(server)).await?;
            let drive = self.drive().await?;
            self.execute(ExportAdd(json!({
                "type": "nbd", "id": DRIVE, "name": DRIVE, "writable": true,
                "node-name": drive["inserted"]["node-name"],
            })))
            .await?;
        }
        let uri = match &sockets {
            Some(paths) => format!("unix:{}", paths.stream().display()),
            None => uri(at.stream),
        };
        self.execute(Incoming(json!({ "uri": uri }))).await?;
        // Directory and sockets are closed to other users. A link leads into the directory of
        // QEMU's own user, which may point it elsewhere.
        let plain = sockets.iter().flat_map(|at| [at.stream(), at.disk()]);
        for socket in plain.filter(|socket| !socket.is_symlink()) {
            let _ = std::fs::set_permissions(socket, Permissions::from_mode(0o600));
        }
        Ok(())
    }

    /// Runs the guest that has arrived.
    ///
    /// # Errors
    /// QEMU refuses or does not answer.
    pub async fn begin(&self, with_disk: bool) -> Step {
        if with_disk {
            // After an earlier attempt QEMU refuses it. The next step reports what matters.
            drop(self.execute(NbdStop(json!({}))).await);
        }
        self.go_on().await
    }

    /// Resumes the guest.
    ///
    /// # Errors
    /// QEMU refuses, for example because another QEMU has the disk, or does not answer.
    pub async fn go_on(&self) -> Step {
        self.execute(Cont(json!({}))).await.map(drop)
    }

    /// Begins to copy the disk; encrypted by the keys in a directory, if one is given.
    ///
    /// # Errors
    /// QEMU refuses or does not answer, or the target is not reached or has other keys.
    pub async fn copy_disk(&self, via: Via, whole: bool, keys: Option<&Path>) -> Step {
        self.drop_copy_node().await?;
        let server = match via {
            Via::Address(at) => {
                let mut server = inet(at);
                server["type"] = json!("inet");
                server
            }
            Via::Descriptor(connection) => {
                self.give(TO_DISK, connection).await?;
                json!({"type": "fd", "str": TO_DISK})
            }
        };
        let mut file = json!({"driver": "nbd", "export": DRIVE, "server": server});
        if let Some(dir) = keys {
            self.load_keys(dir, Side::Client).await?;
            file["tls-creds"] = json!(Side::Client.keys());
        }
        self.execute(NodeAdd(
            json!({"driver": "raw", "node-name": COPY, "file": file}),
        ))
        .await?;
        self.execute(Mirror(json!({
            "job-id": COPY, "device": DRIVE, "target": COPY,
            "sync": if whole { "full" } else { "top" },
        })))
        .await
        .map(drop)
    }

    /// Passes a connection to QEMU, which knows it by `name` until it is used.
    async fn give(&self, name: &str, connection: OwnedFd) -> Step {
        self.attach(connection);
        self.execute(GetFd(json!({"fdname": name}))).await.map(drop)
    }

    async fn drop_copy_node(&self) -> Step {
        let nodes = self.execute(QueryNodes(json!({"flat": true}))).await?;
        let mut nodes = nodes.as_array().into_iter().flatten();
        if nodes.any(|node| node["node-name"] == COPY) {
            self.execute(NodeDel(json!({"node-name": COPY}))).await?;
        }
        Ok(())
    }

    /// Begins to send the guest; encrypted by the keys in a directory, if one is given. With
    /// `accel` TCG the guest is stopped first: that QEMU misses some of the pages that a guest
    /// writes while it is sent.
    ///
    /// # Errors
    /// QEMU refuses or does not answer.
    pub async fn send(
        &self,
        via: Via,
        with_disk: bool,
        (how, accel): (StreamOptions, Accel),
        keys: Option<&Path>,
    ) -> Step {
        // The keys of the disk's copy were loaded at its beginning and stay.
        if let Some(dir) = keys.filter(|_| !with_disk) {
            self.load_keys(dir, Side::Client).await?;
        }
        let side = keys.map(|_| Side::Client);
        self.agree(how, with_disk, side).await?;
        let uri = match via {
            Via::Address(at) => uri(at),
            Via::Descriptor(connection) => {
                self.give(TO_TARGET, connection).await?;
                format!("fd:{TO_TARGET}")
            }
        };
        if accel == Accel::Tcg {
            self.execute(Stop(json!({}))).await?;
        }
        self.execute(Migrate(json!({ "uri": uri }))).await?;
        if how.post_copy {
            self.execute(StartPostCopy(json!({}))).await?;
        }
        Ok(())
    }

    /// After the guest's stop: completes the copy of the disk, and lets the migration continue to
    /// its end.
    ///
    /// # Errors
    /// The copy does not end, or QEMU refuses or does not answer.
    pub async fn switch(&self) -> Step {
        // In sync, it ends with all writes, and the guest's own disk stays in use.
        self.execute(JobCancel(json!({"device": COPY}))).await?;
        let ended = async {
            while self.view().await?.copy.is_some() {
                tokio::time::sleep(COPY_LOOK).await;
            }
            Ok(())
        };
        tokio::time::timeout(COPY_END, ended)
            .await
            .unwrap_or_else(|_| Err(failure("block-job-cancel", "the copy does not end")))?;
        self.execute(GoOn(json!({"state": "pre-switchover"})))
            .await
            .map(drop)
    }

    /// Cancels migration and copy.
    ///
    /// # Errors
    /// QEMU refuses or does not answer.
    pub async fn call_off(&self) -> Step {
        let view = self.view().await?;
        if !matches!(
            view.migration.as_str(),
            "none" | "completed" | "failed" | "cancelled" | "cancelling"
        ) {
            self.execute(Cancel(json!({}))).await?;
        }
        if view.copy.is_some() {
            self.execute(JobCancel(json!({"device": COPY, "force": true})))
                .await?;
        }
        Ok(())
    }
}

fn inet(at: SocketAddrV4) -> Value {
    json!({"host": at.ip().to_string(), "port": at.port().to_string()})
}

fn uri(at: SocketAddrV4) -> String {
    format!("tcp:{at}")
}

fn progress(migration: &Value, state: &str) -> Progress {
    let number = |value: &Value| value.as_i64().unwrap_or(0);
    let ram = &migration["ram"];
    let down = [&migration["downtime"], &migration["expected-downtime"]];
    Progress {
        status: state.to_owned(),
        total_time_ms: number(&migration["total-time"]),
        setup_time_ms: number(&migration["setup-time"]),
        downtime_ms: down.into_iter().find_map(Value::as_i64).unwrap_or(0),
        // The caller knows whether keys were loaded.
        encrypted: false,
        ram: RamProgress {
            transferred: number(&ram["transferred"]),
            remaining: number(&ram["remaining"]),
            total: number(&ram["total"]),
        },
    }
}
