//! Shared code of `bellows vm resize-disk`, `backup` and `restore`: the place of a VM's root disk,
//! and the free disk space.

use std::path::{Path, PathBuf};

use clap::Args;
use neonvm_runner::core::root_disk::{DISK_FILE, DiskRecord, RECORD_FILE};
use neonvm_runner::shell::qmp::{self, Qmp};
use neonvm_runner::shell::walls;
use serde_json::{Value, json};

use crate::api::{Api, Kind};
use crate::args::VmArgs;
use crate::context::Context;
use crate::fail::{Fail, Outcome};
use crate::places::StateDir;
use crate::terminal::{err, out};
use crate::view::units::memory;
use crate::vm_state::has_persistent_disk;
use protocol::quantity::Quantity;

/// Make the root disk of a VM larger, also while its guest runs. A disk never shrinks.
#[derive(Debug, Clone, Args)]
pub(crate) struct ResizeDiskArgs {
    #[command(flatten)]
    vm: VmArgs,
    /// The new size, such as 20Gi
    #[arg(value_name = "SIZE", value_parser = crate::args::parse_memory)]
    size: Quantity,
}

/// A VM with a persistent root disk, and that disk.
pub(crate) struct VmDisk {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) vm: Value,
    pub(crate) path: PathBuf,
    pub(crate) record: DiskRecord,
    state: StateDir,
}

impl VmDisk {
    /// Finds the root disk of a VM on this machine.
    pub(crate) async fn find(context: &Context, api: &Api, args: &VmArgs) -> Outcome<Self> {
        not_in_a_cluster(context)?;
        let (namespace, name) = args.key();
        let vm = api.get(Kind::Vm, namespace, name).await?;
        let shown = format!("VM {namespace}/{name}");
        if !has_persistent_disk(&vm) {
            return Err(Fail::usage(format!("{shown} has no disk that stays"))
                .rule("only a VM with rootDisk.persistent has one"));
        }
        let state = context.state()?;
        let dir = dir_of(&state, namespace, name);
        let record = dir.join(RECORD_FILE);
        let text = std::fs::read_to_string(&record).map_err(|error| {
            Fail::missing(format!("{}: {error}", record.display()))
                .rule("the disk is made at the first start of its VM")
        })?;
        let record = serde_json::from_str(&text)
            .map_err(|error| Fail::missing(format!("{}: {error}", record.display())))?;
        Ok(Self {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            vm,
            path: dir.join(DISK_FILE),
            record,
            state,
        })
    }

    pub(crate) fn key(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }

    /// Connects to QEMU's second monitor. `None` if the VM has no pod.
    pub(crate) async fn qemu(&self) -> Outcome<Option<Qmp>> {
        let pod = self.vm["status"]["podName"].as_str().unwrap_or_default();
        if pod.is_empty() {
            return Ok(None);
        }
        let rundir = self.state.vms().join(format!("{}_{pod}", self.namespace));
        let user =
            walls::qemu_user(&rundir).map_err(|error| Fail::missing(daemon_kit::chain(&error)))?;
        let connected = qmp::connect(&rundir.join("qmp-manual.sock"), user).await;
        let read = |(qmp, mut events): (Qmp, tokio::sync::mpsc::Receiver<_>)| {
            // The connection ends if no task reads its events.
            tokio::spawn(async move { while events.recv().await.is_some() {} });
            Some(qmp)
        };
        connected.map(read).map_err(|error| {
            Fail::try_again(format!(
                "QEMU of VM {}: {}",
                self.key(),
                daemon_kit::chain(&error)
            ))
            .rule("the disk of a VM that has a pod is QEMU's")
            .fix("try again once the VM runs, or stop it: bellows vm stop")
        })
    }
}

/// Directory of a VM's root disk.
pub(crate) fn dir_of(state: &StateDir, namespace: &str, name: &str) -> PathBuf {
    state.disks().join(format!("{namespace}_{name}"))
}

/// Fails in a cluster: disks are files of this machine.
pub(crate) fn not_in_a_cluster(context: &Context) -> Outcome {
    if !context.asks_cluster() {
        return Ok(());
    }
    Err(
        Fail::usage("a cluster's disks are not files of this machine")
            .fix("leave --kubeconfig out, or use what your storage class offers"),
    )
}

/// Fails unless the file system of `place` has `bytes` of free space.
pub(crate) fn need_disk_space(place: &Path, bytes: u64, what: &str) -> Outcome {
    let free = nix::sys::statvfs::statvfs(place)
        .map_err(|error| Fail::missing(format!("{}: {error}", place.display())))?;
    let free = free.blocks_available().saturating_mul(free.fragment_size());
    if free >= bytes {
        return Ok(());
    }
    Err(Fail::missing(format!(
        "{what} may need {} on the file system of {}, which has {} free",
        memory(bytes),
        place.display(),
        memory(free)
    ))
    .rule("nothing was changed")
    .fix("make room there"))
}

pub(crate) async fn resize(context: &Context, args: &ResizeDiskArgs) -> Outcome {
    let api = context.api().await?;
    let disk = VmDisk::find(context, &api, &args.vm).await?;
    let (key, bytes) = (disk.key(), args.size.as_u64().unwrap_or(0));
    let has = disk.record.bytes;
    if bytes <= has {
        return Err(Fail::usage(format!(
            "the root disk of VM {key} has {}, which is not less than {}",
            memory(has),
            args.size
        ))
        .rule("a disk grows and never shrinks"));
    }
    need_disk_space(&disk.path, bytes - has, "the growth")?;
    let qemu = disk.qemu().await?;
    let patch = json!({"spec": {"guest": {"rootDisk": {"size": args.size}}}});
    api.merge(Kind::Vm, &disk.namespace, &disk.name, &patch)
        .await?;
    let Some(qemu) = qemu else {
        out(&format!(
            "the root disk of VM {key} grows at its next start"
        ));
        return Ok(());
    };
    qemu.grow_root_disk(bytes).await.map_err(|failure| {
        Fail::missing(format!("QEMU does not grow the disk: {}", failure.message))
            .rule("the VM object has the new size")
            .fix("the disk grows at the next start: bellows vm restart")
    })?;
    drop(qemu);
    out(&format!("the root disk of VM {key} has {}", args.size));
    if !grow_file_system(context, &key) {
        err("its file system grows at the next start of the guest, or by resize2fs /dev/vda in it");
    }
    Ok(())
}

/// Grows the guest's file system. Returns whether the guest did it.
fn grow_file_system(context: &Context, key: &str) -> bool {
    let (Ok(exe), Ok(state)) = (std::env::current_exe(), context.state()) else {
        return false;
    };
    let ended = std::process::Command::new(exe)
        .arg("ssh")
        .arg("--state-dir")
        .arg(state.path())
        .args([key, "--", "resize2fs /dev/vda"])
        .stdin(std::process::Stdio::null())
        .output();
    ended.is_ok_and(|ended| ended.status.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_disk_space_is_refused_with_both_figures() {
        let dir = tempfile::tempdir().unwrap();
        need_disk_space(dir.path(), 1, "the growth").unwrap();
        let fail = need_disk_space(dir.path(), u64::MAX, "the growth").unwrap_err();
        assert!(
            fail.what().contains("may need") && fail.what().contains("free"),
            "{fail}"
        );
    }
}
