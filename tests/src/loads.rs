//! Programs that misuse memory in the database's cgroup of a real guest, while its node has free
//! memory. They run in turn on one autoscaled VM. The guest's counters are read before and after.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use protocol::vm::{VirtualMachine, VmPhase};
use serde::Deserialize;
use serde_json::json;

use crate::bellows_bin;
use crate::guest::Guest;
use crate::patience::wait_for;
use crate::site::{BOOT_PATIENCE, Site, postgres_vm};

/// Name of the VM.
pub const VM: &str = "loaded";
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
/// Path of the program in the guest.
pub const IN_GUEST: &str = "/tmp/guest-load";
/// The database's group, which the monitor watches.
pub const GROUP: &str = "/sys/fs/cgroup/postgres";
/// Longest time until the VM has its smallest size again: the agent averages, and the kernel
/// empties memory.
const SHRINK_PATIENCE: Duration = Duration::from_secs(300);

/// Behaviour of a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Load {
    /// Reads a file twice as big as the guest: page cache, none of it needed.
    Flood,
    /// Twelve programs of 24 MiB each, started as fast as they can be forked.
    Storm,
    /// 40 MiB a second, up to 1000 MiB.
    Leak,
    /// 1 GiB a second, or as fast as the guest can, up to 2 GiB.
    Climb,
}

/// Every load, in the order in which they are run.
pub const LOADS: [Load; 4] = [Load::Flood, Load::Storm, Load::Leak, Load::Climb];

impl Load {
    /// Name in figures.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Flood => "flood",
            Self::Storm => "storm",
            Self::Leak => "leak",
            Self::Climb => "climb",
        }
    }

    /// Arguments of the program.
    fn arguments(self) -> String {
        match self {
            Self::Flood => format!("flood {} /var/tmp/flood", 2 * GIB),
            Self::Storm => format!("storm 12 {} 2000", 24 * MIB),
            Self::Leak => format!("climb {} {} 0", 1000 * MIB, 40 * MIB),
            Self::Climb => format!("climb {} {GIB} 0", 2 * GIB),
        }
    }
}

/// Report of the program. Members of other loads are missing.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Done {
    /// Duration in ms.
    pub took_ms: u64,
    /// Bytes a second of taken memory, or of the read file.
    pub bytes_per_second: Option<u64>,
    /// The longest that one MiB of memory took, ms.
    pub slowest_mib_ms: Option<u64>,
    /// Time to start all children, in ms.
    pub forked_ms: Option<u64>,
}

/// Outcome of one run of a load, by the program, the guest's kernel and the monitor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Run {
    /// Report of the program. `None` if it was killed or failed.
    pub done: Option<Done>,
    /// Exit status and output of the program.
    pub output: String,
    /// Tasks killed for want of memory anywhere in the guest during the run, by the kernel's count.
    pub oom_kills: u64,
    /// Lines about it in the kernel's log.
    pub oom_lines: u64,
    /// Requests for growth the monitor sent during the run.
    pub requests: u64,
    /// In swap right after the run, bytes.
    pub swapped: u64,
}

/// Counters of the guest.
#[derive(Debug, Clone, Copy, Default)]
struct Account {
    oom_kills: u64,
    oom_lines: u64,
    swapped: u64,
}

/// Shell commands that print the counters.
const ACCOUNT: &str = "grep -w oom_kill /proc/vmstat; grep -E '^Swap(Total|Free):' /proc/meminfo; \
                       echo lines $(dmesg | grep -ciE 'out of memory|oom-kill')";
/// Separates the counters from the program's output.
const MARK: &str = "-----";

impl Account {
    fn read(text: &str) -> Result<Self> {
        let figure = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name));
            line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok())
                .with_context(|| format!("no {name} in {text:?}"))
        };
        Ok(Self {
            oom_kills: figure("oom_kill ")?,
            oom_lines: figure("lines ")?,
            swapped: (figure("SwapTotal:")? - figure("SwapFree:")?) * 1024,
        })
    }
}

/// A VM that may grow from 1 to 4 GiB, with the program in it.
pub struct Rig {
    /// Site of the VM.
    pub site: Site,
    /// Guest of the VM, from which the monitor's metrics are read.
    pub guest: Guest,
}

fn is_smallest(vm: &VirtualMachine) -> bool {
    let memory = vm.status.as_ref().and_then(|status| status.memory_size);
    memory.and_then(|size| size.as_u64()) == Some(GIB)
}

/// Copies the program into a guest as soon as ssh works.
///
/// # Errors
///
/// If that fails, or the program is not built.
pub async fn put_program(site: &Site, vm: &str) -> Result<()> {
    let program = program()?;
    wait_for("the program in the guest", BOOT_PATIENCE, || async {
        let put = format!("cat > {IN_GUEST} && chmod 755 {IN_GUEST}");
        let put = site.ssh(vm, &put, Some(&program)).await;
        put.map(drop).map_err(|error| format!("{error:#}"))
    })
    .await
}

/// The static program, beside the others that go into guests.
fn program() -> Result<PathBuf> {
    if let Some(dir) = std::env::var_os("BELLOWS_GUEST_BINS") {
        return Ok(PathBuf::from(dir).join("guest-load"));
    }
    let bellows = bellows_bin();
    let found = bellows
        .ancestors()
        .map(|dir| dir.join("x86_64-unknown-linux-gnu/guest/guest-load"))
        .find(|path| path.is_file());
    found.context("guest-load is not built: run `cargo xtask test`, or set BELLOWS_GUEST_BINS")
}

impl Rig {
    /// Boots it.
    ///
    /// # Errors
    /// When it does not come up.
    pub async fn new() -> Result<Self> {
        let site = Site::fresh().await?;
        let mut object = postgres_vm(VM, (1000, 1000, 1000), (1, 1, 4), true);
        // Limits that keep the agent's own signals from growing the VM. Growth must come from the
        // monitor.
        let config = json!({
            "loadAverageFractionTarget": 1.9,
            "memoryUsageFractionTarget": 0.99,
            "memoryTotalFractionTarget": 0.99,
            // Each load begins at the smallest size, and many follow one another.
            "downscaleHoldSeconds": 0,
            // On a busy machine a guest of one CPU has a high load. The leak ends with a shrink,
            // so that the climb is not grown for by load.
            "upscaleCooldownSeconds": 3600,
        });
        let config = config.to_string();
        object["metadata"]["annotations"] = json!({"autoscaling.neon.tech/config": config});
        site.create(&object).await?;
        let running = |vm: &VirtualMachine| {
            let status = vm.status.as_ref();
            status.is_some_and(|status| status.phase == VmPhase::Running)
        };
        let vm = site
            .wait_vm(VM, "phase Running", BOOT_PATIENCE, running)
            .await?;
        let guest = Guest::new(vm.status.context("a status")?.pod_ip.parse()?)?;
        let rig = Self { site, guest };
        put_program(&rig.site, VM).await?;
        wait_for("the swap", BOOT_PATIENCE, || async {
            let text = rig.site.ssh(VM, "cat /proc/swaps", None).await;
            match text {
                Ok(text) if text.lines().count() == 2 => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
        .await?;
        Ok(rig)
    }

    /// Requests for growth the monitor has sent so far.
    async fn requests(&self) -> Result<u64> {
        let page = self.guest.page(9100, "/metrics").await?;
        let line = page
            .lines()
            .find_map(|line| line.strip_prefix("vm_monitor_upscale_requests_total "));
        Ok(line
            .with_context(|| format!("no count of requests in {page}"))?
            .parse()?)
    }

    /// Waits until the VM is as small as it may be, in its object and in the guest.
    ///
    /// # Errors
    /// When it does not become so.
    pub async fn at_rest(&self) -> Result<()> {
        self.site
            .wait_vm(VM, "the smallest size", SHRINK_PATIENCE, is_smallest)
            .await?;
        self.guest
            .wait("1 GiB", SHRINK_PATIENCE, |state| state.mem_total.0 < GIB)
            .await
            .map(drop)
    }

    /// Runs one load from rest.
    ///
    /// # Errors
    /// When the guest does not answer any more. That the program was killed is no error here, but
    /// in the result.
    pub async fn run(&self, load: Load) -> Result<Run> {
        self.at_rest().await?;
        let requests = self.requests().await?;
        // One session for everything: keys are dear in a guest without hardware virtualisation.
        let line = format!(
            "{ACCOUNT}; echo {MARK}; {IN_GUEST} {GROUP} {} 2>&1; echo status $?; echo {MARK}; {ACCOUNT}; \
             rm -f /var/tmp/flood",
            load.arguments()
        );
        let text = self.site.ssh(VM, &line, None).await?;
        let parts: Vec<&str> = text.split(MARK).collect();
        let [before, output, after] = parts[..] else {
            bail!("not the three parts asked for: {text:?}");
        };
        let (before, after) = (Account::read(before)?, Account::read(after)?);
        let is_done = output.lines().any(|line| line == "status 0");
        let done = output.lines().find(|line| line.starts_with('{'));
        Ok(Run {
            done: done
                .filter(|_| is_done)
                .map(serde_json::from_str)
                .transpose()?,
            output: output.to_owned(),
            oom_kills: after.oom_kills - before.oom_kills,
            oom_lines: after.oom_lines.saturating_sub(before.oom_lines),
            requests: self.requests().await? - requests,
            swapped: after.swapped,
        })
    }
}
