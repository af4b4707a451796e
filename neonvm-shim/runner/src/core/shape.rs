//! The immutable shape of a QEMU from the VM's spec: CPUs at boot and at most, and where memory is.
//!
//! The smallest size becomes boot CPUs and boot memory, which can never be unplugged. The rest of
//! the initial size is on the command line in removable form, so that a VM boots at its full size.
//!
//! Under TCG a VM boots with one CPU, and gets the others when its guest answers. QEMU 10.0 died at
//! boot (`msix_table_mmio_write: Assertion`, once in a hundred boots) when a second vCPU ran while
//! the first one laid out the PCI devices.

use protocol::units::{Bytes, MilliCpu, Resources};
use protocol::vm::{CpuScalingMode, Guest, MEMORY_BLOCK_BYTES};
use serde::{Deserialize, Serialize};

use super::budget::PlugBudget;
use crate::config::Accel;

/// Least `maxcpus` under TCG: the number of vCPU threads that a TCG QEMU may start in its life.
pub const TCG_LIFETIME_CPUS: u32 = 64;
/// Spare lifetime plugs under TCG for a VM whose largest size is near [`TCG_LIFETIME_CPUS`].
pub const TCG_SPARE_PLUGS: u32 = 48;
/// Most CPUs of machine type q35 without an interrupt-remapping unit.
pub const MAX_CPUS: u32 = 255;
/// Least boot memory with which a Linux guest was observed to boot with our command line.
pub const MIN_BASE: Bytes = Bytes::mib(128);

/// Mechanism that adds and removes CPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CpuControl {
    /// QEMU plugs and unplugs CPU devices.
    Plug,
    /// The guest switches CPUs, which are all plugged from the start.
    Guest,
}

/// A QEMU's immutable features and its first size.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shape {
    /// Mechanism that adds and removes CPUs.
    pub control: CpuControl,
    /// CPUs at boot that cannot be unplugged.
    pub boot_cpus: u32,
    /// Fewest CPUs an order may ask for.
    pub min_cpus: u32,
    /// Removable CPUs on the command line.
    pub early_cpus: u32,
    /// Most CPUs an order may ask for.
    pub max_cpus: u32,
    /// QEMU's `maxcpus`: [`Shape::max_cpus`], and more where TCG plugs CPUs.
    pub sockets: u32,
    /// vCPU threads that QEMU may still start; `None` is no bound.
    pub budget: Option<PlugBudget>,
    /// Memory at boot, which can never be taken away.
    pub base: Bytes,
    /// Size of the virtio-mem device in bytes; zero is no device.
    pub device: Bytes,
    /// Part of the device that is requested at the start.
    pub early_memory: Bytes,
    /// Size that the VM boots with.
    pub initial: Resources,
    /// CPU limit of the largest size.
    pub max_cpu: MilliCpu,
    /// The guest has a port for the log of its programs. A QEMU of an older runner has none.
    #[serde(default)]
    pub log_port: bool,
    /// A network device behind passt announces its MTU ([`super::passt::LARGEST_FRAME`]). One of an
    /// older runner does not, and the guest then uses 1500 bytes.
    #[serde(default)]
    pub large_frames: bool,
}

/// Errors of a spec for which no QEMU can be built.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ShapeError {
    /// The slot size is zero or not a multiple of the block.
    #[error("memorySlotSize {0} is not a multiple of 8Mi")]
    SlotSize(Bytes),
    /// Boot memory is below [`MIN_BASE`].
    #[error("{0} of boot memory (memorySlots.min) is less than {MIN_BASE}")]
    Base(Bytes),
    /// `min <= use <= max` does not hold for this member.
    #[error("{0}: min <= use <= max does not hold")]
    Order(&'static str),
    /// The spec has more CPUs than the machine type supports.
    #[error("{0} CPUs are more than {MAX_CPUS}")]
    Cpus(u32),
}

/// Computes the shape of a spec.
///
/// # Errors
/// [`ShapeError`] for a spec that admission should have refused.
pub fn shape(guest: &Guest, control: CpuControl, accel: Accel) -> Result<Shape, ShapeError> {
    let slot = guest.slot_bytes();
    if slot == 0 || !slot.is_multiple_of(MEMORY_BLOCK_BYTES) {
        return Err(ShapeError::SlotSize(Bytes(slot)));
    }
    let (cpus, slots) = (guest.cpus, guest.memory_slots);
    if !(cpus.min <= cpus.r#use && cpus.r#use <= cpus.max) {
        return Err(ShapeError::Order("cpus"));
    }
    if !(0 < slots.min && slots.min <= slots.r#use && slots.r#use <= slots.max) {
        return Err(ShapeError::Order("memorySlots"));
    }
    let (smallest, initial, largest) = (guest.smallest(), guest.in_use(), guest.largest());
    if smallest.mem < MIN_BASE {
        return Err(ShapeError::Base(smallest.mem));
    }
    let cores = |cpu: MilliCpu| cpu.rounded_up_cores().max(1);
    let max_cpus = cores(cpus.max);
    if max_cpus > MAX_CPUS {
        return Err(ShapeError::Cpus(max_cpus));
    }
    let one_at_boot = accel == Accel::Tcg;
    let (boot_cpus, early_cpus) = match control {
        CpuControl::Plug if one_at_boot => (1, 0),
        CpuControl::Plug => (cores(cpus.min), cores(cpus.r#use) - cores(cpus.min)),
        CpuControl::Guest => (max_cpus, 0),
    };
    let min_cpus = if control == CpuControl::Plug {
        cores(cpus.min)
    } else {
        1
    };
    let budgeted = accel == Accel::Tcg && control == CpuControl::Plug;
    let sockets = if budgeted {
        (max_cpus + TCG_SPARE_PLUGS).clamp(TCG_LIFETIME_CPUS, MAX_CPUS)
    } else {
        max_cpus
    };
    Ok(Shape {
        control,
        boot_cpus,
        min_cpus,
        early_cpus,
        max_cpus,
        sockets,
        budget: budgeted.then(|| PlugBudget::new(sockets, boot_cpus + early_cpus)),
        base: smallest.mem,
        device: Bytes(largest.mem.0 - smallest.mem.0),
        early_memory: Bytes(initial.mem.0 - smallest.mem.0),
        initial,
        max_cpu: cpus.max,
        log_port: true,
        large_frames: true,
    })
}

/// Chooses the mechanism by the spec. A guest kernel that is known not to see hot-plugged CPUs gets
/// [`CpuControl::Guest`].
#[must_use]
pub fn control(mode: Option<CpuScalingMode>, kernel_is_blind: bool) -> CpuControl {
    match mode {
        Some(CpuScalingMode::SysfsScaling) => CpuControl::Guest,
        _ if kernel_is_blind => CpuControl::Guest,
        Some(CpuScalingMode::QmpScaling) | None => CpuControl::Plug,
    }
}

impl Shape {
    /// CPUs that a limit needs, at least one.
    #[must_use]
    pub fn cpus_for(&self, cpu: MilliCpu) -> u32 {
        cpu.rounded_up_cores().max(1)
    }

    /// Why an order of this size cannot be carried out. `None` if it can.
    #[must_use]
    pub fn refuses(&self, size: Resources) -> Option<String> {
        let (cpus, most) = (self.cpus_for(size.cpu), self.base.0 + self.device.0);
        let least_cpus = self.min_cpus;
        if cpus > self.max_cpus || cpus < least_cpus {
            return Some(format!(
                "{} CPU is outside {least_cpus} to {} cores",
                size.cpu, self.max_cpus
            ));
        }
        if size.mem < self.base || size.mem.0 > most {
            return Some(format!(
                "{} is outside {} to {}",
                size.mem,
                self.base,
                Bytes(most)
            ));
        }
        if !(size.mem.0 - self.base.0).is_multiple_of(MEMORY_BLOCK_BYTES) {
            return Some(format!(
                "{} is not {} and a multiple of 8Mi",
                size.mem, self.base
            ));
        }
        None
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use protocol::quantity::Quantity;
    use protocol::vm::{CpuBounds, MemorySlots};

    pub(crate) fn guest(cpus: [u32; 3], slots: [i32; 3], slot: u64) -> Guest {
        let [min, r#use, max] = cpus.map(MilliCpu);
        Guest {
            cpus: CpuBounds { min, r#use, max },
            memory_slots: MemorySlots {
                min: slots[0],
                r#use: slots[1],
                max: slots[2],
            },
            memory_slot_size: Quantity::from_bytes(slot),
            ..Guest::default()
        }
    }

    #[test]
    fn vm_boots_at_the_size_in_use_with_the_smallest_size_fixed() {
        let guest = guest([1250, 2500, 4000], [1, 3, 5], 1 << 30);
        let kvm = shape(&guest, CpuControl::Plug, Accel::Kvm).expect("sound");
        assert_eq!(
            (kvm.boot_cpus, kvm.early_cpus, kvm.max_cpus, kvm.min_cpus),
            (2, 1, 4, 2)
        );
        assert_eq!(
            (kvm.base, kvm.early_memory, kvm.device),
            (Bytes::gib(1), Bytes::gib(2), Bytes::gib(4))
        );
    }

    #[test]
    fn tcg_boots_one_cpu_and_has_a_budget() {
        let guest = guest([1250, 2500, 4000], [1, 3, 5], 1 << 30);
        let tcg = shape(&guest, CpuControl::Plug, Accel::Tcg).expect("sound");
        assert_eq!(
            (tcg.boot_cpus, tcg.early_cpus, tcg.max_cpus, tcg.min_cpus),
            (1, 0, 4, 2)
        );
        assert_eq!((tcg.sockets, tcg.budget.map(|b| b.left())), (64, Some(63)));
        assert!(
            tcg.refuses(Resources::new(1000, 1 << 30)).is_some(),
            "two cores are the least"
        );
    }

    #[test]
    fn guest_control_plugs_all_cpus_at_the_start_without_a_budget() {
        let guest = guest([250, 250, 4000], [1, 1, 1], 1 << 30);
        let sysfs = shape(&guest, CpuControl::Guest, Accel::Tcg).expect("sound");
        assert_eq!(
            (sysfs.boot_cpus, sysfs.early_cpus, sysfs.sockets),
            (4, 0, 4)
        );
        assert_eq!((sysfs.budget, sysfs.device), (None, Bytes(0)));
        let kvm = shape(&guest, CpuControl::Plug, Accel::Kvm).expect("sound");
        assert_eq!((kvm.boot_cpus, kvm.sockets, kvm.budget), (1, 4, None));
    }

    #[test]
    fn invalid_specs_are_named() {
        let of = |guest: &Guest| shape(guest, CpuControl::Plug, Accel::Tcg).unwrap_err();
        assert_eq!(
            of(&guest([1, 1, 1], [1, 1, 1], 1 << 20)),
            ShapeError::SlotSize(Bytes::mib(1))
        );
        assert_eq!(
            of(&guest([2, 1, 2], [1, 1, 1], 1 << 30)),
            ShapeError::Order("cpus")
        );
        assert_eq!(
            of(&guest([1, 1, 1], [0, 1, 1], 1 << 30)),
            ShapeError::Order("memorySlots")
        );
        assert_eq!(
            of(&guest([1, 1, 1], [1, 1, 1], 64 << 20)),
            ShapeError::Base(Bytes::mib(64))
        );
        assert_eq!(
            of(&guest([1, 1, 256_000], [1, 1, 1], 1 << 30)),
            ShapeError::Cpus(256)
        );
    }

    #[test]
    fn orders_outside_the_shape_are_refused() {
        let shape = shape(
            &guest([1000, 1000, 2000], [1, 1, 2], 1 << 30),
            CpuControl::Plug,
            Accel::Tcg,
        )
        .expect("sound");
        assert_eq!(shape.refuses(Resources::new(250, 1 << 30)), None);
        assert_eq!(shape.refuses(Resources::new(2000, 2 << 30)), None);
        for bad in [
            (2001, 1 << 30),
            (1000, 3 << 30),
            (1000, 1 << 29),
            (1000, (1 << 30) + (1 << 20)),
        ] {
            assert!(
                shape.refuses(Resources::new(bad.0, bad.1)).is_some(),
                "{bad:?}"
            );
        }
    }

    #[test]
    fn blind_kernel_switches_cpus_in_the_guest() {
        assert_eq!(control(None, false), CpuControl::Plug);
        assert_eq!(
            control(Some(CpuScalingMode::QmpScaling), true),
            CpuControl::Guest
        );
        assert_eq!(
            control(Some(CpuScalingMode::SysfsScaling), false),
            CpuControl::Guest
        );
    }
}
