//! The end of a VM object: its pods first, then its address and its finalizer.

use protocol::object::Pod;
use protocol::time::Span;

use super::action::{Action, VmEdit};
use super::draft::{Draft, has_finalizer};
use super::view::PodView;

/// A pod that is past its grace period by this much no longer delays the deletion of its VM.
pub(super) const STUCK_POD_PATIENCE: Span = Span::from_secs(120);

impl Draft<'_> {
    /// A VM that is being deleted: its pods first, then the finalizer.
    pub(super) fn deletion(&mut self) {
        if !has_finalizer(self.vm) {
            return;
        }
        let grace_s = self.vm.spec.termination_grace_period_seconds.max(0);
        let requested_at = self.vm.metadata.deletion_timestamp.unwrap_or_default();
        let age = self.input.at.wall.0.saturating_sub(requested_at.0);
        let patience_us = i64::try_from(STUCK_POD_PATIENCE.0).unwrap_or(i64::MAX);
        let patience_us = patience_us.saturating_add(grace_s.saturating_mul(1_000_000));
        let ours: Vec<&Pod> = self
            .input
            .pods
            .values()
            .filter(|pod| self.owns(pod))
            .collect();
        let mut waiting = false;
        for pod in ours {
            waiting = true;
            if pod.metadata.deletion_timestamp.is_none() {
                self.delete_pod(pod);
            }
        }
        if self.input.pod == PodView::Unknown && !self.status.pod_name.is_empty() {
            self.actions.push(Action::ReadPod {
                name: self.status.pod_name.clone(),
            });
            waiting = true;
        }
        if !waiting || age > patience_us {
            self.let_go();
        } else {
            self.wake_when_older(age, patience_us);
        }
    }

    /// Releases the VM's address, then drops the finalizer.
    fn let_go(&mut self) {
        let settings = self.input.settings;
        let may_hold = settings.overlay.is_some() && self.vm.spec.extra_network.is_some();
        if may_hold && !self.input.address_released {
            let holder = self.holder();
            self.actions.push(Action::ReleaseAddress { holder });
        } else {
            self.edit(VmEdit::DropFinalizer);
        }
    }
}
