//! Which accelerator works here.
//!
//! `/dev/kvm` may exist, open and even run a few real-mode instructions, and yet hang as soon as a
//! kernel enters long mode (nested hosts without hardware virtualisation). So `auto` boots a guest
//! of its own, 64 KiB of firmware without BIOS or kernel ([`rom`]), under KVM and, as a control,
//! under TCG: if the control passes and KVM does not, KVM does not work. The verdict holds for one
//! boot of the host's kernel and one QEMU version, and is remembered.

pub mod knowledge;
pub mod probe;
pub mod rom;

pub use probe::{Finding, ResolvedAccel, probe, resolve};
