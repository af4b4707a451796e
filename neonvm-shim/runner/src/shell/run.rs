//! One runner, from its directory to QEMU's end.

use std::collections::BTreeMap;
use std::fs::File;
use std::net::SocketAddrV4;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use nix::fcntl::{Flock, FlockArg};
use protocol::runner::{
    CpuState, ExitReport, MemoryState, QuotaState, RunnerPhase, RunnerState, SizeOrder,
};
use protocol::time::Timestamp;
use protocol::trace::TraceId;
use protocol::vm::CpuScalingMode;
use telemetry::clock::Clock;
use tokio::net::TcpListener;
use tokio::process::Child;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::cgroup::QuotaGroup;
use super::control::{Handle, bind_private, serve_pod, serve_private};
use super::process::{self, ProcessId};
use super::record::{Record, RecordError, private_dir, read_json, write_json};
use super::supervisor::{INPUT_BACKLOG, Input, OnCancel, Seen, Supervisor};
use super::{console, disk, guest, qmp};
use crate::accel::{self, knowledge};
use crate::config::{AccelChoice, RunnerConfig};
use crate::core::args::{GUESTD_FORWARD, Paths, qemu_args};
use crate::core::exit::{Evidence, classify};
use crate::core::shape::{self, ShapeError};
use crate::core::sizer::Sizer;

/// Longest path of a unix socket that every kernel takes, less the longest of our file names.
const MAX_DIR_BYTES: usize = 107 - "/qmp-manual.sock".len();
/// Pause between two tries at the monitor.
const QMP_AGAIN: Duration = Duration::from_millis(20);
/// The same once it has failed for a while.
const QMP_AGAIN_SLOW: Duration = Duration::from_millis(500);
/// Tries at the quick pace: QEMU makes its socket within a second.
const QMP_QUICK_TRIES: u32 = 250;
/// How often an adopted QEMU, which is not our child, is looked at.
const ALIVE_EVERY: Duration = Duration::from_millis(200);
/// How long the end is readable on the control socket before the process goes.
const LINGER: Duration = Duration::from_millis(300);
/// Where the guest's sshd looks for keys.
const SSH_DIR: &str = "/mnt/ssh";
/// Pause between two tries at pushing the key, and how many there are.
const KEY_AGAIN: Duration = Duration::from_secs(1);
const KEY_TRIES: u32 = 60;

/// Why a runner could not begin.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The directory.
    #[error("cannot use the runner's directory {0}")]
    Dir(PathBuf, #[source] std::io::Error),
    /// Its path.
    #[error("{0} is too long for unix sockets: {MAX_DIR_BYTES} bytes are the most")]
    TooLong(PathBuf),
    /// Another runner has it.
    #[error("another runner holds {0}")]
    Held(PathBuf),
    /// There is nothing to run.
    #[error("{0} is missing")]
    NoConfig(PathBuf),
    /// A file of it.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// The spec.
    #[error("no QEMU can be built for this spec")]
    Shape(#[from] ShapeError),
    /// An address or socket is taken.
    #[error("cannot serve on {0}")]
    Bind(String, #[source] std::io::Error),
    /// The disk.
    #[error("cannot make the root disk")]
    Disk(#[from] disk::DiskError),
    /// QEMU's program.
    #[error("cannot execute {0}")]
    Qemu(PathBuf, #[source] std::io::Error),
}

/// How a runner ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    /// QEMU has ended.
    Exited(ExitReport),
    /// The runner was told to end and left QEMU running.
    Left,
}

/// Runs the VM of a directory (`config.json` in it) until QEMU ends or `cancel` comes: adopts the QEMU that is there, else
/// starts one. A directory whose VM has ended answers at once with that end.
///
/// # Errors
/// [`RunError`]; nothing was started then.
pub async fn run(
    dir: &Path,
    on_cancel: OnCancel,
    clock: Clock,
    cancel: CancellationToken,
) -> Result<End, RunError> {
    let dir = std::path::absolute(dir).map_err(|error| RunError::Dir(dir.to_owned(), error))?;
    if dir.as_os_str().len() > MAX_DIR_BYTES {
        return Err(RunError::TooLong(dir));
    }
    private_dir(&dir).map_err(|error| RunError::Dir(dir.clone(), error))?;
    let paths = Paths::new(dir);
    let _lock = lock(&paths)?;
    if let Some(report) = read_json(&paths.exit())? {
        return Ok(End::Exited(report));
    }
    let config: RunnerConfig =
        read_json(&paths.config())?.ok_or_else(|| RunError::NoConfig(paths.config()))?;
    let config = Arc::new(config);
    let port = u16::try_from(config.spec.runner_port).unwrap_or(0);
    let address = SocketAddrV4::new(config.pod_ip, port);
    let pod = TcpListener::bind(address)
        .await
        .map_err(|error| RunError::Bind(address.to_string(), error))?;
    let control = bind_private(&paths.control())
        .map_err(|error| RunError::Bind(paths.control().display().to_string(), error))?;
    let runner = Runner {
        config,
        paths,
        clock,
        on_cancel,
    };
    let (record, child) = match runner.find()? {
        Found::Running(record) => (record, None),
        Found::Ended(report) => return Ok(End::Exited(report)),
        Found::Nothing => runner.start().await?,
    };
    Ok(runner.supervise(record, child, pod, control, cancel).await)
}

fn lock(paths: &Paths) -> Result<Flock<File>, RunError> {
    let file = process::append_file(&paths.lock())
        .map_err(|error| RunError::Dir(paths.dir.clone(), error))?;
    Flock::lock(file, FlockArg::LockExclusiveNonblock)
        .map_err(|_| RunError::Held(paths.dir.clone()))
}

/// What an earlier runner left.
enum Found {
    Running(Record),
    Ended(ExitReport),
    Nothing,
}

struct Runner {
    config: Arc<RunnerConfig>,
    paths: Paths,
    clock: Clock,
    on_cancel: OnCancel,
}

impl Runner {
    /// Looks for a QEMU of this directory.
    fn find(&self) -> Result<Found, RunError> {
        let Some(mut record) = read_json::<Record>(&self.paths.record())? else {
            return Ok(Found::Nothing);
        };
        let this_boot = record.host_boot_id == process::host_boot_id();
        let process = record
            .qemu
            .or_else(|| self.by_pid_file())
            .filter(|_| this_boot);
        if let Some(process) = process.filter(|process| process.is_alive()) {
            info!(pid = process.pid, "adopting the QEMU that is there");
            record.qemu = Some(process);
            write_json(&self.paths.record(), &record)?;
            return Ok(Found::Running(record));
        }
        if record.qemu.is_none() {
            // The earlier runner died before QEMU was up: nothing has happened yet.
            return Ok(Found::Nothing);
        }
        let report = classify(&Evidence {
            was_up: record.boot_ms.is_some(),
            stop_ordered: record.stop_ordered,
            console_tail: process::file_tail(&self.paths.console_log(), 16 << 10),
            qemu_tail: process::file_tail(&self.paths.qemu_log(), 16 << 10),
            ..Evidence::default()
        });
        info!(reason = ?report.reason, "QEMU ended while no runner was there");
        write_json(&self.paths.exit(), &report)?;
        Ok(Found::Ended(report))
    }

    /// The process of QEMU's own pid file, if it is a QEMU of this directory.
    fn by_pid_file(&self) -> Option<ProcessId> {
        let text = std::fs::read_to_string(self.paths.pid_file()).ok()?;
        let process = ProcessId::of(text.trim().parse().ok()?)?;
        let cmdline = std::fs::read(format!("/proc/{}/cmdline", process.pid)).ok()?;
        let ours = self.paths.pid_file().display().to_string();
        cmdline
            .split(|byte| *byte == 0)
            .any(|arg| arg == ours.as_bytes())
            .then_some(process)
    }

    async fn start(&self) -> Result<(Record, Option<Child>), RunError> {
        let config = &self.config;
        let accel = if config.spec.enable_acceleration {
            let knowledge = Some(config.knowledge_dir.as_path());
            accel::resolve(config.accel, &config.programs.qemu_system, knowledge)
                .await
                .accel
        } else {
            accel::resolve(AccelChoice::Tcg, &config.programs.qemu_system, None)
                .await
                .accel
        };
        let blind = knowledge::is_blind(&config.knowledge_dir, &config.image.kernel_version, accel);
        let control = shape::control(config.spec.cpu_scaling_mode, blind);
        let shape = shape::shape(&config.spec.guest, control, accel)?;
        disk::make_overlay(config, &self.paths.overlay()).await?;
        for log in [self.paths.console_log(), self.paths.qemu_log()] {
            console::prepare(&log).map_err(|error| RunError::Dir(log, error))?;
        }
        let mut record = Record {
            host_boot_id: process::host_boot_id(),
            qemu: None,
            accel,
            budget: shape.budget,
            shape,
            started_unix_us: self.clock.wall().0,
            boot_ms: None,
            order: None,
            stop_ordered: false,
            cgroup: config
                .cgroup_parent
                .as_ref()
                .map(|parent| format!("{parent}/{}_{}", config.namespace, config.pod)),
        };
        // Before QEMU: whatever happens next, the next runner knows what kind of QEMU it may find.
        write_json(&self.paths.record(), &record)?;
        let args = qemu_args(config, &record.shape, accel, &self.paths);
        let program = &config.programs.qemu_system;
        let child = process::start(program, &args, &self.paths.dir, &self.paths.qemu_log())
            .map_err(|error| RunError::Qemu(program.clone(), error))?;
        record.qemu = child.id().and_then(ProcessId::of);
        write_json(&self.paths.record(), &record)?;
        info!(pid = child.id(), accel = accel.as_str(), "QEMU started");
        Ok((record, Some(child)))
    }

    async fn supervise(
        self,
        record: Record,
        child: Option<Child>,
        pod: TcpListener,
        control: tokio::net::UnixListener,
        cancel: CancellationToken,
    ) -> End {
        let (inputs, taken) = mpsc::channel(INPUT_BACKLOG);
        let (state_tx, state) = watch::channel(first_state(&record));
        let (group, quota) = self.join_group(&record);
        let now = self.clock.now();
        // A guest that has answered an earlier runner does not boot any more.
        let booting = (child.is_some() && record.boot_ms.is_none()).then_some(now);
        let supervisor = Supervisor {
            sizer: self.sizer(&record, booting, now),
            config: self.config.clone(),
            paths: self.paths.clone(),
            clock: self.clock,
            seen: Seen::new(child.is_none()),
            record,
            group,
            quota,
            inputs: inputs.clone(),
            state: state_tx,
            on_cancel: self.on_cancel,
        };
        let stop = CancellationToken::new();
        let process = supervisor.record.qemu;
        tokio::spawn(watch_process(child, process, inputs.clone(), stop.clone()));
        tokio::spawn(follow_monitor(
            self.paths.qmp(),
            inputs.clone(),
            stop.clone(),
        ));
        tokio::spawn(follow_guest(
            SocketAddrV4::new(self.config.pod_ip, GUESTD_FORWARD),
            inputs.clone(),
            stop.clone(),
        ));
        let guest_counts = self.config.spec.cpu_scaling_mode == Some(CpuScalingMode::SysfsScaling);
        let handle = Handle {
            inputs,
            state,
            guest_counts,
        };
        tokio::spawn(serve_private(control, handle.clone(), stop.clone()));
        tokio::spawn(serve_pod(pod, handle, stop.clone()));
        let end = supervisor.run(taken, cancel).await;
        if end.is_some() {
            tokio::time::sleep(LINGER).await;
        }
        stop.cancel();
        end.map_or(End::Left, End::Exited)
    }

    fn sizer(&self, record: &Record, booting: Option<Timestamp>, now: Timestamp) -> Sizer {
        let initial = record.shape.initial;
        let revision = self
            .config
            .spec
            .target_revision
            .map_or(0, |at| at.revision.value);
        let first = SizeOrder {
            cpu: initial.cpu,
            memory: initial.mem,
            trace: TraceId {
                vm: self.config.vm_key(),
                revision,
            },
        };
        Sizer::new(
            record.shape.clone(),
            record.budget,
            first,
            record.order.clone(),
            booting,
            now,
        )
    }

    fn join_group(&self, record: &Record) -> (Option<QuotaGroup>, QuotaState) {
        let (Some(path), Some(process)) = (&record.cgroup, record.qemu) else {
            let reason = "no cgroup is configured".to_owned();
            return (None, QuotaState::Unavailable { reason });
        };
        let joined = QuotaGroup::make(path).and_then(|group| {
            group.join(process.pid)?;
            Ok(group)
        });
        match joined {
            Ok(group) => (Some(group), QuotaState::Unset),
            Err(error) => {
                let reason = telemetry::chain(&error);
                warn!(
                    reason,
                    "CPU limits are not enforced: only the number of CPUs is"
                );
                (None, QuotaState::Unavailable { reason })
            }
        }
    }
}

fn first_state(record: &Record) -> RunnerState {
    RunnerState {
        generation: 1,
        phase: RunnerPhase::Booting,
        qemu_pid: record.qemu.map(|process| process.pid),
        qemu_version: None,
        accel: record.accel.as_str().to_owned(),
        boot_id: None,
        guest_kernel: None,
        boot_ms: record.boot_ms,
        cpus: CpuState::default(),
        memory: MemoryState::default(),
        resize: None,
        exit: None,
        quota: QuotaState::Unset,
    }
}

/// Tells when QEMU is gone.
async fn watch_process(
    child: Option<Child>,
    process: Option<ProcessId>,
    inputs: mpsc::Sender<Input>,
    stop: CancellationToken,
) {
    let code = if let Some(mut child) = child {
        tokio::select! {
            () = stop.cancelled() => return,
            status = child.wait() => status.ok().and_then(|status| status.code()),
        }
    } else {
        while process.is_some_and(ProcessId::is_alive) {
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(ALIVE_EVERY) => {}
            }
        }
        None
    };
    // The supervisor is gone only when the runner ends.
    let _ = inputs.send(Input::Ended(code)).await;
}

/// Keeps a monitor connection: connects, passes events on, connects again.
async fn follow_monitor(socket: PathBuf, inputs: mpsc::Sender<Input>, stop: CancellationToken) {
    let mut tries = 0;
    loop {
        let connected = tokio::select! {
            () = stop.cancelled() => return,
            connected = qmp::connect(&socket) => connected,
        };
        match connected {
            Ok((qmp, mut events)) => {
                tries = 0;
                info!(version = qmp.version, "monitor connected");
                if inputs.send(Input::QmpUp(Arc::new(qmp))).await.is_err() {
                    return;
                }
                while let Some(event) = events.recv().await {
                    if inputs.send(Input::Qmp(event)).await.is_err() {
                        return;
                    }
                }
                if inputs.send(Input::QmpDown).await.is_err() {
                    return;
                }
            }
            Err(error) => {
                tries += 1;
                if tries == QMP_QUICK_TRIES {
                    warn!(
                        error = telemetry::chain(&error),
                        "QEMU's monitor is not reached"
                    );
                }
            }
        }
        let pause = if tries < QMP_QUICK_TRIES {
            QMP_AGAIN
        } else {
            QMP_AGAIN_SLOW
        };
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(pause) => {}
        }
    }
}

async fn follow_guest(address: SocketAddrV4, inputs: mpsc::Sender<Input>, stop: CancellationToken) {
    let (news, mut states) = mpsc::channel(1);
    tokio::spawn(guest::watch(address, news, stop.clone()));
    while let Some(state) = states.recv().await {
        if inputs.send(Input::Guest(state)).await.is_err() {
            return;
        }
    }
}

/// Lets a key into the guest.
pub(super) async fn push_key(address: SocketAddrV4, key: String) {
    let content = format!("{}\n", key.trim_end()).into_bytes();
    let files = BTreeMap::from([("authorized_keys".to_owned(), content)]);
    for attempt in 1..=KEY_TRIES {
        match guest::put_files(address, SSH_DIR, &files).await {
            Ok(()) => return info!("ssh key is in the guest"),
            Err(error) if attempt == KEY_TRIES => {
                warn!(
                    error = telemetry::chain(&error),
                    "ssh key not taken by the guest"
                );
            }
            Err(_) => tokio::time::sleep(KEY_AGAIN).await,
        }
    }
}
