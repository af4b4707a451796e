//! Runs one VM, from its directory to QEMU's end.

use std::fs::File;
use std::net::SocketAddrV4;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use daemon_kit::clock::Clock;
use neonvm_quota::QuotaGroup;
use nix::fcntl::{Flock, FlockArg};
use protocol::migration::{IncomingOrder, IncomingReport, IncomingStage};
use protocol::runner::{BeforeSilence, ExitReason, ExitReport, QuotaState, RunnerState, SizeOrder};
use protocol::time::Timestamp;
use protocol::trace::TraceId;
use protocol::vm::CpuScalingMode;
use tokio::net::TcpListener;
use tokio::process::Child;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::bounds::Bounds;
use super::bridge;
use super::claims::{self, OpenDisks};
use super::console::KeptLog;
use super::control::{Handle, Token, bind_private, serve_pod, serve_private};
use super::drives;
use super::first_words::{first_state, waiting_state};
use super::forward::Forwarder;
use super::metrics::Metrics;
use super::overlay;
use super::owed::Owed;
use super::passt;
use super::process::{self, ProcessId};
use super::record::{Record, private_dir, read_json, write_json};
use super::root_disk;
use super::run_error::{MAX_DIR_BYTES, RunError};
use super::shown::Shown;
use super::supervisor::{INPUT_BACKLOG, Input, OnCancel, Seen, Supervisor};
use super::traffic;
use super::transfer::{self, Ask};
use super::{console, disk, follow, guestd_key, init_script, walls};
use crate::accel::{self, knowledge};
use crate::config::{Accel, AccelChoice, RunnerConfig};
use crate::core::args::qemu_args;
use crate::core::budget::PlugBudget;
use crate::core::claims::FIRST_FILE;
use crate::core::disks::{self, Drive};
use crate::core::forwards;
use crate::core::guestd_key::GuestdKey;
use crate::core::nic;
use crate::core::passt::{Connection, connection};
use crate::core::paths::Paths;
use crate::core::room::Room;
use crate::core::shape::{self, Shape};
use crate::core::silence::Silence;
use crate::core::sizer::{Event, Sizer};
use crate::core::transfer::{Arrival, Incoming, Manifest, Outgoing, Unfit};

mod left;

use left::Found;

/// Prefix of QEMU's cgroup below the runner's own, before the pod's name
/// (docs/compatibility/neonvm.md §3.5).
const OWN_GROUP: &str = "neonvm-qemu-";
/// How long the report stays readable on the control socket after the end.
const LINGER: Duration = Duration::from_millis(300);

/// Ends of a runner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    /// QEMU has ended.
    Exited(ExitReport),
    /// The runner was cancelled and left QEMU running.
    Left,
}

/// Runs the VM of a directory (`config.json` in it) until QEMU ends or `cancel` fires: adopts a
/// running QEMU, else starts one. For a directory with a report it returns the report at once.
///
/// # Errors
/// [`RunError`]; nothing was started.
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
    let read =
        |path: &PathBuf| Token::new(path).map_err(|error| RunError::Token(path.clone(), error));
    let token = config.control_token.as_ref().map(read).transpose()?;
    let control = bind_private(&paths.control())
        .map_err(|error| RunError::Bind(paths.control().display().to_string(), error))?;
    let runner = Runner {
        config,
        paths,
        clock,
        on_cancel,
    };
    let found = runner.find()?;
    if let Found::Ended(report) = found {
        return Ok(End::Exited(report));
    }
    let (inputs, taken) = mpsc::channel(INPUT_BACKLOG);
    let (metrics, registry) = Metrics::new(traffic::is_counted(&runner.config));
    let shown = traffic::route(registry, metrics.clone(), clock);
    let mut desk = Desk {
        inputs,
        taken,
        metrics,
        state: watch::channel(waiting_state()).0,
        stop: CancellationToken::new(),
    };
    let guest_counts = runner.config.spec.cpu_scaling_mode == Some(CpuScalingMode::SysfsScaling);
    let handle = Handle {
        inputs: desk.inputs.clone(),
        state: desk.state.subscribe(),
        guest_counts,
    };
    tokio::spawn(serve_private(control, handle.clone(), desk.stop.clone()));
    let ended = desk.stop.clone();
    tokio::spawn(serve_pod(pod, handle, token, shown, ended));
    if !matches!(found, Found::Running(_)) {
        let script = init_script::run(&runner.config, &runner.paths.dir);
        tokio::select! {
            () = cancel.cancelled() => return Ok(End::Left),
            done = script => done?,
        }
    }
    // Held until QEMU has ended.
    let mut held = Vec::new();
    let (record, child) = match found {
        Found::Running(record) => (*record, None),
        Found::Nothing if runner.config.receive => {
            match runner.receive(&mut desk, &cancel).await? {
                Ok(started) => started,
                Err(end) => return Ok(end),
            }
        }
        _ => runner.start(&mut held).await?,
    };
    Ok(runner.supervise(record, child, desk, cancel).await)
}

/// The driver's inputs and outputs before it runs.
struct Desk {
    inputs: mpsc::Sender<Input>,
    taken: mpsc::Receiver<Input>,
    state: watch::Sender<RunnerState>,
    metrics: Metrics,
    stop: CancellationToken,
}

fn lock(paths: &Paths) -> Result<Flock<File>, RunError> {
    let file = process::append_file(&paths.lock())
        .map_err(|error| RunError::Dir(paths.dir.clone(), error))?;
    Flock::lock(file, FlockArg::LockExclusiveNonblock)
        .map_err(|_| RunError::Held(paths.dir.clone()))
}

struct Runner {
    config: Arc<RunnerConfig>,
    paths: Paths,
    clock: Clock,
    on_cancel: OnCancel,
}

impl Runner {
    /// Starts a new QEMU. Locks on the VM's disks are added to `held`.
    async fn start(
        &self,
        held: &mut Vec<Flock<File>>,
    ) -> Result<(Record, Option<Child>), RunError> {
        let config = &self.config;
        let accel = self.accel().await;
        let blind = knowledge::is_blind(&config.knowledge_dir, &config.image.kernel_version, accel);
        let control = shape::control(config.spec.cpu_scaling_mode, blind);
        let shape = shape::shape(&config.spec.guest, control, accel)?;
        let key = self.paths.guestd_key();
        let key = guestd_key::make(&key).map_err(|error| RunError::GuestdKey(key, error))?;
        let ssh = config.ssh_public_key.as_deref();
        let plan = disks::plan(&config.spec, ssh, Some(&key))?;
        let plan = plan.with_monitor_token(drives::monitor_token(&self.paths)?.as_deref());
        let queues = nic::queues(&shape, None);
        bridge::prepare(config, None, queues).await?;
        overlay::prepare(config.overlay.as_ref(), queues).await?;
        let OpenDisks { files, locks } = claims::open(config, &plan, self.clock.wall()).await?;
        held.extend(locks);
        match &config.root_overlay {
            _ if config.root_is_claimed() => {}
            Some(path) => root_disk::open(config, path).await?,
            None => disk::make_overlay(config, &self.paths.root_disk(config)).await?,
        }
        let drives = drives::make_all(config, &self.paths, &plan).await?;
        self.launch(self.new_record(accel, shape, drives), None, files)
            .await
    }

    async fn accel(&self) -> Accel {
        let (config, qemu) = (&self.config, &self.config.programs.qemu_system);
        let knowledge = Some(config.knowledge_dir.as_path());
        let resolved = if config.spec.enable_acceleration {
            accel::resolve(config.accel, qemu, knowledge).await
        } else {
            accel::resolve(AccelChoice::Tcg, qemu, None).await
        };
        resolved.accel
    }

    fn new_record(&self, accel: Accel, shape: Shape, drives: Vec<Drive>) -> Record {
        let config = &self.config;
        Record {
            host_boot_id: process::host_boot_id(),
            qemu: None,
            passt: None,
            walls: Vec::new(),
            accel,
            budget: shape.budget,
            shape,
            started_unix_us: self.clock.wall().0,
            boot_ms: None,
            drives,
            order: None,
            orders: 0,
            stop_ordered: false,
            cgroup: if config.cgroup_in_own {
                Some(format!("{OWN_GROUP}{}", config.pod))
            } else {
                let parent = config.cgroup_parent.as_ref();
                parent.map(|parent| format!("{parent}/{}_{}", config.namespace, config.pod))
            },
            leaving: None,
            arrival: None,
            moved: false,
        }
    }

    async fn launch(
        &self,
        mut record: Record,
        from: Option<&Manifest>,
        files: Vec<OwnedFd>,
    ) -> Result<(Record, Option<Child>), RunError> {
        let (console, guest) = (self.paths.console_log(), self.paths.guest_log());
        let passt_log = self.paths.passt_log();
        for log in [console, guest, self.paths.qemu_log(), passt_log] {
            console::prepare(&log).map_err(|error| RunError::Dir(log, error))?;
        }
        let config = &self.config;
        let connection = connection(config, from);
        let input = self.connect(&mut record, connection).await?;
        let (enclosure, walls) =
            walls::choose(config, connection, &self.paths, &record.drives).await;
        record.walls = walls;
        // Before QEMU: the next runner must know what kind of QEMU it may find.
        write_json(&self.paths.record(), &record)?;
        let accel = record.accel;
        let args = qemu_args(
            config,
            &record.shape,
            accel,
            &self.paths,
            &record.drives,
            from,
        );
        let serves = matches!(connection, Connection::UserNetwork);
        let qemu = enclosure.command(&config.programs.qemu_system, args);
        let start = process::Start {
            program: &qemu.file,
            args: &qemu.args,
            env: &qemu.env,
            sandbox: enclosure.sandbox(),
            dir: &self.paths.dir,
            log: &self.paths.qemu_log(),
            input,
            files: files.into_iter().zip(FIRST_FILE..).collect(),
            low_ports: serves
                && forwards::needs_privilege(config, from, process::first_free_port()),
        };
        let child =
            process::start(start).map_err(|error| RunError::Qemu(qemu.file.clone(), error))?;
        record.qemu = child.id().and_then(ProcessId::of);
        write_json(&self.paths.record(), &record)?;
        info!(pid = child.id(), accel = accel.as_str(), "QEMU started");
        Ok((record, Some(child)))
    }

    /// Starts the network process of a guest that is connected by passt. Returns QEMU's standard
    /// input.
    async fn connect(
        &self,
        record: &mut Record,
        connection: Connection<'_>,
    ) -> Result<Option<OwnedFd>, RunError> {
        let Connection::Passt(walls) = connection else {
            return Ok(None);
        };
        let started = passt::start(&self.config, walls, &self.paths).await?;
        record.passt = started.process;
        Ok(Some(started.listener))
    }

    /// Waits for the order of an incoming migration, and starts a QEMU of the guest's shape. `Err`
    /// is an end without one.
    async fn receive(
        &self,
        desk: &mut Desk,
        cancel: &CancellationToken,
    ) -> Result<Result<(Record, Option<Child>), End>, RunError> {
        info!("waiting for a guest");
        loop {
            let input = tokio::select! {
                () = cancel.cancelled() => return Ok(Err(End::Left)),
                input = desk.taken.recv() => input,
            };
            match input {
                Some(Input::Ask(Ask::Receive(order), answer)) => {
                    let id = order.id.clone();
                    match self.build_like(*order).await {
                        Ok(Ok(started)) => {
                            let mut state = first_state(&started.0);
                            state.generation = desk.state.borrow().generation + 1;
                            desk.state.send_replace(state.clone());
                            let _ = answer.send(Ok(state));
                            return Ok(Ok(started));
                        }
                        Ok(Err(unfit)) => {
                            let why = unfit.to_string();
                            warn!(migration = id, why, "the guest cannot come here");
                            desk.state.send_modify(|state| {
                                state.generation += 1;
                                state.incoming = Some(IncomingReport {
                                    id,
                                    stage: IncomingStage::Failed,
                                    destination: None,
                                    problem: Some(why),
                                    began_unix_us: None,
                                });
                            });
                            let _ = answer.send(Ok(desk.state.borrow().clone()));
                        }
                        Err(error) => return Err(error),
                    }
                }
                Some(Input::Ask(_, answer)) => {
                    let _ = answer.send(Err("there is no guest here".to_owned()));
                }
                Some(Input::Stop(_)) => {
                    let report = ExitReport {
                        success: true,
                        reason: ExitReason::Requested,
                        code: None,
                        message: "no guest came".to_owned(),
                    };
                    write_json(&self.paths.exit(), &report)?;
                    return Ok(Err(End::Exited(report)));
                }
                Some(_) => {}
                // The driver itself holds a sender.
                None => return Ok(Err(End::Left)),
            }
        }
    }

    /// Starts a QEMU for the guest of a migration order.
    async fn build_like(
        &self,
        order: IncomingOrder,
    ) -> Result<Result<(Record, Option<Child>), Unfit>, RunError> {
        let from = transfer::manifest(&self.config, &order).and_then(|from| {
            transfer::is_reached(&self.config, &order, &from)?;
            Ok(from)
        });
        let from = match from {
            Ok(from) => from,
            Err(unfit) => return Ok(Err(unfit)),
        };
        let accel = self.accel().await;
        if accel != from.accel {
            return Ok(Err(Unfit::Accel {
                here: accel.as_str(),
                there: from.accel.as_str(),
            }));
        }
        let key = self.paths.guestd_key();
        guestd_key::keep(&key, from.guestd_key.as_ref())
            .map_err(|error| RunError::GuestdKey(key, error))?;
        let shares_disk = transfer::make_disk(&self.config, &self.paths, &order, &from).await?;
        let drives = transfer::make_drives(&self.config, &self.paths, &from, shares_disk).await;
        let drives = match drives {
            Ok(drives) => drives,
            Err(unfit) => return Ok(Err(unfit)),
        };
        let queues = nic::queues(&from.shape, Some(&from));
        bridge::prepare(&self.config, Some(&from), queues).await?;
        overlay::prepare(self.config.overlay.as_ref(), queues).await?;
        info!(
            migration = order.id,
            shares_disk, "building a QEMU like the guest's"
        );
        let plugged = u32::try_from(from.cpus.len()).unwrap_or(u32::MAX);
        let shape = Shape {
            // A new QEMU has started only its initial vCPU threads.
            budget: from.shape.budget.map(|_| {
                PlugBudget::new(
                    from.shape.sockets,
                    from.shape.boot_cpus.saturating_add(plugged),
                )
            }),
            ..from.shape.clone()
        };
        let record = Record {
            boot_ms: from.boot_ms,
            order: from.order.clone(),
            orders: 0,
            arrival: Some(Arrival {
                order,
                shares_disk,
                listening: false,
                begun: false,
                ran: false,
            }),
            ..self.new_record(accel, shape, drives)
        };
        self.launch(record, Some(&from), Vec::new()).await.map(Ok)
    }

    async fn supervise(
        self,
        mut record: Record,
        child: Option<Child>,
        desk: Desk,
        cancel: CancellationToken,
    ) -> End {
        let Desk {
            inputs,
            taken,
            state,
            metrics,
            stop,
        } = desk;
        state.send_modify(|state| {
            let generation = state.generation + 1;
            *state = RunnerState {
                generation,
                ..first_state(&record)
            };
        });
        let origin = transfer::origin(&self.config, &record);
        if let Some(qemu) = record.qemu {
            bridge::keep_connected(&self.config, qemu, origin.as_ref());
            overlay::keep_connected(&self.config, qemu, origin.as_ref());
        }
        let (group, quota) = self.join_group(&record);
        let bounds = self.bounds(&mut record);
        let now = self.clock.now();
        // A guest that has answered an earlier runner, or another QEMU, has booted.
        let comes = record.arrival.is_some();
        let boots = record.boot_ms.is_none() && !comes;
        let booting = (child.is_some() && boots).then_some(now);
        let before = if boots {
            BeforeSilence::Boot
        } else {
            BeforeSilence::Adoption
        };
        let mut sizer = self.sizer(&record, booting, now);
        let outgoing = record.leaving.clone().map(Outgoing::found);
        let incoming = record
            .arrival
            .clone()
            // Only a guest that has run here can leave.
            .map(|arrival| Arrival {
                ran: arrival.ran || record.leaving.is_some(),
                ..arrival
            })
            .map(|arrival| {
                let at = transfer::destination(&self.config, &self.paths, &arrival);
                Incoming::new(arrival, at)
            });
        let waits = incoming.as_ref().filter(|at| !at.is_begun());
        let held = waits
            .map(Incoming::id)
            .or(outgoing.as_ref().map(Outgoing::id));
        sizer.handle(now, Event::Hold(held.map(str::to_owned)));
        let logs = console::logs(&self.paths);
        let forwarder = self.forwarder(&logs, child.is_none());
        let supervisor = Supervisor {
            sizer,
            config: self.config.clone(),
            paths: self.paths.clone(),
            logs,
            clock: self.clock,
            silence: Silence::new(now, self.clock.wall(), before),
            room: Room::default(),
            guestd_key: self.guestd_key(),
            seen: Seen::new(child.is_none()),
            owed: Owed::default(),
            record,
            group,
            quota,
            bounds,
            inputs: inputs.clone(),
            state: Shown::new(state),
            on_cancel: self.on_cancel,
            outgoing,
            incoming,
            metrics,
            stop: stop.clone(),
        };
        supervisor.show_quota();
        let user = walls::user(&self.config, &supervisor.record.walls);
        let (process, passt) = (supervisor.record.qemu, supervisor.record.passt);
        let network_ends = stop.child_token();
        let by_passt = matches!(
            connection(&self.config, origin.as_ref()),
            Connection::Passt(_)
        );
        let network = by_passt.then(|| {
            let (config, paths) = (self.config.clone(), self.paths.clone());
            let stop = network_ends.clone();
            tokio::spawn(passt::keep(config, paths, passt, inputs.clone(), stop))
        });
        tokio::spawn(follow::watch_process(
            child,
            process,
            inputs.clone(),
            stop.clone(),
        ));
        tokio::spawn(follow::follow_monitor(
            self.paths.qmp(),
            user,
            inputs,
            stop.clone(),
        ));
        let end = supervisor.run(taken, cancel).await;
        if let Some(forwarder) = forwarder {
            forwarder.finish().await;
        }
        if end.is_some() {
            network_ends.cancel();
            // It ends by itself when QEMU has closed its socket, unless it hangs.
            if let Some(network) = network
                && let Ok(Some(process)) = network.await
            {
                process.kill();
            }
            bridge::clear(&self.config, origin.as_ref()).await;
            overlay::clear(self.config.overlay.as_ref()).await;
            tokio::time::sleep(LINGER).await;
        }
        stop.cancel();
        end.map_or(End::Left, End::Exited)
    }

    /// Key of the guest's daemon.
    fn guestd_key(&self) -> Option<GuestdKey> {
        let path = self.paths.guestd_key();
        guestd_key::read(&path).unwrap_or_else(|error| {
            let path = path.display();
            warn!(%path, %error, "no key to show to the guest's daemon, which will not answer");
            None
        })
    }

    /// Forwards the guest's output from now on, if the configuration asks for it. An earlier runner
    /// has forwarded that of an adopted guest.
    fn forwarder(&self, logs: &[Arc<KeptLog>], runs_already: bool) -> Option<Forwarder> {
        let ours = [self.paths.console_log(), self.paths.guest_log()];
        let of_guest = logs
            .iter()
            .filter(|log| ours.iter().any(|path| path == log.path()));
        let of_guest: Vec<_> = of_guest.cloned().collect();
        if !self.config.tells_guest {
            return None;
        }
        if runs_already {
            of_guest.iter().for_each(|log| log.skip());
        }
        Some(Forwarder::start(self.clock, of_guest, std::io::stdout()))
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

    /// Limits QEMU's memory and processes; the record gets the result.
    fn bounds(&self, record: &mut Record) -> Bounds {
        let before = record.walls.clone();
        let bounds = Bounds::join(&self.config, record);
        if record.walls != before
            && let Err(error) = write_json(&self.paths.record(), record)
        {
            let error = daemon_kit::chain(&error);
            warn!(error, "walls not written down");
        }
        bounds
    }

    fn join_group(&self, record: &Record) -> (Option<QuotaGroup>, QuotaState) {
        let (Some(path), Some(process)) = (&record.cgroup, record.qemu) else {
            let reason = "no cgroup is configured".to_owned();
            return (None, QuotaState::Unavailable { reason });
        };
        let made = if self.config.cgroup_in_own {
            QuotaGroup::make_in_own(path)
        } else {
            QuotaGroup::make(path)
        };
        let joined = made.and_then(|group| {
            group.join(process.pid)?;
            Ok(group)
        });
        match joined {
            Ok(group) => (Some(group), QuotaState::Unset),
            Err(error) => {
                let reason = daemon_kit::chain(&error);
                warn!(
                    reason,
                    "CPU limits are not enforced: only the number of CPUs is"
                );
                (None, QuotaState::Unavailable { reason })
            }
        }
    }
}
