//! Capacity of this machine, and the share of it that VMs may use.

use neonvm_runner::node::Allocatable;
use protocol::quantity::Quantity;
use protocol::units::{Bytes, MilliCpu, Resources};
use serde_json::Value;

use crate::fail::{Fail, Outcome};

/// Most pods of the node. A block has more addresses, and a machine memory for fewer.
const MOST_PODS: u32 = 1000;
/// Smallest amount that is left to the host by default.
const LEAST_RESERVE_BYTES: u64 = 512 << 20;

/// The resources that VMs may use together.
///
/// # Errors
///
/// 64 if more is requested than the machine has, 69 if the machine cannot be read.
pub(crate) fn share(cpu: Option<MilliCpu>, memory: Option<Quantity>) -> Outcome<Allocatable> {
    let cores = std::thread::available_parallelism()
        .map_err(|error| Fail::missing(format!("the CPUs cannot be counted: {error}")))?;
    let milli = u32::try_from(cores.get())
        .unwrap_or(u32::MAX)
        .saturating_mul(1000);
    let total = procfs::Current::current()
        .map(|info: procfs::Meminfo| info.mem_total)
        .map_err(|error| Fail::missing(format!("/proc/meminfo cannot be read: {error}")))?;
    let share = allocatable(Resources::new(milli, total), cpu, memory)?;
    Ok(Allocatable {
        cpu: share.cpu,
        memory: share.mem,
        pods: MOST_PODS,
    })
}

fn allocatable(
    capacity: Resources,
    cpu: Option<MilliCpu>,
    memory: Option<Quantity>,
) -> Outcome<Resources> {
    let cpu = cpu.unwrap_or(capacity.cpu);
    let memory = match memory {
        Some(memory) => Bytes(memory.as_u64().unwrap_or(0)),
        None => Bytes(
            capacity
                .mem
                .0
                .saturating_sub((capacity.mem.0 / 10).max(LEAST_RESERVE_BYTES)),
        ),
    };
    let rule = "what is granted to VMs must really be there";
    if memory > capacity.mem {
        return Err(Fail::usage(format!(
            "--allocatable-memory {memory} is more than the machine's {}",
            capacity.mem
        ))
        .rule(rule));
    }
    // CPU may exceed the cores. Quotas divide it, and VMs only get slower.
    Ok(Resources { cpu, mem: memory })
}

/// Parses a CPU amount above zero.
pub(crate) fn parse_cpu(text: &str) -> Result<MilliCpu, String> {
    match MilliCpu::from_json(&Value::String(text.to_owned())) {
        Ok(cpu) if cpu.0 > 0 => Ok(cpu),
        Ok(_) => Err("zero CPU is nothing to give".into()),
        Err(error) => Err(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_keeps_a_tenth_but_never_less_than_half_a_gigabyte() {
        let of = |gib: u64| allocatable(Resources::new(4000, gib << 30), None, None).unwrap();
        assert_eq!(of(20).mem, Bytes(18 << 30));
        assert_eq!(of(1).mem, Bytes(512 << 20));
        assert_eq!(of(20).cpu, MilliCpu(4000));
    }

    #[test]
    fn more_memory_than_the_machine_has_is_refused() {
        let capacity = Resources::new(2000, 4 << 30);
        let fail = allocatable(capacity, None, Some(Quantity::from_bytes(5 << 30))).unwrap_err();
        assert_eq!(fail.exit() as u8, 64);
        assert!(
            fail.what().contains("5Gi") && fail.what().contains("4Gi"),
            "{fail}"
        );
        assert_eq!(
            allocatable(capacity, Some(MilliCpu(8000)), None)
                .unwrap()
                .cpu,
            MilliCpu(8000)
        );
        assert!(parse_cpu("0").is_err() && parse_cpu("x").is_err());
    }

    #[test]
    fn this_machine_has_something_to_share() {
        let share = share(None, None).unwrap();
        assert!(share.cpu.0 >= 1000 && share.memory.0 > 0);
    }
}
