//! Whether a pod can go to a node, as a verdict for kube-scheduler.

use crate::core::event::Unfit;
use crate::core::ledger::{Fit, Ledger};
use crate::core::pod_requests::PodView;

/// Why a pod cannot go to a node. `None` if it can.
pub(super) fn unfit(ledger: &Ledger, pod: &PodView, node: &str) -> Option<Unfit> {
    let hold = ledger
        .pod(&pod.uid)
        .and_then(|known| known.bind_hold.as_ref());
    match hold {
        Some(held) if held != node => Some(Unfit::HeldBy(held.clone())),
        _ => unfit_of(ledger.fits(pod, node)),
    }
}

pub(super) fn unfit_of(fit: Fit) -> Option<Unfit> {
    match fit {
        Fit::Fits => None,
        Fit::NoRoom(missing) => Some(Unfit::NoRoom(missing)),
        Fit::ForeignScheduler => Some(Unfit::ForeignScheduler),
        Fit::UnknownNode => Some(Unfit::UnknownNode),
        Fit::Unreadable(problem) => Some(Unfit::Unreadable(problem)),
    }
}
