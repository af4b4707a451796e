//! Flags that describe a VM: image, bounds, disk and ports. `vm create` and `vmset create` share
//! them.

use clap::Args;
use protocol::quantity::Quantity;
use protocol::units::MilliCpu;
use protocol::vm::MEMORY_BLOCK_BYTES;
use serde_json::{Value, json};

use crate::args::parse_memory;
use crate::fail::{Fail, Outcome};
use crate::instance::SCHEDULER_NAME;
use crate::view::units::{cores, memory};

/// Image, bounds, disk and ports of a VM.
#[derive(Debug, Clone, Args)]
pub(crate) struct TemplateArgs {
    /// Image: see bellows image ls
    #[arg(long, default_value = "bellows/postgres:15", value_name = "IMAGE")]
    pub(crate) image: String,
    /// Fewest CPUs; fractions hold by a quota
    #[arg(long, default_value = "0.25", value_name = "CPUS", value_parser = parse_cpu)]
    cpu_min: MilliCpu,
    /// Most CPUs it may have
    #[arg(long, default_value = "2", value_name = "CPUS", value_parser = parse_cpu)]
    cpu_max: MilliCpu,
    /// Least memory, a multiple of the slot size
    #[arg(long, default_value = "1Gi", value_name = "SIZE", value_parser = parse_memory)]
    memory_min: Quantity,
    /// Most memory, a multiple of the slot size
    #[arg(long, default_value = "8Gi", value_name = "SIZE", value_parser = parse_memory)]
    memory_max: Quantity,
    /// Step in which memory changes, a multiple of 8Mi
    #[arg(long, default_value = "1Gi", value_name = "SIZE", value_parser = parse_memory)]
    slot_size: Quantity,
    /// Size of the root disk, if larger than the image's
    #[arg(long, value_name = "SIZE", value_parser = parse_memory)]
    disk_size: Option<Quantity>,
    /// Ports to reach at the VM's address, [NAME:]PORT; may be given again
    #[arg(long = "port", default_value = "postgres:5432", value_name = "PORT", value_parser = parse_port)]
    ports: Vec<Port>,
    /// Let the agent size it [default]
    #[arg(long, overrides_with = "no_autoscale")]
    autoscale: bool,
    /// Keep the size it is given
    #[arg(long)]
    no_autoscale: bool,
}

/// A port of the guest, given as `[NAME:]PORT`. The name may be empty.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Port {
    name: String,
    number: u16,
}

impl TemplateArgs {
    /// Whether the agent sizes the VM.
    pub(crate) fn is_autoscaled(&self) -> bool {
        !self.no_autoscale
    }

    /// The VM's spec. It holds only what differs from the API server's defaults.
    pub(crate) fn spec(&self, persistent: bool) -> Outcome<Value> {
        let slots = Slots::of(self)?;
        if self.cpu_min > self.cpu_max {
            return Err(Fail::usage(format!(
                "--cpu-min {} is above --cpu-max {}",
                cores(self.cpu_min.0),
                cores(self.cpu_max.0)
            ))
            .rule("a VM lives between its bounds"));
        }
        let mut root_disk = json!({"image": self.image});
        if let Some(size) = self.disk_size {
            root_disk["size"] = json!(size);
        }
        if persistent {
            root_disk["persistent"] = json!(true);
        }
        let ports: Vec<Value> = self
            .ports
            .iter()
            .map(|port| {
                if port.name.is_empty() {
                    json!({"port": port.number})
                } else {
                    json!({"name": port.name, "port": port.number})
                }
            })
            .collect();
        Ok(json!({
            "schedulerName": SCHEDULER_NAME,
            "guest": {
                "cpus": {"min": self.cpu_min, "max": self.cpu_max, "use": self.cpu_min},
                "memorySlotSize": self.slot_size,
                "memorySlots": {"min": slots.min, "max": slots.max, "use": slots.min},
                "rootDisk": root_disk,
                "ports": ports,
            },
        }))
    }
}

/// Bounds of the memory, in slots.
#[derive(Debug, PartialEq, Eq)]
struct Slots {
    min: u64,
    max: u64,
}

impl Slots {
    /// Most slots that the API server accepts.
    const MOST: u64 = 512;

    fn of(args: &TemplateArgs) -> Outcome<Self> {
        let slot = args.slot_size.as_u64().unwrap_or(0);
        if slot == 0 || !slot.is_multiple_of(MEMORY_BLOCK_BYTES) {
            return Err(Fail::usage(format!(
                "--slot-size {} is no multiple of 8Mi",
                args.slot_size
            ))
            .rule("memory is plugged in blocks of 8 MiB"));
        }
        let count = |flag: &str, size: Quantity| {
            let bytes = size.as_u64().unwrap_or(0);
            let wrong = |what: String| {
                Err(Fail::usage(what).rule(format!(
                    "memory changes in slots of {}, at least one, at most {}",
                    args.slot_size,
                    Self::MOST
                )))
            };
            if bytes == 0 || !bytes.is_multiple_of(slot) {
                let near = bytes.div_ceil(slot).max(1) * slot;
                return wrong(format!(
                    "{flag} {size} is no multiple of the slot size: the next one is {}",
                    memory(near)
                ));
            }
            if bytes / slot > Self::MOST {
                return wrong(format!("{flag} {size} are {} slots", bytes / slot));
            }
            Ok(bytes / slot)
        };
        let slots = Self {
            min: count("--memory-min", args.memory_min)?,
            max: count("--memory-max", args.memory_max)?,
        };
        if slots.min > slots.max {
            return Err(Fail::usage(format!(
                "--memory-min {} is above --memory-max {}",
                args.memory_min, args.memory_max
            ))
            .rule("a VM lives between its bounds"));
        }
        Ok(slots)
    }
}

fn parse_cpu(text: &str) -> Result<MilliCpu, String> {
    let cpu =
        MilliCpu::from_json(&Value::String(text.to_owned())).map_err(|error| error.to_string())?;
    if cpu.0 == 0 {
        Err("a VM needs some CPU, at least 1m".into())
    } else {
        Ok(cpu)
    }
}

fn parse_port(text: &str) -> Result<Port, String> {
    let (name, number) = text.split_once(':').unwrap_or(("", text));
    match number.parse::<u16>() {
        Ok(number) if number > 0 => Ok(Port {
            name: name.to_owned(),
            number,
        }),
        _ => Err("a port is [NAME:]PORT with a number from 1 to 65535".into()),
    }
}
