//! Runs the probe guest under KVM and, as a control, under TCG.

use std::fs::OpenOptions;
use std::io;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Pid, Resource, Rlimit, prlimit};
use tokio::process::{Child, Command};
use tracing::{info, warn};

use super::knowledge::{self, AccelRecord};
use super::rom::{EXIT_PORT, PASS_STATUS, rom};
use crate::config::{Accel, AccelChoice};
use crate::shell::process::host_boot_id;

/// Longest run of the probe guest. It takes a quarter of a second under TCG.
const DEADLINE: Duration = Duration::from_secs(2);
/// Longest run of the control. If even this fails, the machine is too busy for a verdict about KVM.
const CONTROL_DEADLINE: Duration = Duration::from_secs(10);
/// Factor between the control's run time and the extra time that KVM gets.
const PATIENCE: u32 = 4;
/// Threads of the probe's QEMU that can be busy at once: its CPU and its main loop.
const QEMU_THREADS: u64 = 2;
const VERSION_DEADLINE: Duration = Duration::from_secs(5);

/// Observation behind a choice of accelerator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Finding {
    /// The caller named the accelerator, so nothing was probed.
    Chosen,
    /// `/dev/kvm` is missing or may not be opened, for this reason.
    NoDevice(String),
    /// The probe guest ran under KVM.
    Boots,
    /// The probe guest failed or did not end under KVM, while it ran under TCG.
    Broken(String),
    /// Not even the control ran. The choice is TCG, and it is not remembered.
    Unclear(String),
    /// An earlier probe of this boot decided, for this reason.
    Remembered(String),
}

/// An accelerator with the observation behind it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResolvedAccel {
    /// Accelerator that QEMU is to be started with.
    pub accel: Accel,
    /// Observation that led to the choice.
    pub finding: Finding,
}

impl ResolvedAccel {
    /// The finding as one line for people.
    #[must_use]
    pub fn reason(&self) -> String {
        match &self.finding {
            Finding::Chosen => format!("{} was chosen", self.accel.as_str()),
            Finding::NoDevice(why) => format!("tcg: /dev/kvm cannot be used ({why})"),
            Finding::Boots => "kvm: a probe guest reached long mode with it".to_owned(),
            Finding::Broken(how) => {
                format!("tcg: /dev/kvm is there, but a probe guest did not reach long mode ({how})")
            }
            Finding::Unclear(why) => format!("tcg: the probe could not be made ({why})"),
            Finding::Remembered(reason) => reason.clone(),
        }
    }
}

/// Resolves a choice and logs it. `auto` uses a remembered verdict from `knowledge`, else probes.
pub async fn resolve(choice: AccelChoice, qemu: &Path, knowledge: Option<&Path>) -> ResolvedAccel {
    let chosen = |accel| ResolvedAccel {
        accel,
        finding: Finding::Chosen,
    };
    let verdict = match choice {
        AccelChoice::Kvm => chosen(Accel::Kvm),
        AccelChoice::Tcg => chosen(Accel::Tcg),
        AccelChoice::Auto => probe(qemu, knowledge).await,
    };
    info!(
        accel = verdict.accel.as_str(),
        reason = verdict.reason(),
        "accelerator"
    );
    verdict
}

/// Finds out whether KVM boots a guest here. With `knowledge`, a verdict of this boot and this QEMU
/// is reused, and a new one is written.
pub async fn probe(qemu: &Path, knowledge: Option<&Path>) -> ResolvedAccel {
    if let Err(error) = OpenOptions::new().read(true).write(true).open("/dev/kvm") {
        return ResolvedAccel {
            accel: Accel::Tcg,
            finding: Finding::NoDevice(error.to_string()),
        };
    }
    let (boot, version) = (host_boot_id(), version(qemu).await.unwrap_or_default());
    let known = knowledge.and_then(|dir| knowledge::recall_accel(dir, &boot, &version));
    if let Some(AccelRecord { accel, reason, .. }) = known {
        return ResolvedAccel {
            accel,
            finding: Finding::Remembered(reason),
        };
    }
    let verdict = ask_machine(qemu).await;
    if let (Some(dir), Finding::Boots | Finding::Broken(_)) = (knowledge, &verdict.finding) {
        let (accel, reason) = (verdict.accel, verdict.reason());
        let record = AccelRecord {
            host_boot_id: boot,
            qemu_version: version,
            accel,
            reason,
        };
        if let Err(error) = knowledge::remember_accel(dir, &record) {
            warn!(
                error = daemon_kit::chain(&error),
                "accelerator verdict not remembered"
            );
        }
    }
    verdict
}

async fn ask_machine(qemu: &Path) -> ResolvedAccel {
    let tcg = |finding| ResolvedAccel {
        accel: Accel::Tcg,
        finding,
    };
    let image = match tempfile::NamedTempFile::new().and_then(|file| {
        std::fs::write(file.path(), rom())?;
        Ok(file)
    }) {
        Ok(file) => file,
        Err(error) => return tcg(Finding::Unclear(error.to_string())),
    };
    let control = match run(qemu, Accel::Tcg, image.path(), CONTROL_DEADLINE).await {
        Ok(took) => took,
        Err(how) => return tcg(Finding::Unclear(format!("the control under tcg: {how}"))),
    };
    let deadline = DEADLINE.max(control * PATIENCE);
    match run(qemu, Accel::Kvm, image.path(), deadline).await {
        Ok(_) => ResolvedAccel {
            accel: Accel::Kvm,
            finding: Finding::Boots,
        },
        Err(how) => tcg(Finding::Broken(how)),
    }
}

/// Runs the probe guest once and returns its run time.
///
/// # Errors
/// A description of the failure for people.
pub async fn run(
    qemu: &Path,
    accel: Accel,
    image: &Path,
    deadline: Duration,
) -> Result<Duration, String> {
    let started = tokio::time::Instant::now();
    let mut command = Command::new(qemu);
    command
        .args(["-machine", "q35", "-accel", accel.as_str()])
        .args(["-cpu", if accel == Accel::Kvm { "host" } else { "max" }])
        .args([
            "-m",
            "16M",
            "-nodefaults",
            "-no-user-config",
            "-display",
            "none",
            "-no-reboot",
        ])
        .args([
            "-device",
            &format!("isa-debug-exit,iobase={EXIT_PORT:#x},iosize=1"),
        ])
        .arg("-bios")
        .arg(image)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    let child = spawn_limited(&mut command, deadline)
        .map_err(|error| format!("cannot execute {}: {error}", qemu.display()))?;
    match tokio::time::timeout(deadline, child.wait_with_output()).await {
        Err(_) => Err(format!("no end within {:.1} s", deadline.as_secs_f32())),
        Ok(Err(error)) => Err(error.to_string()),
        Ok(Ok(output)) if output.status.code() == Some(PASS_STATUS) => Ok(started.elapsed()),
        Ok(Ok(output)) => {
            let text = String::from_utf8_lossy(&output.stderr);
            let last = text.trim().lines().last().unwrap_or_default();
            Err(format!(
                "{} {}",
                output.status,
                last.chars().take(160).collect::<String>()
            )
            .trim()
            .to_owned())
        }
    }
}

/// Starts `command` with a CPU time limit above what it can use until `deadline`. A guest that
/// hangs in KVM burns a CPU, and the limit ends it even after `kill -9` of this process.
fn spawn_limited(command: &mut Command, deadline: Duration) -> io::Result<Child> {
    let child = command.spawn()?;
    let seconds = deadline.as_secs() * QEMU_THREADS + 1;
    let pid = child.id().and_then(|id| Pid::from_raw(id.cast_signed()));
    if let Some(pid) = pid {
        let limit = Rlimit {
            current: Some(seconds),
            maximum: Some(seconds),
        };
        prlimit(Some(pid), Resource::Cpu, limit)?;
    }
    Ok(child)
}

/// Returns the first line of `qemu --version`.
///
/// # Errors
/// The program cannot be run, or does not answer in time.
pub async fn version(qemu: &Path) -> io::Result<String> {
    let mut command = Command::new(qemu);
    command
        .arg("--version")
        .stdin(Stdio::null())
        .kill_on_drop(true);
    let output = tokio::time::timeout(VERSION_DEADLINE, command.output())
        .await
        .map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(text.lines().next().unwrap_or_default().trim().to_owned())
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;

    use super::*;

    /// The CPU time limit alone ends this probe.
    #[tokio::test]
    async fn hanging_probe_ends_without_its_parent() {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", "while :; do :; done"]);
        command.kill_on_drop(true);
        let mut child = spawn_limited(&mut command, Duration::from_millis(10)).expect("a shell");
        let status = tokio::time::timeout(Duration::from_secs(60), child.wait())
            .await
            .expect("the limit ends it")
            .expect("a status");
        let ends = [nix::libc::SIGXCPU, nix::libc::SIGKILL];
        assert!(
            status.signal().is_some_and(|signal| ends.contains(&signal)),
            "{status}"
        );
    }
}
