//! A real Kubernetes on this machine, in two sizes.
//!
//! * [`ControlPlane`]: etcd, kube-apiserver, kube-controller-manager and kube-scheduler as
//!   processes on loopback. Without a kubelet, tests create Node objects, and pods stay bound.
//!
//! * [`Cluster`]: a control plane with nodes that run pods, in namespaces. It needs root.
//!
//! `cargo xtask cluster build` puts the programs into the cache, see [`Programs`] and [`NodeKit`].
//! Every cluster has a private directory and one port, so any number of them run side by side.

mod caller;
mod dials;
mod files;
mod groups;
mod guests;
mod images;
mod nodes;
mod pair;
mod parts;
mod pki;
mod plane;
mod programs;
mod record;
mod relay;
mod spawn;
mod wire;

pub use caller::{Caller, apply_rights, outcome, vms};
pub use dials::{Dial, Dials, End};
pub use images::{pack_all, pack_busybox, pack_changed, pack_guest, pack_ours};
pub use nodes::Cluster;
pub use pair::Pair;
pub use parts::is_ready;
pub(crate) use plane::until_established;
pub use plane::{AUDIT_LOG, AUDIT_POLICY, ControlPlane, Tier};
pub use programs::{
    CertManager, NodeKit, Programs, cert_manager_or_skip, cluster_or_skip, helm_or_skip,
    kubectl_or_skip, multus_or_skip, nodes_or_skip,
};
pub use record::{Part, end, running};
pub use relay::{Relay, relay};
pub use spawn::Lifetime;
pub(crate) use spawn::spawn;
pub use wire::{Wire, holds};
