//! Reports of the guest's daemon, and the actions at the first one.

use std::net::SocketAddrV4;

use protocol::core::Core as _;
use protocol::runner::{GUESTD_FORWARD, GuestSilence, GuestState};
use protocol::time::Timestamp;
use tracing::{info, warn};

use super::VmDriver;
use crate::accel::knowledge;
use crate::core::disks;
use crate::core::shape::CpuControl;
use crate::core::sizer::Event;
use crate::core::transfer::Outgoing;
use crate::shell::event_sources;
use crate::shell::guest::{Daemon, GuestReport, push_key};
use crate::shell::{drives, sync};

impl VmDriver {
    /// Begins to follow the guest's daemon. Repeated calls have no effect.
    pub(super) fn follow_guest(&mut self) {
        if !std::mem::replace(&mut self.seen.follows_guest, true) {
            let (daemon, inputs) = (self.daemon(), self.inputs.clone());
            tokio::spawn(event_sources::follow_guest(
                daemon,
                inputs,
                self.stop.clone(),
            ));
        }
    }

    pub(super) fn take_guest(&mut self, now: Timestamp, report: GuestReport) {
        self.liveness.answered(now, self.clock.wall());
        let is_first = !std::mem::replace(&mut self.seen.answers, true);
        if is_first {
            self.first_answer();
        }
        match report {
            GuestReport::State(state) => {
                if self.seen.guest.is_none() {
                    self.first_state(&state);
                }
                self.seen.programs.update(now, &state.programs);
                self.seen.parts.update(now, &state.parts);
                self.seen.guest = Some(state.clone());
                self.sizer.handle(now, Event::Guest(state));
            }
            GuestReport::Cpus(online) => {
                if is_first {
                    info!(online, "guest answers; its daemon reports only CPUs");
                }
                self.sizer.handle(now, Event::GuestCpus(online));
            }
        }
    }

    fn first_answer(&mut self) {
        if self.record.boot_ms.is_none() {
            let us = self
                .clock
                .wall()
                .0
                .saturating_sub(self.record.started_unix_us);
            self.record.boot_ms = Some(u64::try_from(us / 1000).unwrap_or(0));
            self.save();
        }
        if let Some(key) = self.config.ssh_public_key.clone() {
            let has_drive = self
                .record
                .drives
                .iter()
                .any(|drive| drive.id == disks::KEYS);
            tokio::spawn(push_key(self.daemon(), key, has_drive));
        }
        self.keep_files();
    }

    fn first_state(&mut self, state: &GuestState) {
        info!(
            boot_id = state.boot_id,
            kernel = state.kernel,
            boot_ms = self.record.boot_ms,
            "guest answers"
        );
        let shape = &self.record.shape;
        if shape.control == CpuControl::Plug && state.cpus_possible < shape.max_cpus {
            warn!(
                kernel = state.kernel,
                possible = state.cpus_possible,
                wanted = shape.max_cpus,
                "this guest kernel does not see hot-plugged CPUs; the VM's next start switches CPUs inside the guest"
            );
            let name = &self.config.image.kernel_version;
            if let Err(error) =
                knowledge::remember_blind(&self.config.knowledge_dir, name, self.record.accel)
            {
                warn!(error = daemon_kit::chain(&error), "not remembered");
            }
        }
    }

    /// Starts to synchronise the pod's files into the guest.
    fn keep_files(&self) {
        // A refused spec starts no guest, but an older runner may have accepted it.
        let paths = disks::plan(&self.config.spec, None, None)
            .map(|plan| plan.watched)
            .unwrap_or_default();
        if paths.is_empty() {
            return;
        }
        let mounts = drives::mounts(&self.config, &self.paths);
        let (clock, daemon) = (self.clock, self.daemon());
        tokio::spawn(sync::keep(
            clock,
            daemon,
            mounts,
            paths,
            self.metrics.clone(),
            self.stop.clone(),
        ));
    }

    /// The guest's silence, if a guest that should answer does not.
    pub(super) fn guest_silent(&self, now: Timestamp) -> Option<GuestSilence> {
        let ends = self.seen.ended.is_some() || self.seen.stopping.is_some();
        let silence = self.liveness.silence(now);
        // A guest that QEMU has stopped does not hang.
        let is_kept = self.recovery.full().is_some();
        silence.filter(|_| !ends && !is_kept && !self.is_away())
    }

    /// Whether the guest has not arrived, or has left.
    pub(super) fn is_away(&self) -> bool {
        self.incoming.as_ref().is_some_and(|at| !at.is_begun())
            || self.outgoing.as_ref().is_some_and(Outgoing::is_handed_over)
    }

    pub(super) fn daemon(&self) -> Daemon {
        Daemon {
            address: SocketAddrV4::new(self.config.pod_ip, GUESTD_FORWARD),
            key: self.guestd_key.clone(),
        }
    }
}
