//! Runs the driver of a VM whose QEMU was started or found, and the tasks around it.

use std::sync::Arc;
use std::time::Duration;

use neonvm_quota::QuotaGroup;
use protocol::core::Core as _;
use protocol::runner::{BeforeSilence, QuotaState, RunnerState, SizeOrder};
use protocol::time::Timestamp;
use protocol::trace::TraceId;
use tokio::process::Child;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::{Channels, End, Runner};
use crate::core::connection::{Connection, connection};
use crate::core::disk_full::DiskFullRecovery;
use crate::core::guest_liveness::GuestLiveness;
use crate::core::guestd_key::GuestdKey;
use crate::core::sizer::{Event, Sizer};
use crate::core::transfer::{Arrival, Incoming, Outgoing};
use crate::shell::bounds::Bounds;
use crate::shell::console::{self, KeptLog};
use crate::shell::forward::Forwarder;
use crate::shell::initial_state::first_state;
use crate::shell::input::Input;
use crate::shell::pending_replies::PendingReplies;
use crate::shell::record::{Record, write_json};
use crate::shell::state_publisher::StatePublisher;
use crate::shell::vm_driver::{Observed, VmDriver};
use crate::shell::{bridge, event_sources, guestd_key, overlay, passt, transfer, walls};

/// How long the report stays readable on the control socket after the end.
const LINGER: Duration = Duration::from_millis(300);

impl Runner {
    /// Runs the driver until QEMU has ended or the runner leaves it. `child` is a QEMU that this
    /// runner has started.
    pub(super) async fn supervise(
        self,
        record: Record,
        child: Option<Child>,
        channels: Channels,
        cancel: CancellationToken,
    ) -> End {
        channels.state.send_modify(|state| {
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
        let (inputs, stop) = (channels.inputs.clone(), channels.stop.clone());
        let (driver, receiver) = self.driver(record, child.is_some(), channels);
        let forwarder = self.forwarder(&driver.logs, child.is_none());
        let user = walls::user(&self.config, &driver.record.walls);
        let (process, passt) = (driver.record.qemu, driver.record.passt);
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
        let ended = event_sources::watch_process(child, process, inputs.clone(), stop.clone());
        tokio::spawn(ended);
        let socket = self.paths.qmp();
        tokio::spawn(event_sources::follow_monitor(
            socket,
            user,
            inputs,
            stop.clone(),
        ));
        let end = driver.run(receiver, cancel).await;
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

    /// The driver of a QEMU, and the receiver of its inputs. `is_new` says that this runner has
    /// started the QEMU.
    fn driver(
        &self,
        mut record: Record,
        is_new: bool,
        channels: Channels,
    ) -> (VmDriver, mpsc::Receiver<Input>) {
        let (group, quota) = self.join_group(&record);
        let bounds = self.bounds(&mut record);
        let now = self.clock.now();
        // A guest that has answered an earlier runner, or another QEMU, has booted.
        let boots = record.boot_ms.is_none() && record.arrival.is_none();
        let before = if boots {
            BeforeSilence::Boot
        } else {
            BeforeSilence::Adoption
        };
        let mut sizer = self.sizer(&record, (is_new && boots).then_some(now), now);
        let outgoing = record.leaving.clone().map(Outgoing::found);
        let incoming = self.incoming(&record);
        let waits = incoming.as_ref().filter(|at| !at.is_begun());
        let held = waits
            .map(Incoming::id)
            .or(outgoing.as_ref().map(Outgoing::id));
        sizer.handle(now, Event::Hold(held.map(str::to_owned)));
        let driver = VmDriver {
            sizer,
            config: self.config.clone(),
            paths: self.paths.clone(),
            logs: console::logs(&self.paths),
            clock: self.clock,
            liveness: GuestLiveness::new(now, self.clock.wall(), before),
            recovery: DiskFullRecovery::default(),
            guestd_key: self.guestd_key(),
            seen: Observed::new(!is_new),
            pending: PendingReplies::default(),
            record,
            group,
            quota,
            bounds,
            inputs: channels.inputs,
            state: StatePublisher::new(channels.state),
            on_cancel: self.on_cancel,
            outgoing,
            incoming,
            metrics: channels.metrics,
            stop: channels.stop,
        };
        driver.show_quota();
        (driver, channels.receiver)
    }

    /// The arrival in the record, if there is one.
    fn incoming(&self, record: &Record) -> Option<Incoming> {
        let arrival = record.arrival.clone()?;
        let arrival = Arrival {
            // Only a guest that has run here can leave.
            ran: arrival.ran || record.leaving.is_some(),
            ..arrival
        };
        let at = transfer::destination(&self.config, &self.paths, &arrival);
        Some(Incoming::new(arrival, at))
    }

    /// Key of the guest's daemon.
    fn guestd_key(&self) -> Option<GuestdKey> {
        let path = self.paths.guestd_key();
        guestd_key::read(&path).unwrap_or_else(|error| {
            let path = path.display();
            warn!(%path, %error, "failed to read the key of the guest's daemon, which will refuse requests");
            None
        })
    }

    /// Forwards the guest's output from now on, if the configuration asks for it. An earlier runner
    /// has forwarded that of an adopted guest.
    fn forwarder(&self, logs: &[Arc<KeptLog>], runs_already: bool) -> Option<Forwarder> {
        let ours = [self.paths.console_log(), self.paths.guest_log()];
        let of_guest: Vec<_> = logs
            .iter()
            .filter(|log| ours.iter().any(|path| path == log.path()))
            .cloned()
            .collect();
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
            warn!(error, "failed to record the walls");
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
