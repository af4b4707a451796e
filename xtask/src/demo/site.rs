//! One running `bellows up` and its VMs, driven as a user would: by the `bellows` and `kubectl`
//! commands.

use std::io::{BufRead as _, BufReader};
use std::net::{IpAddr, SocketAddr};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use super::report::{Resize, Sample};
use super::watch::Watch;
use crate::{http, interrupt};

/// Longest boot of a guest on a busy machine without KVM.
pub(super) const BOOT_PATIENCE: Duration = Duration::from_secs(180);
/// Name of the demo's VM.
pub(crate) const VM: &str = "demo";

/// A site with its own state directory. Dropping it ends everything it started, guests too.
pub(crate) struct Site {
    bellows: PathBuf,
    state: PathBuf,
    up: Option<Child>,
}

impl Site {
    /// Starts `bellows up` on a state directory and waits for its ready line.
    pub(crate) fn up(bellows: &Path, state: &Path) -> Result<Self> {
        let mut site = Self {
            bellows: bellows.into(),
            state: state.into(),
            up: None,
        };
        site.start()?;
        Ok(site)
    }

    /// Starts `bellows up`, at first or after its end, and waits for its ready line.
    pub(super) fn start(&mut self) -> Result<()> {
        let log = self.state.join("up.log");
        let file = std::fs::File::options()
            .create(true)
            .append(true)
            .open(&log)
            .context("open up.log")?;
        let mut child = self
            .command(&["up"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(file)
            // Ctrl-C reaches this process only, which ends the others and the guests.
            .process_group(0)
            .spawn()
            .context("could not start bellows up")?;
        let stdout = child.stdout.take().context("bellows up has no stdout")?;
        self.up = Some(child);
        let mut lines = BufReader::new(stdout).lines();
        let ready = lines
            .by_ref()
            .map_while(Result::ok)
            .find(|line| line.starts_with('{'));
        // Keep reading, so that the process never blocks on a full pipe.
        std::thread::spawn(move || lines.map_while(Result::ok).for_each(drop));
        if ready.is_none() {
            let log = std::fs::read_to_string(log).unwrap_or_default();
            bail!(
                "bellows up ended before it was ready:\n{}",
                log.lines().rev().take(20).collect::<Vec<_>>().join("\n")
            );
        }
        Ok(())
    }

    /// Ends `bellows up` by signal 9. Guests and runners go on.
    pub(super) fn kill(&mut self) -> Result<()> {
        if let Some(mut child) = self.up.take() {
            child.kill()?;
            child.wait()?;
        }
        Ok(())
    }

    /// A `bellows` command on this site.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.bellows);
        command.args(arguments).arg("--state-dir").arg(&self.state);
        command
    }

    pub(super) fn kubectl(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("kubectl");
        command
            .arg("--kubeconfig")
            .arg(self.state.join("kubeconfig"))
            .args(arguments);
        command
    }

    pub(crate) fn vm(&self) -> Result<Value> {
        self.object("neonvm", VM)
    }

    /// An object of the namespace `default`.
    pub(super) fn object(&self, kind: &str, name: &str) -> Result<Value> {
        let mut command = self.kubectl(&["get", kind, name, "-o", "json"]);
        let text = crate::shell::output(&mut command)?;
        serde_json::from_str(&text).context("kubectl did not answer with JSON")
    }

    /// The same, or nothing if there is no such object.
    pub(super) fn object_if_there(&self, kind: &str, name: &str) -> Result<Option<Value>> {
        let mut command = self.kubectl(&["get", kind, name, "-o", "json", "--ignore-not-found"]);
        let text = crate::shell::output(&mut command)?;
        let object = (!text.trim().is_empty()).then(|| serde_json::from_str(&text));
        object
            .transpose()
            .context("kubectl did not answer with JSON")
    }

    /// Watches the VM object from now on.
    pub(super) fn watch(&self) -> Result<Watch> {
        Watch::start(&mut self.kubectl(&["get", "neonvm", VM, "-o", "json", "--watch"]))
    }

    /// Waits until the VM has phase Running. Passes what it waits for to `tell`.
    pub(crate) fn wait_running(
        &self,
        name: &str,
        patience: Duration,
        mut tell: impl FnMut(&str),
    ) -> Result<Value> {
        let began = Instant::now();
        loop {
            interrupt::check()?;
            let vm = self.object("neonvm", name)?;
            let phase = vm["status"]["phase"].as_str().unwrap_or("new").to_owned();
            if phase == "Running" {
                return Ok(vm);
            }
            tell(&phase);
            if phase == "Failed" || began.elapsed() > patience {
                bail!(
                    "the VM is {phase} after {:?}: {}",
                    began.elapsed(),
                    vm["status"]["conditions"]
                );
            }
            std::thread::park_timeout(Duration::from_millis(500));
        }
    }

    /// The runner's own view of the VM.
    pub(crate) fn runner_state(&self, vm: &Value) -> Result<Value> {
        let text = http::get_unix(&self.rundir(vm)?.join("control.sock"), "/v1/state")?;
        serde_json::from_str(&text).context("the runner's state is not JSON")
    }

    /// The directory of the VM's runner.
    pub(crate) fn rundir(&self, vm: &Value) -> Result<PathBuf> {
        let pod = vm["status"]["podName"]
            .as_str()
            .context("the VM has no pod")?;
        Ok(self.state.join("vms").join(format!("default_{pod}")))
    }

    /// Resizes so far with their stages, from the admin socket; times are seconds since
    /// `origin_unix_us`.
    pub(crate) fn resizes(&self, origin_unix_us: i64) -> Result<Vec<Resize>> {
        let text = http::get_unix(&self.state.join("admin.sock"), "/v1/resizes")?;
        let value: Value = serde_json::from_str(&text).context("the resizes are not JSON")?;
        let list = value
            .as_array()
            .or_else(|| value["resizes"].as_array())
            .context("the resizes are not a list")?;
        Ok(list
            .iter()
            .filter_map(|entry| read_resize(entry, origin_unix_us))
            .collect())
    }

    /// One look at the VM: its object as last shown and the load its monitor reports.
    pub(super) fn sample(t: f64, vm: &Value) -> Sample {
        // A guest that is busy or being resized may not answer in time: then its load is unknown
        // for this second.
        let page = guest_page(vm).unwrap_or_default();
        let gib = |bytes: f64| bytes / f64::from(1 << 30);
        let slot = quantity(&vm["spec"]["guest"]["memorySlotSize"]).unwrap_or(0.0);
        let slots = vm["spec"]["guest"]["memorySlots"]["use"]
            .as_f64()
            .unwrap_or(0.0);
        let approved =
            vm["metadata"]["annotations"]["internal.autoscaling.neon.tech/resources-approved"]
                .as_str();
        let permit: Option<Value> = approved.and_then(|text| serde_json::from_str(text).ok());
        Sample {
            t,
            phase: vm["status"]["phase"]
                .as_str()
                .unwrap_or_default()
                .to_owned(),
            cpu_want: quantity(&vm["spec"]["guest"]["cpus"]["use"]).unwrap_or(0.0),
            cpu_now: quantity(&vm["status"]["cpus"]).unwrap_or(0.0),
            mem_want_gib: gib(slot * slots),
            mem_now_gib: gib(quantity(&vm["status"]["memorySize"]).unwrap_or(0.0)),
            permit_cpu: permit
                .as_ref()
                .and_then(|permit| quantity(&permit["vCPUs"])),
            permit_mem_gib: permit
                .as_ref()
                .and_then(|permit| quantity(&permit["mem"]))
                .map(gib),
            load1: metric(&page, "host_load1"),
            runnable_load1: metric(&page, "host_runnable_load1"),
        }
    }

    /// A metric the monitor in the guest serves, as [`metric`] reads it.
    pub(crate) fn guest_metric(&self, vm: &Value, name: &str) -> Result<Option<f64>> {
        Ok(metric(&guest_page(vm)?, name))
    }

    /// Ends everything; guests are powered off first.
    pub(crate) fn down(mut self) -> Result<()> {
        let status = self
            .command(&["down", "--stop-vms"])
            .stdout(Stdio::null())
            .status()?;
        if let Some(mut child) = self.up.take() {
            child.wait()?;
        }
        anyhow::ensure!(status.success(), "bellows down failed ({status})");
        Ok(())
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        let Some(mut child) = self.up.take() else {
            return;
        };
        // An aborted demo must not leave a guest behind. Errors here have no reader.
        let _ = self
            .command(&["down", "--stop-vms"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
        let _ = child.kill();
        let _ = child.wait();
    }
}

/// The page of metrics the monitor in the guest serves.
fn guest_page(vm: &Value) -> Result<String> {
    let ip: IpAddr = vm["status"]["podIP"]
        .as_str()
        .context("the VM has no address")?
        .parse()?;
    http::get_tcp(SocketAddr::new(ip, 9100), "/metrics")
}

/// A metric on a page, summed over its labels; `None` when there is no such name. A name may end in
/// one label, as in `x_total{outcome="denied"`.
fn metric(page: &str, name: &str) -> Option<f64> {
    let matching = page.lines().filter(|line| {
        line.strip_prefix(name)
            .is_some_and(|rest| rest.starts_with([' ', '{', ',', '}']))
    });
    let values: Vec<f64> = matching
        .filter_map(|line| line.rsplit(' ').next()?.parse().ok())
        .collect();
    (!values.is_empty()).then(|| values.iter().sum())
}

fn read_resize(entry: &Value, origin_unix_us: i64) -> Option<Resize> {
    let stages = entry["stages"].as_array()?;
    let started = stages
        .iter()
        .filter_map(|stage| stage["start_unix_us"].as_i64())
        .min()?;
    #[expect(clippy::cast_precision_loss, reason = "seconds of one demo")]
    let t = (started - origin_unix_us) as f64 / 1e6;
    let stages_ms = stages
        .iter()
        .filter_map(|stage| {
            Some((
                stage["stage"].as_str()?.to_owned(),
                stage["duration_us"].as_f64()? / 1e3,
            ))
        })
        .collect();
    Some(Resize {
        revision: entry["revision"].as_i64()?,
        t,
        change: entry["change"].as_str().unwrap_or_default().to_owned(),
        stages_ms,
    })
}

/// A Kubernetes quantity as a float: for showing only.
pub(crate) fn quantity(value: &Value) -> Option<f64> {
    if let Some(number) = value.as_f64() {
        return Some(number);
    }
    let text = value.as_str()?;
    let end = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let factor = match &text[end..] {
        "" => 1.0,
        "m" => 1e-3,
        "k" => 1e3,
        "Ki" => 1024.0,
        "Mi" => 1024.0 * 1024.0,
        "Gi" => 1024.0 * 1024.0 * 1024.0,
        _ => return None,
    };
    Some(text[..end].parse::<f64>().ok()? * factor)
}

#[cfg(test)]
mod tests {
    use super::quantity;
    use serde_json::json;

    #[test]
    fn quantities_are_read_for_showing() {
        assert_eq!(quantity(&json!("250m")), Some(0.25));
        assert_eq!(quantity(&json!(2)), Some(2.0));
        assert_eq!(quantity(&json!("1Gi")), Some(1_073_741_824.0));
        assert_eq!(quantity(&json!("x")), None);
    }
}
