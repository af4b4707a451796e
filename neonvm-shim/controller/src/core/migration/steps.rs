//! A migration's way to its end (docs/compatibility/neonvm.md §2.9).
//!
//! ```text
//! ""  ──► names ──► VM PreMigrating ──► Pending: target pod ──► source holds still ──► target listens
//!     ──► VM Migrating ──► Running: source sends ──► source stopped for good and target has all of it
//!     ──► VM's pod is the target  (the point of no return)  ──► target runs ──► owners ──► source ends ──► Succeeded
//! ```

use protocol::claims::claimed_disks;
use protocol::migration::{
    DiskTravel, IncomingOrder, IncomingStage, OutgoingOrder, OutgoingStage, StreamOptions,
};
use protocol::object::Pod;
use protocol::time::{Span, Timestamp, WallTime};
use protocol::units::Bytes;
use protocol::vm::VmPhase;
use serde_json::json;

use super::action::Action;
use super::objects::{Part, is_of, target_pod};
use super::plan::{Draft, PENDING, PodView, RUNNING};
use super::reason::{Reason, Wait};
use crate::core::metadata;
use crate::core::observe::{PodState, disk_image, is_unprivileged, pod_state};
use crate::core::pod::owner;
use crate::core::problem::peer_text;
use crate::core::vm_event::VmEvent;
use crate::core::volumes::runner_secret;

/// Progress is written at most this often.
const PROGRESS_INTERVAL: Span = Span::from_secs(1);

impl Draft<'_> {
    /// Not begun: it waits for its turn and for its VM to be at rest.
    pub(super) fn fresh(&mut self, before: Option<&str>) {
        if self.status.conditions.is_empty() {
            self.available("Unknown", "Starting reconciliation");
        }
        let Some(vm) = self.vm else {
            let vm = self.migration.spec.vm_name.clone();
            return self.fail(&Reason::NoVm { vm });
        };
        if vm.metadata.deletion_timestamp.is_some() {
            return self.fail(&Reason::VmDeleted);
        }
        let disks = claimed_disks(&vm.spec);
        if !disks.is_empty() {
            let claims = disks.into_iter().map(|disk| disk.claim).collect();
            return self.fail(&Reason::DisksOnClaims { claims });
        }
        if self.status.target_pod_name.is_empty() {
            self.status.target_pod_name = format!("{}-{}", vm.metadata.name, self.input.suffix);
        }
        if let Some(behind) = before {
            let behind = behind.to_owned();
            return self.waits_for_vm(&Wait::Turn { behind });
        }
        let (phase, status) = (self.vm_phase(), self.vm_status().cloned());
        let status = status.unwrap_or_default();
        let is_named = !status.pod_name.is_empty()
            && self.stored.source_pod_name == status.pod_name
            && !self.stored.target_pod_name.is_empty();
        match phase {
            VmPhase::Running if is_named => self.write_vm(VmPhase::PreMigrating, None),
            VmPhase::PreMigrating if is_named && self.holds_claim() != Some(false) => {
                self.status.phase = PENDING.into();
                let pod = self.status.target_pod_name.clone();
                let why = String::new();
                self.wait(&Wait::Target { pod, why });
            }
            VmPhase::Running => {
                self.status.source_pod_name = status.pod_name;
                self.status.source_pod_ip = status.pod_ip;
                self.status.source_node = status.node;
            }
            phase => self.waits_for_vm(&Wait::VmAtRest { phase }),
        }
    }

    /// Waits, as long as it may take altogether.
    fn waits_for_vm(&mut self, wait: &Wait) {
        self.available("Unknown", &wait.to_string());
        let born = self.migration.metadata.creation_timestamp;
        if let Some(reason) = born.and_then(|born| self.too_late(born)) {
            self.fail(&reason);
        }
    }

    /// The reason to give up, if it was begun too long ago; else it is looked at again then.
    fn too_late(&mut self, since: WallTime) -> Option<Reason> {
        let after_s = u32::try_from(self.migration.spec.completion_timeout).ok()?;
        if after_s == 0 {
            return None;
        }
        let limit = i64::from(after_s).saturating_mul(1_000_000);
        let age = self.input.at.wall.0.saturating_sub(since.0);
        if age >= limit {
            return Some(Reason::TimedOut { after_s });
        }
        let left = u64::try_from(limit.saturating_sub(age)).unwrap_or(0);
        self.wake_at(self.input.at.now + Span(left.saturating_add(1)));
        None
    }

    /// Why there is no point in going on, whatever the phase.
    fn hopeless(&mut self) -> Option<Reason> {
        let Some(vm) = self.vm else {
            let vm = self.migration.spec.vm_name.clone();
            return Some(Reason::NoVm { vm });
        };
        if vm.metadata.deletion_timestamp.is_some() {
            return Some(Reason::VmDeleted);
        }
        let status = vm.status.clone().unwrap_or_default();
        let taken = matches!(status.phase, VmPhase::PreMigrating | VmPhase::Migrating)
            && self.holds_claim() != Some(false);
        if !taken || status.pod_name != self.stored.source_pod_name {
            return Some(Reason::VmChanged {
                phase: status.phase,
            });
        }
        self.begun_at().and_then(|since| self.too_late(since))
    }

    fn how(&self) -> StreamOptions {
        let spec = &self.migration.spec;
        StreamOptions {
            post_copy: spec.allow_post_copy,
            auto_converge: spec.auto_converge,
            max_bandwidth: Bytes(spec.max_bandwidth.as_u64().unwrap_or(0)),
        }
    }

    /// The source, as long as the guest is in it.
    fn live_source(&mut self) -> Option<&Pod> {
        let name = self.stored.source_pod_name.clone();
        match self.source() {
            PodView::Unknown => {
                self.read_pod(&name);
                None
            }
            PodView::Absent => {
                let why = String::new();
                self.fail(&Reason::SourceEnded { pod: name, why });
                None
            }
            PodView::Present(pod) => match self.end(pod) {
                Some(why) => {
                    self.fail(&Reason::SourceEnded { pod: name, why });
                    None
                }
                None => Some(pod),
            },
        }
    }

    /// The target, as long as it is well.
    fn live_target(&mut self) -> Option<&Pod> {
        let name = self.stored.target_pod_name.clone();
        match self.target() {
            PodView::Unknown => self.read_pod(&name),
            PodView::Absent if self.stored.target_node.is_empty() => self.create_target(),
            PodView::Absent => self.fail(&Reason::TargetGone { pod: name }),
            PodView::Present(pod) if !is_of(pod, &self.migration.metadata) => {
                // The name is somebody else's: another one.
                let vm = &self.migration.spec.vm_name;
                self.status.target_pod_name = format!("{vm}-{}", self.input.suffix);
            }
            PodView::Present(pod) => {
                let deleted = pod.metadata.deletion_timestamp.is_some();
                let end = self.end(pod);
                if let Some(why) = end.or_else(|| deleted.then(|| "it was deleted".into())) {
                    self.fail(&Reason::TargetEnded { pod: name, why });
                    return None;
                }
                return Some(pod);
            }
        }
        None
    }

    fn create_target(&mut self) {
        let Some(vm) = self.vm else { return };
        let settings = self.input.settings;
        let at_pods = settings.runners_at_pods;
        let source = self.input.pods.get(&self.stored.source_pod_name);
        // Both ends of a move have the same network.
        let settings = match source {
            Some(source) if is_unprivileged(source) => &settings.unprivileged(),
            _ => settings,
        };
        self.actions.push(Action::CreatePod {
            name: self.stored.target_pod_name.clone(),
            pod: target_pod(vm, self.migration, settings),
            secret: at_pods.then(|| (runner_secret(&vm.metadata.name), owner(vm))),
        });
    }

    /// Pending: both sides are prepared; the guest runs on as if nothing were.
    pub(super) fn pending(&mut self) {
        if let Some(reason) = self.hopeless() {
            return self.fail(&reason);
        }
        let Some(source) = self.live_source().cloned() else {
            return;
        };
        let Some(target) = self.live_target().cloned() else {
            return;
        };
        // Owned before held: whoever tidies up finds what was held by who owns it.
        if !self.own(&source, Part::Source) {
            return;
        }
        self.own(&target, Part::Target);
        self.sync(&target);
        self.status.target_node.clone_from(&target.spec.node_name);
        if pod_state(&target, self.input.at.wall) != PodState::Running {
            let why = unplaced(&target);
            let pod = target.metadata.name;
            return self.wait(&Wait::Target { pod, why });
        }
        self.status.target_pod_ip.clone_from(&target.status.pod_ip);
        self.status.source_pod_ip.clone_from(&source.status.pod_ip);
        self.prepare();
    }

    /// Labels and annotations of the target are the VM's, like those of any pod of it.
    fn sync(&mut self, target: &Pod) {
        let Some(vm) = self.vm else { return };
        let ops = metadata::expected(vm, self.input.settings).patch(&target.metadata);
        if !ops.is_empty() {
            let name = target.metadata.name.clone();
            self.actions.push(Action::PatchPod { name, ops });
        }
    }

    /// The target waits for the guest, which holds still as soon as that is so, and not before.
    fn prepare(&mut self) {
        let (source, target) = (
            self.stored.source_pod_name.clone(),
            self.stored.target_pod_name.clone(),
        );
        let Some(incoming) = self.incoming() else {
            return self.waits_for_runner(&target);
        };
        match incoming.stage {
            IncomingStage::Failed => {
                let why = peer_text(incoming.problem.as_deref().unwrap_or_default());
                self.fail(&Reason::TargetRefused { why });
            }
            IncomingStage::Waiting => match self.outgoing() {
                None => self.send(source.clone(), None, &source),
                Some(report) if report.stage == OutgoingStage::Failed => self.refused(),
                Some(report) => {
                    if let Some(shape) = report.shape.clone() {
                        let disk = self.travel();
                        let order = Box::new(IncomingOrder {
                            id: self.id().to_owned(),
                            shape,
                            disk,
                            how: self.how(),
                        });
                        self.actions.push(Action::Receive { pod: target, order });
                    } else {
                        self.waits_for_runner(&source);
                    }
                }
            },
            IncomingStage::Starting => self.waits_for_runner(&target),
            IncomingStage::Listening | IncomingStage::Loaded | IncomingStage::Begun => {
                if self.vm_phase() == VmPhase::PreMigrating {
                    self.write_vm(VmPhase::Migrating, None);
                } else {
                    self.status.phase = RUNNING.into();
                    self.available("False", &format!("the guest is sent to pod {target}"));
                    let (from, to) = (source, target);
                    self.notes.push(VmEvent::Migrating { from, to });
                }
            }
        }
    }

    /// How the disk travels. What was written over an image is worth nothing over another one, and
    /// in a cluster a name does not say that two nodes have the same: then all of it is sent.
    fn travel(&self) -> DiskTravel {
        let image = |pod| match pod {
            PodView::Present(pod) => disk_image(pod),
            _ => None,
        };
        let same = !self.input.settings.runners_at_pods
            || image(self.source()).is_some_and(|source| image(self.target()) == Some(source));
        if self.migration.spec.incremental && same {
            DiskTravel::Auto
        } else {
            DiskTravel::Whole
        }
    }

    fn send(&mut self, pod: String, to: Option<protocol::migration::Destination>, asked: &str) {
        let held = self.runner(&pod).and_then(|state| state.outgoing.as_ref());
        if held.is_some_and(|report| report.id != self.id()) || self.runner(&pod).is_none() {
            // Another migration's, that tidies up; or nobody to tell.
            return self.waits_for_runner(asked);
        }
        let (id, how) = (self.id().to_owned(), self.how());
        let order = OutgoingOrder { id, to, how };
        self.actions.push(Action::Send { pod, order });
    }

    fn refused(&mut self) {
        let report = self.outgoing();
        let why = report.and_then(|report| report.problem.as_deref());
        let why = peer_text(why.unwrap_or_default());
        self.fail(&Reason::SourceRefused { why });
    }

    fn waits_for_runner(&mut self, pod: &str) {
        let why = match self.input.runners.get(pod) {
            Some(super::plan::KnownRunner::Silent { error }) => peer_text(error),
            Some(super::plan::KnownRunner::Known { .. }) => "it is not ready".into(),
            None => "it has not answered yet".into(),
        };
        let pod = pod.to_owned();
        self.wait(&Wait::Runner { pod, why });
    }

    /// Running: the guest is on its way, and still the source's.
    pub(super) fn running(&mut self) {
        let source = self.source();
        let source_gone = match source {
            PodView::Absent => true,
            PodView::Present(pod) => self.end(pod).is_some(),
            PodView::Unknown => false,
        };
        let loaded = self
            .incoming()
            .is_some_and(|report| report.stage == IncomingStage::Loaded);
        let handed_over = self
            .outgoing()
            .is_some_and(|report| report.stage == OutgoingStage::HandedOver);
        let target = match self.target() {
            PodView::Present(pod) => Some(pod),
            _ => None,
        };
        // All of it is there, and nothing here will ever run it again: it is the target's. Nothing
        // but this decides it.
        if let (true, true, Some(target)) = (loaded, handed_over || source_gone, target)
            && self.vm.is_some()
            && self.end(target).is_none()
            && self
                .hopeless()
                .is_none_or(|reason| matches!(reason, Reason::TimedOut { .. }))
        {
            self.keep_figures(true);
            return self.write_vm(VmPhase::Running, Some(target));
        }
        if let Some(reason) = self.hopeless() {
            return self.fail(&reason);
        }
        if self.live_source().is_none() || self.live_target().is_none() {
            return;
        }
        let Some(report) = self.incoming() else {
            let pod = self.stored.target_pod_name.clone();
            return self.waits_for_runner(&pod);
        };
        if report.stage == IncomingStage::Failed {
            let why = peer_text(report.problem.as_deref().unwrap_or_default());
            return self.fail(&Reason::TargetRefused { why });
        }
        let (to, pod) = (
            report.destination.clone(),
            self.stored.source_pod_name.clone(),
        );
        match self.outgoing() {
            Some(report) if report.stage == OutgoingStage::Failed => self.refused(),
            Some(report) if report.stage != OutgoingStage::Holding => self.keep_figures(false),
            _ if to.is_none() => {
                let target = self.stored.target_pod_name.clone();
                self.waits_for_runner(&target);
            }
            _ => self.send(pod.clone(), to, &pod),
        }
    }

    /// The figures of the source, once a second, and the last ones always.
    pub(super) fn keep_figures(&mut self, last: bool) {
        let Some(progress) = self.outgoing().and_then(|report| report.progress.clone()) else {
            return;
        };
        let info = Some(json!(progress));
        if info == self.stored.info {
            return;
        }
        let known = self.stored.info.as_ref();
        let due = known.is_none_or(|info| {
            let then = info["totalTimeMs"].as_i64().unwrap_or(0);
            let apart = progress.total_time_ms.saturating_sub(then);
            u64::try_from(apart).unwrap_or(0) >= PROGRESS_INTERVAL.as_millis() || apart < 0
        });
        if last || due {
            self.status.info = info;
        } else {
            let again: Timestamp = self.input.at.now + PROGRESS_INTERVAL;
            self.wake_at(again);
        }
    }
}

/// What the scheduler says of a pod it cannot place.
fn unplaced(pod: &Pod) -> String {
    let mut all = pod.status.conditions.iter();
    let refused = all.find(|c| c.kind == "PodScheduled" && c.status == "False");
    refused.map_or_else(String::new, |condition| peer_text(&condition.message))
}
