//! Parameters of a node driver.

use std::ffi::OsString;
use std::net::Ipv4Addr;
use std::path::PathBuf;

use daemon_kit::bearer::VmKey;
use daemon_kit::clock::Clock;
use protocol::units::{Bytes, MilliCpu};

use super::orphans::Orphans;
use crate::config::{AccelChoice, Programs};
use crate::core::users::UserRange;

/// Sum of resources that the node offers to pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Allocatable {
    /// CPU that the scheduler may give to pods, in thousandths of a CPU.
    pub cpu: MilliCpu,
    /// Memory that the scheduler may give to pods, in bytes.
    pub memory: Bytes,
    /// Most pods that the node accepts.
    pub pods: u32,
}

/// Isolation of guests from the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GuestWalls {
    /// Guests are connected by passt. Each VM's processes have a user of this range, for which the
    /// node driver must be root; without a range they have the node driver's own.
    Walled(Option<UserRange>),
    /// Guests are connected by QEMU's user network, and QEMU has the node driver's user and
    /// namespaces.
    Open,
}

/// Parameters of a node driver.
#[derive(Clone)]
pub struct NodeParams {
    /// Client of the API with the node's pods.
    pub client: kube::Client,
    /// Identity of the API's store. An absent pod means a deleted one only if this store has shown
    /// it.
    pub store_id: String,
    /// Guests that are left alone because the store has no pod for them.
    pub orphans: Orphans,
    /// Name of the Node object.
    pub node_name: String,
    /// State directory of the node, with the VMs' directories in `vms/`.
    pub state_dir: PathBuf,
    /// Directory of the image store (`blobs/`, `refs/`).
    pub store_dir: PathBuf,
    /// First two bytes of the instance's loopback block, `[127, N]`.
    pub loopback: [u8; 2],
    /// Command of a runner, to which ` --rundir DIR` is appended.
    pub runner_command: Vec<OsString>,
    /// QEMU's programs. `None` uses those of image `bellows/qemu` in the store.
    pub programs: Option<Programs>,
    /// Accelerator of VMs whose spec does not forbid one.
    pub accel: AccelChoice,
    /// CPU quota in per cent of a VM's milli-CPU; 100 is strict.
    pub cpu_quota_percent: u32,
    /// Parent of QEMU's cgroups. `None` sets no quotas.
    pub cgroup_parent: Option<String>,
    /// Isolation of guests from the machine.
    pub walls: GuestWalls,
    /// Line of `authorized_keys` for every guest, in addition to its VM's own key.
    pub ssh_public_key: Option<String>,
    /// Key from which the token of each guest's monitor is derived. `None` gives guests no token.
    pub monitor_key: Option<VmKey>,
    /// Resources that the node offers to pods.
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
    /// Directory of the VMs' directories.
    #[must_use]
    pub fn vms_dir(&self) -> PathBuf {
        self.state_dir.join("vms")
    }

    /// Number of the instance, unique on the machine.
    #[must_use]
    pub fn block(&self) -> u8 {
        self.loopback[1]
    }

    /// Address of the node, which the API server also has.
    #[must_use]
    pub fn host_ip(&self) -> Ipv4Addr {
        let [a, b] = self.loopback;
        Ipv4Addr::new(a, b, 0, 1)
    }
}
