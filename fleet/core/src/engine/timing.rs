//! Gates of time: windows, and the pause between attempts that nobody ordered.

use protocol::fleet::DeploymentKind;
use protocol::parts::PartSource;
use protocol::time::WallTime;

use crate::decide::{Inputs, Urgency, decide, is_young, spacing_seconds};
use crate::permit::Gate;
use crate::proof::health;
use crate::windows::Calendar;
use crate::world::{Guest, Observed, World};

/// Times at which a deployment may change guests.
pub(super) struct Timing<'a> {
    world: &'a World,
    kind: DeploymentKind,
    trial_seconds: u64,
    /// Whether the environment's own windows are open.
    is_open: bool,
    now: WallTime,
}

impl<'a> Timing<'a> {
    pub(super) fn new(
        world: &'a World,
        kind: DeploymentKind,
        trial_seconds: u64,
        now: WallTime,
    ) -> Self {
        let calendar = Calendar {
            windows: &world.environment.spec.windows,
            blackouts: &world.environment.spec.blackouts,
            narrowed: &[],
        };
        Self {
            world,
            kind,
            trial_seconds,
            is_open: calendar.may_try(now, trial_seconds),
            now,
        }
    }

    /// The gate that holds a guest at this time.
    pub(super) fn gate(&self, name: &str, guest: &Guest) -> Option<Gate> {
        if self.waits_for_window(guest) {
            Some(Gate::Window)
        } else {
            self.is_too_soon(name, guest).then_some(Gate::Spacing)
        }
    }

    pub(super) fn waits_for_window(&self, guest: &Guest) -> bool {
        let is_just_begun = is_young(guest.uptime_seconds) && runs_image(guest);
        let inputs = Inputs {
            is_critical: self.world.is_critical,
            is_unhealthy: self.kind == DeploymentKind::Rollback || health(guest) == Some(false),
            is_open: self.is_open && self.is_open_for(guest),
        };
        !is_just_begun && decide(inputs) == Urgency::Wait
    }

    fn is_open_for(&self, guest: &Guest) -> bool {
        let spec = &self.world.environment.spec;
        let calendar = Calendar {
            windows: &spec.windows,
            blackouts: &spec.blackouts,
            narrowed: &guest.windows,
        };
        guest.windows.is_empty() || calendar.may_try(self.now, self.trial_seconds)
    }

    /// Without the time of its boot a guest may have just begun, so nothing holds it.
    fn is_too_soon(&self, name: &str, guest: &Guest) -> bool {
        let has_run = guest.uptime_seconds.is_some() && !is_young(guest.uptime_seconds);
        let Some(last) = guest
            .last
            .as_ref()
            .filter(|_| has_run && self.kind.is_of_monitor())
        else {
            return false;
        };
        let waited = self.now.0.saturating_sub(last.last.at.0);
        let spacing = spacing_seconds(name, &last.last.token).saturating_mul(1_000_000);
        u64::try_from(waited).is_ok_and(|waited| waited < spacing)
    }
}

/// Whether the guest began from its image, for the first time or again.
pub(super) fn runs_image(guest: &Guest) -> bool {
    matches!(&guest.observed, Observed::Seen(part) if part.state.from == PartSource::Image)
}
