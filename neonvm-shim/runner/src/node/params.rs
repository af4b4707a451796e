//! What a node driver is told.

use std::ffi::OsString;
use std::net::Ipv4Addr;
use std::path::PathBuf;

use daemon_kit::bearer::VmKey;
use daemon_kit::clock::Clock;
use protocol::units::{Bytes, MilliCpu};

use super::orphans::Orphans;
use crate::config::{AccelChoice, Programs};
use crate::core::users::UserRange;

/// What pods of the node may use altogether.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Allocatable {
    /// CPU that the scheduler may give to pods, in thousandths of a CPU.
    pub cpu: MilliCpu,
    /// Memory that the scheduler may give to pods, in bytes.
    pub memory: Bytes,
    /// Most pods that the node takes.
    pub pods: u32,
}

/// How guests are kept from the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GuestWalls {
    /// Guests are connected by passt. Each VM's processes have a user of this range, for which the
    /// node driver must be root; without a range they have the node driver's own.
    Walled(Option<UserRange>),
    /// Guests are connected by QEMU's user network, and QEMU has the node driver's user and
    /// namespaces.
    Open,
}

/// Everything a node driver needs.
#[derive(Clone)]
pub struct NodeParams {
    /// Client of the Kubernetes API.
    pub client: kube::Client,
    /// Identity of the API's store. An absent pod means a deleted one only if this store has shown
    /// it.
    pub store_id: String,
    /// The guests that are left alone because the store has no pod for them.
    pub orphans: Orphans,
    /// Name of the Node object.
    pub node_name: String,
    /// The instance's state directory; VMs live in `vms/` below it.
    pub state_dir: PathBuf,
    /// The image store (`blobs/`, `refs/`).
    pub store_dir: PathBuf,
    /// First two bytes of the instance's loopback block, `[127, N]`.
    pub loopback: [u8; 2],
    /// The command that runs a runner; ` --rundir DIR` is appended.
    pub runner_command: Vec<OsString>,
    /// QEMU's programs; `None` takes those of image `bellows/qemu` in the store.
    pub programs: Option<Programs>,
    /// The accelerator of VMs that do not forbid one.
    pub accel: AccelChoice,
    /// CPU quota in per cent of a VM's milli-CPU; 100 is strict.
    pub cpu_quota_percent: u32,
    /// Cgroup under which each QEMU gets its own; `None` sets no quotas.
    pub cgroup_parent: Option<String>,
    /// How guests are kept from the machine.
    pub walls: GuestWalls,
    /// An `authorized_keys` line that is let into every guest, beside its VM's own key.
    pub ssh_public_key: Option<String>,
    /// Derives the token that the agent shows to each guest's monitor; `None` gives guests none to
    /// ask for.
    pub monitor_key: Option<VmKey>,
    /// What pods may use.
    pub allocatable: Allocatable,
    /// Clock for the times that the node driver writes into the API.
    pub clock: Clock,
}

impl std::fmt::Debug for NodeParams {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NodeParams")
            .field("node_name", &self.node_name)
            .field("state_dir", &self.state_dir)
            .field("store_dir", &self.store_dir)
            .finish_non_exhaustive()
    }
}

impl NodeParams {
    /// Where the VMs' directories are.
    #[must_use]
    pub fn vms_dir(&self) -> PathBuf {
        self.state_dir.join("vms")
    }

    /// The instance's number, which tells it from others on the machine.
    #[must_use]
    pub fn block(&self) -> u8 {
        self.loopback[1]
    }

    /// The node's own address: the one the API server has.
    #[must_use]
    pub fn host_ip(&self) -> Ipv4Addr {
        let [a, b] = self.loopback;
        Ipv4Addr::new(a, b, 0, 1)
    }
}
