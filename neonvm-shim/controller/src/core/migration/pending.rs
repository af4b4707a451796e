//! Phase Pending of a migration: a target pod whose runner waits for the guest.

use protocol::migration::{
    Destination, DiskTravel, IncomingOrder, IncomingStage, OutgoingOrder, OutgoingStage,
    StreamOptions,
};
use protocol::object::Pod;
use protocol::units::Bytes;
use protocol::vm::VmPhase;

use super::action::Action;
use super::objects::{Part, is_of, target_pod};
use super::plan::{Draft, PodView};
use super::reason::{Reason, Wait};
use super::view::{KnownRunner, RUNNING};
use crate::core::metadata;
use crate::core::observe::{PodState, disk_image, is_unprivileged, pod_state};
use crate::core::pod::owner;
use crate::core::problem::peer_text;
use crate::core::vm_event::VmEvent;
use crate::core::volumes::runner_secret;

impl Draft<'_> {
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
        // The source is owned before it holds the guest, so that its owner can be found and tidied
        // up.
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

    /// The source, as long as the guest is in it.
    pub(super) fn live_source(&mut self) -> Option<&Pod> {
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
    pub(super) fn live_target(&mut self) -> Option<&Pod> {
        let name = self.stored.target_pod_name.clone();
        match self.target() {
            PodView::Unknown => self.read_pod(&name),
            PodView::Absent if self.stored.target_node.is_empty() => self.create_target(),
            PodView::Absent => self.fail(&Reason::TargetGone { pod: name }),
            PodView::Present(pod) if !is_of(pod, &self.migration.metadata) => {
                // Another owner has a pod with this name.
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
                    self.available("False", &format!("sending the guest to pod {target}"));
                    let (from, to) = (source, target);
                    self.events.push(VmEvent::Migrating { from, to });
                }
            }
        }
    }

    /// How the disk travels. Only the changes over the image are sent if both nodes have the same
    /// image. In a cluster the image's name does not prove that, so without the image id all of the
    /// disk is sent.
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

    pub(super) fn send(&mut self, pod: String, to: Option<Destination>, awaited: &str) {
        let held = self.runner(&pod).and_then(|state| state.outgoing.as_ref());
        if held.is_some_and(|report| report.id != self.id()) || self.runner(&pod).is_none() {
            // The source serves another migration that is being tidied up, or its runner is not
            // linked.
            return self.waits_for_runner(awaited);
        }
        let (id, how) = (self.id().to_owned(), self.how());
        let order = OutgoingOrder { id, to, how };
        self.actions.push(Action::Send { pod, order });
    }

    fn how(&self) -> StreamOptions {
        let spec = &self.migration.spec;
        StreamOptions {
            post_copy: spec.allow_post_copy,
            auto_converge: spec.auto_converge,
            max_bandwidth: Bytes(spec.max_bandwidth.as_u64().unwrap_or(0)),
        }
    }

    pub(super) fn refused(&mut self) {
        let report = self.outgoing();
        let why = report.and_then(|report| report.problem.as_deref());
        let why = peer_text(why.unwrap_or_default());
        self.fail(&Reason::SourceRefused { why });
    }

    pub(super) fn waits_for_runner(&mut self, pod: &str) {
        let why = match self.input.runners.get(pod) {
            Some(KnownRunner::Silent { error }) => peer_text(error),
            Some(KnownRunner::Known { .. }) => "it is not ready".into(),
            None => "it has not answered yet".into(),
        };
        let pod = pod.to_owned();
        self.wait(&Wait::Runner { pod, why });
    }
}

/// Message of the scheduler for a pod that it cannot place.
fn unplaced(pod: &Pod) -> String {
    let mut all = pod.status.conditions.iter();
    let refused = all.find(|c| c.kind == "PodScheduled" && c.status == "False");
    refused.map_or_else(String::new, |condition| peer_text(&condition.message))
}
