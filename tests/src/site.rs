//! One `bellows up` with a state directory of its own. Dropping it powers its guests off and ends
//! it.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use protocol::runner::RunnerState;
use protocol::vm::{VirtualMachine, VmPhase};
use serde_json::{Value, json};
use test_records::retry::{accel_in, accel_in_log, blame, known_tcg_bug, known_tcg_bug_in};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::{Mutex, MutexGuard};

use crate::guest::Guest;
use crate::kubeconfig::{client_of, install_crypto};
use crate::runner_state::runner_state;
use crate::vms::Vms;
pub use crate::vms::vm_resource;
use crate::{bellows_bin, last_lines};

/// Longest boot of a guest on a busy machine without KVM.
pub const BOOT_PATIENCE: Duration = Duration::from_secs(180);

/// Longest time for a shell command in a guest without hardware virtualisation on a busy machine.
const SSH_PATIENCE: Duration = Duration::from_secs(240);

/// Lines shown of a log or a console.
const SHOWN_LINES: usize = 40;

/// Two cores run one guest at a time, so the tests of a program take turns. Test programs run one
/// after the other already.
static TURN: Mutex<()> = Mutex::const_new(());

/// Options of `bellows up` and of its start.
#[derive(Debug, Clone, Default)]
pub struct UpOptions {
    /// Open files that it may have, soft and hard; those of the caller where `None`.
    pub open_files: Option<u64>,
    /// Arguments beside the state directory.
    pub arguments: Vec<String>,
    /// Another program than the `bellows` under test.
    pub program: Option<PathBuf>,
}

/// A running `bellows up` with its state directory.
pub struct Site {
    state: PathBuf,
    /// Keeps the directory until the end.
    _dir: Option<tempfile::TempDir>,
    up: Option<Child>,
    how: UpOptions,
    /// The line `bellows up` printed when it was ready.
    pub ready: Value,
    client: kube::Client,
    /// Held until the guests are gone: fields are dropped after [`Drop::drop`] has run.
    _turn: MutexGuard<'static, ()>,
}

impl Site {
    /// A fresh site in a temporary directory.
    ///
    /// # Errors
    /// When `bellows up` does not become ready; its log is in the message.
    pub async fn fresh() -> Result<Self> {
        Self::fresh_with(UpOptions::default()).await
    }

    /// A fresh site, started in a way of its own.
    ///
    /// # Errors
    /// When `bellows up` does not become ready; its log is in the message.
    pub async fn fresh_with(how: UpOptions) -> Result<Self> {
        let dir = tempfile::Builder::new().prefix("bellows-test-").tempdir()?;
        let state = dir.path().to_owned();
        let mut site = Self::start_with(&state, how).await?;
        site._dir = Some(dir);
        Ok(site)
    }

    /// The process id of `bellows up`.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.up.as_ref()?.id()
    }

    /// Starts `bellows up` on a state directory that may already hold objects and guests.
    ///
    /// # Errors
    /// When it does not become ready; its log is in the message.
    pub async fn start(state: &Path) -> Result<Self> {
        Self::start_with(state, UpOptions::default()).await
    }

    async fn start_with(state: &Path, how: UpOptions) -> Result<Self> {
        install_crypto();
        let turn = TURN.lock().await;
        let (up, ready) = spawn_up(state, &how).await?;
        let client = client_of(&state.join("kubeconfig")).await?;
        Ok(Self {
            state: state.to_owned(),
            _dir: None,
            up: Some(up),
            how,
            ready,
            client,
            _turn: turn,
        })
    }

    /// State directory of `bellows up`.
    #[must_use]
    pub fn state_dir(&self) -> &Path {
        &self.state
    }

    /// A client of its API.
    #[must_use]
    pub fn client(&self) -> kube::Client {
        self.client.clone()
    }

    /// The VirtualMachines of namespace `default`.
    #[must_use]
    pub fn vms(&self) -> Vms {
        Vms::new(self.client())
    }

    /// Runs a `bellows` command on this site and returns its standard output.
    ///
    /// # Errors
    /// When it exits with another status than 0; its output is in the message.
    pub async fn bellows(&self, arguments: &[&str]) -> Result<String> {
        let output = Command::new(bellows_bin())
            .args(arguments)
            .arg("--state-dir")
            .arg(&self.state)
            .stdin(Stdio::null())
            .output()
            .await?;
        if !output.status.success() {
            bail!(
                "bellows {arguments:?}: {}\n{}",
                output.status,
                String::from_utf8_lossy(&output.stderr)
            );
        }
        Ok(String::from_utf8(output.stdout)?)
    }

    /// Runs `kubectl` on this site.
    ///
    /// # Errors
    /// When it exits with another status than 0; its output is in the message.
    pub async fn kubectl(&self, arguments: &[&str]) -> Result<String> {
        let output = Command::new("kubectl")
            .arg("--kubeconfig")
            .arg(self.state.join("kubeconfig"))
            .args(arguments)
            .stdin(Stdio::null())
            .output()
            .await?;
        if !output.status.success() {
            bail!(
                "kubectl {arguments:?}: {}\n{}",
                output.status,
                String::from_utf8_lossy(&output.stderr)
            );
        }
        Ok(String::from_utf8(output.stdout)?)
    }

    /// Runs a shell command in a guest as root, with `input` as standard input.
    ///
    /// # Errors
    ///
    /// If it fails. The message holds its output.
    pub async fn ssh(&self, vm: &str, line: &str, input: Option<&Path>) -> Result<String> {
        self.run_ssh(&[vm, "--", line], input).await
    }

    /// Runs a login shell in a guest as root, with `input` as its commands.
    ///
    /// # Errors
    ///
    /// If it fails. The message holds its output.
    pub async fn ssh_shell(&self, vm: &str, input: &Path) -> Result<String> {
        self.run_ssh(&[vm], Some(input)).await
    }

    async fn run_ssh(&self, words: &[&str], input: Option<&Path>) -> Result<String> {
        let line = words.join(" ");
        let input = match input {
            Some(path) => Stdio::from(std::fs::File::open(path)?),
            None => Stdio::null(),
        };
        let output = Command::new(bellows_bin())
            .args(["ssh", "--state-dir"])
            .arg(self.state_dir())
            .args(words)
            .stdin(input)
            .kill_on_drop(true)
            .output();
        let output = tokio::time::timeout(SSH_PATIENCE, output)
            .await
            .with_context(|| format!("{line} took longer than {SSH_PATIENCE:?}"))??;
        let (out, err) = (
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr),
        );
        ensure!(
            output.status.success(),
            "{line}: {}\n{out}{err}",
            output.status
        );
        Ok(out.into_owned())
    }

    /// Creates a VirtualMachine.
    ///
    /// # Errors
    ///
    /// The API's refusal.
    pub async fn create(&self, object: &Value) -> Result<()> {
        self.vms().create(object).await
    }

    /// The VM as it stands in the API.
    ///
    /// # Errors
    /// When there is none or it does not decode.
    pub async fn vm(&self, name: &str) -> Result<VirtualMachine> {
        self.vms().get(name).await
    }

    /// Waits until `wanted` holds for a VM.
    ///
    /// # Errors
    ///
    /// Names the wanted state and the last status.
    pub async fn wait_vm(
        &self,
        name: &str,
        what: &str,
        patience: Duration,
        wanted: impl Fn(&VirtualMachine) -> bool,
    ) -> Result<VirtualMachine> {
        match self.vms().wait(name, what, patience, wanted).await {
            Ok(vm) => Ok(vm),
            Err(error) => Err(error.context(self.known_of(name).await)),
        }
    }

    /// Creates a VM and waits until it runs. Returns its guest.
    ///
    /// # Errors
    ///
    /// If the VM cannot be made, or does not run in time.
    pub async fn boot(&self, object: &Value) -> Result<Guest> {
        self.create(object).await?;
        let name = object["metadata"]["name"].as_str().context("a name")?;
        let running = |vm: &VirtualMachine| {
            let status = vm.status.as_ref();
            status.is_some_and(|status| status.phase == VmPhase::Running)
        };
        let vm = self.wait_vm(name, "phase Running", BOOT_PATIENCE, running);
        let status = vm.await?.status.context("a status")?;
        Guest::new(status.pod_ip.parse()?)
    }

    /// State of components, API and runner about a VM, for an error.
    async fn known_of(&self, name: &str) -> String {
        let pods = ["get", "pods", "-o", "json"];
        let runner = self.runner(name).await;
        let lines = match self.rundir(name).await {
            Ok(dir) => last_lines(&dir.join("runner.log"), SHOWN_LINES),
            Err(error) => format!("{error:#}"),
        };
        let shown = [
            ("parts", self.bellows(&["dump"]).await),
            ("pods", self.kubectl(&pods).await),
            ("runner", runner.map(|state| format!("{state:?}"))),
            ("end of the runner's log", Ok(lines)),
        ];
        let shown = shown.map(|(of, said)| match said {
            Ok(said) => format!("--- {of}\n{said}"),
            Err(error) => format!("--- {of}: {error:#}"),
        });
        shown.join("\n")
    }

    /// Requests a size as the agent does: three `replace` operations in one JSON patch.
    ///
    /// # Errors
    ///
    /// The API's refusal.
    pub async fn patch_size(
        &self,
        name: &str,
        milli_cpu: u32,
        slots: u32,
        revision: i64,
    ) -> Result<()> {
        self.vms()
            .patch_size(name, milli_cpu, slots, revision)
            .await
    }

    /// The directory of a VM's runner.
    ///
    /// # Errors
    /// When the VM has no pod.
    pub async fn rundir(&self, name: &str) -> Result<PathBuf> {
        let pod = self
            .vm(name)
            .await?
            .status
            .map(|status| status.pod_name)
            .unwrap_or_default();
        anyhow::ensure!(!pod.is_empty(), "VM {name} has no pod");
        Ok(self.state.join("vms").join(format!("default_{pod}")))
    }

    /// The runner's own view of a VM.
    ///
    /// # Errors
    /// When the runner does not answer.
    pub async fn runner(&self, name: &str) -> Result<RunnerState> {
        runner_state(&self.rundir(name).await?).await
    }

    /// Kills `bellows up` with `kill -9`, and nothing else.
    ///
    /// # Errors
    ///
    /// If it was not running.
    pub async fn kill_up(&mut self) -> Result<()> {
        let mut child = self.up.take().context("bellows up is not running")?;
        child.kill().await.context("kill -9 of bellows up")
    }

    /// Starts `bellows up` again after [`Site::kill_up`].
    ///
    /// # Errors
    /// When it does not become ready.
    pub async fn restart_up(&mut self) -> Result<()> {
        let (up, ready) = spawn_up(&self.state, &self.how).await?;
        self.up = Some(up);
        self.ready = ready;
        self.client = client_of(&self.state.join("kubeconfig")).await?;
        Ok(())
    }

    /// Ends `bellows up` and leaves its guests, then starts the `bellows` under test on them.
    ///
    /// # Errors
    /// When one of the two does not succeed.
    pub async fn upgrade_up(&mut self) -> Result<()> {
        self.replace_up(None).await
    }

    /// Ends `bellows up` and leaves its guests, then starts another build of it on them. `None` is
    /// the `bellows` under test.
    ///
    /// # Errors
    /// When one of the two does not succeed.
    pub async fn replace_up(&mut self, program: Option<PathBuf>) -> Result<()> {
        self.bellows(&["down"]).await?;
        if let Some(mut child) = self.up.take() {
            child.wait().await.context("the end of bellows up")?;
        }
        self.restart_up_as(program).await
    }

    /// Starts another build of `bellows up` after [`Site::kill_up`].
    ///
    /// # Errors
    /// When it does not become ready.
    pub async fn restart_up_as(&mut self, program: Option<PathBuf>) -> Result<()> {
        self.how.program = program;
        self.restart_up().await
    }

    /// The last lines of the log of `bellows up`.
    #[must_use]
    pub fn log_tail(&self) -> String {
        tail(&self.state)
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        if std::thread::panicking() {
            blame(known_tcg_bug_of(&self.state));
            say(&consoles(&self.state));
        }
        // A test that failed must not leave a guest behind.
        let _ = std::process::Command::new(bellows_bin())
            .args(["down", "--stop-vms", "--state-dir"])
            .arg(&self.state)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
        if let Some(child) = &mut self.up {
            let _ = child.start_kill();
        }
        if std::thread::panicking() {
            let log = self.log_tail();
            say(&format!("--- end of the log of bellows up\n{log}"));
        }
    }
}

fn tail(state: &Path) -> String {
    last_lines(&state.join("up.log"), SHOWN_LINES)
}

/// The last lines that the guests of a site wrote to their consoles. They go with the guests'
/// directories.
fn consoles(state: &Path) -> String {
    let runners = std::fs::read_dir(state.join("vms"));
    let consoles = runners.into_iter().flatten().flatten().map(|runner| {
        let console = runner.path().join("console.log");
        let name = runner.file_name();
        format!(
            "--- end of the console of {name:?}\n{}",
            last_lines(&console, SHOWN_LINES)
        )
    });
    consoles.collect::<Vec<_>>().join("\n")
}

/// The panic of a guest of a site, if it is the known fault of QEMU without KVM. The console of a
/// restarted guest is gone, but the log of `bellows up` quotes its panic.
#[must_use]
pub fn known_tcg_bug_of(state: &Path) -> Option<String> {
    let runners = std::fs::read_dir(state.join("vms")).into_iter().flatten();
    let runners: Vec<PathBuf> = runners.flatten().map(|runner| runner.path()).collect();
    let on_console = runners.iter().find_map(|dir| known_tcg_bug_in(dir));
    on_console.or_else(|| {
        let log = std::fs::read(state.join("up.log")).ok()?;
        let log = String::from_utf8_lossy(&log);
        let accel = runners.iter().find_map(|dir| accel_in(dir));
        known_tcg_bug(&accel.or_else(|| accel_in_log(&log))?, &log)
    })
}

#[expect(clippy::print_stdout, reason = "it belongs to what a failed test says")]
fn say(text: &str) {
    println!("{text}");
}

async fn spawn_up(state: &Path, how: &UpOptions) -> Result<(Child, Value)> {
    let log = std::fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(state.join("up.log"))?;
    let program = how.program.clone().unwrap_or_else(bellows_bin);
    let mut command = match how.open_files {
        None => Command::new(program),
        Some(limit) => {
            // The command replaces itself by the given program.
            let mut command = Command::new("prlimit");
            command
                .arg(format!("--nofile={limit}:{limit}"))
                .arg(program);
            command
        }
    };
    let mut child = command
        .args(["up", "--state-dir"])
        .arg(state)
        .args(&how.arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(log)
        .spawn()
        .context("start bellows up")?;
    let stdout = child.stdout.take().context("bellows up has no stdout")?;
    let mut lines = BufReader::new(stdout).lines();
    while let Some(line) = lines.next_line().await? {
        if line.starts_with('{') {
            let ready = serde_json::from_str(&line)?;
            // Keep reading, so that the process never blocks on a full pipe.
            tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
            return Ok((child, ready));
        }
    }
    let status = child.wait().await?;
    bail!(
        "bellows up ended ({status}) before it was ready:\n{}",
        tail(state)
    )
}

/// A VirtualMachine of the PostgreSQL image.
#[must_use]
pub fn postgres_vm(
    name: &str,
    cpus: (u32, u32, u32),
    slots: (u32, u32, u32),
    autoscaled: bool,
) -> Value {
    let cpu = |milli| protocol::units::MilliCpu(milli).to_quantity_string();
    let labels = if autoscaled {
        json!({"autoscaling.neon.tech/enabled": "true"})
    } else {
        json!({})
    };
    json!({
        "apiVersion": "vm.neon.tech/v1",
        "kind": "VirtualMachine",
        "metadata": {"name": name, "namespace": "default", "labels": labels},
        "spec": {
            "schedulerName": "autoscale-scheduler",
            "guest": {
                "cpus": {"min": cpu(cpus.0), "use": cpu(cpus.1), "max": cpu(cpus.2)},
                "memorySlotSize": "1Gi",
                "memorySlots": {"min": slots.0, "use": slots.1, "max": slots.2},
                "rootDisk": {"image": "bellows/postgres:15"},
                "ports": [{"port": 5432}, {"port": 9100}, {"port": 10301}],
            },
        },
    })
}
