//! The arguments of `bellows up`.

use std::path::PathBuf;

use clap::Args;
use neonvm_runner::config::AccelChoice;
use neonvm_runner::node::UserRange;
use protocol::quantity::Quantity;
use protocol::units::MilliCpu;

use crate::args::parse_memory;

/// Start everything on this machine, in one process.
///
/// Prints one line of JSON with all addresses on standard output as soon as everything is ready,
/// and says the same in words on standard error. Guests of an earlier run are taken over as they
/// are.
#[derive(Debug, Clone, Args)]
pub(crate) struct UpArgs {
    /// Name of this machine's Node object [default: the host name]
    #[arg(long, value_name = "NAME")]
    pub(super) node_name: Option<String>,
    /// N of the loopback block 127.N.0.0/16 for all addresses [default: a free one, chosen once]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(2..=250))]
    pub(super) block: Option<u8>,
    /// CPU that VMs may use together [default: all]
    #[arg(long, value_name = "CPUS", value_parser = super::machine::parse_cpu)]
    pub(super) allocatable_cpu: Option<MilliCpu>,
    /// Memory that VMs may use together [default: all but a tenth, at least 512Mi]
    #[arg(long, value_name = "SIZE", value_parser = parse_memory)]
    pub(super) allocatable_memory: Option<Quantity>,
    /// Accelerator of guests: auto boots a tiny guest once to learn whether KVM works here
    #[arg(long, value_enum, default_value_t, value_name = "ACCEL")]
    pub(super) accel: AccelArg,
    /// CPU time of a VM in per cent of the CPU it was granted; 100 holds it to exactly that
    #[arg(long, value_name = "PERCENT", default_value_t = 100, value_parser = clap::value_parser!(u32).range(50..=1000))]
    pub(super) cpu_quota_percent: u32,
    /// What connects guests: passt lets them reach names and the outside, never this machine; user
    /// is QEMU's own user network, without that wall
    #[arg(long, value_enum, default_value_t, value_name = "NETWORK")]
    pub(super) guest_network: GuestNetworkArg,
    /// First of 65536 users, one for each VM's processes; as root only [default: by the block]
    #[arg(long, value_name = "UID", value_parser = parse_users)]
    pub(super) vm_users: Option<UserRange>,
    /// Agent's configuration [default: built in]
    #[arg(long, value_name = "FILE")]
    pub(super) agent_config: Option<PathBuf>,
    /// Scheduler's configuration [default: built in]
    #[arg(long, value_name = "FILE")]
    pub(super) scheduler_config: Option<PathBuf>,
    /// File that a line for each call of the API is appended to, as an Event of audit.k8s.io/v1
    /// [default: none]
    #[arg(long, value_name = "FILE")]
    pub(super) audit_log: Option<PathBuf>,
    /// Return when everything is ready and leave it running in the background
    #[arg(long)]
    pub(super) detach: bool,
    #[command(flatten)]
    pub(super) peers: super::peers::PeersArgs,
}

/// An accelerator, or the choice left to us.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub(crate) enum AccelArg {
    /// KVM if a guest boots with it, else TCG.
    #[default]
    Auto,
    /// Hardware virtualization by KVM.
    Kvm,
    /// Emulation by QEMU's TCG, which is slower and needs no rights.
    Tcg,
}

/// What connects guests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub(crate) enum GuestNetworkArg {
    /// The program passt.
    #[default]
    Passt,
    /// QEMU's user network.
    User,
}

impl AccelArg {
    /// The same choice in the runner's configuration.
    pub(super) fn choice(self) -> AccelChoice {
        match self {
            Self::Auto => AccelChoice::Auto,
            Self::Kvm => AccelChoice::Kvm,
            Self::Tcg => AccelChoice::Tcg,
        }
    }
}

fn parse_users(text: &str) -> Result<UserRange, String> {
    let first = text
        .parse()
        .map_err(|_| "must be the number of a user".to_owned())?;
    UserRange::new(first).ok_or_else(|| "must be at least 1 and at most 4294901759".to_owned())
}
