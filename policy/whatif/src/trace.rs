//! What became of a VM: its sizes, resizes and refusals, in truth or in the model.

use agent::Observer;
use agent::core::journal::Output;
use agent::core::questions::refused_units;
use agent::core::{Core, DownscaleResponse, Event};
use protocol::journal::{Checkpoint, CoreSettings};
use protocol::time::{Span, Timestamp};
use protocol::units::Resources;

/// Value of a step function from a time on.
pub(crate) type Steps<T> = Vec<(Timestamp, T)>;

/// Whether a resize makes the VM larger. One that does both counts as growth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    Up,
    Down,
}

impl Direction {
    pub(crate) fn of(from: Resources, to: Resources) -> Self {
        if to.has_field_above(from) {
            Self::Up
        } else {
            Self::Down
        }
    }
}

/// See the module.
#[derive(Debug, Clone, Default)]
pub(crate) struct Trace {
    /// Size in use by the VM object.
    pub(crate) in_use: Steps<Resources>,
    /// Size that the guest can rely on: it gives up a size at once and gets one later.
    pub(crate) guest: Steps<Resources>,
    pub(crate) resizes: Vec<(Timestamp, Direction)>,
    pub(crate) refused: Vec<Timestamp>,
    pub(crate) cut: Vec<Timestamp>,
    /// Times from patches until the guest had the size.
    pub(crate) grew: Vec<Span>,
    pub(crate) shrank: Vec<Span>,
    pub(crate) moving: Option<(Timestamp, Direction)>,
    /// Request and permit of the newest cut; repeated ones count once.
    pub(crate) last_cut: Option<(Resources, Resources)>,
}

/// Size that the guest of a core can rely on.
pub(crate) fn guest_of(core: &Core) -> Resources {
    let using = core.using();
    let actual = core.vm().actual;
    actual.map_or(using, |actual| actual.field_min(using))
}

fn push<T: Copy + PartialEq>(steps: &mut Steps<T>, at: Timestamp, value: T) {
    if steps.last().is_none_or(|(_, last)| *last != value) {
        steps.push((at, value));
    }
}

impl Trace {
    fn permit(&mut self, now: Timestamp, event: &Event, core: &Core) {
        let (Some(units), Event::PermitDone(_, Ok(response))) = (refused_units(event, core), event)
        else {
            return;
        };
        let cut = core.last_request().map(|asked| (asked, response.permit));
        let cut = cut.filter(|_| units.0 > 0);
        if cut.is_some() && cut != self.last_cut {
            self.cut.push(now);
        }
        self.last_cut = cut;
    }
}

impl Observer for Trace {
    fn begins(&mut self, settings: &CoreSettings, checkpoint: &Checkpoint) {
        let core = Core::restore(settings, checkpoint);
        let at = Timestamp(checkpoint.t);
        push(&mut self.in_use, at, core.using());
        push(&mut self.guest, at, guest_of(&core));
    }

    fn event(&mut self, now: Timestamp, event: &Event, core: &Core) {
        self.permit(now, event, core);
        if let Event::MonitorDownscaleDone(_, Ok(DownscaleResponse::Denied(_))) = event {
            self.refused.push(now);
        }
    }

    fn output(&mut self, now: Timestamp, _: &Output, core: &Core) {
        let before = self.in_use.last().map(|(_, size)| *size);
        let using = core.using();
        if let Some(from) = before.filter(|from| *from != using) {
            let direction = Direction::of(from, using);
            self.resizes.push((now, direction));
            self.moving = Some((now, direction));
        }
        push(&mut self.in_use, now, using);
        push(&mut self.guest, now, guest_of(core));
        let has_arrived = core.vm().actual == Some(using) && core.vm().has_arrived();
        if let Some((since, direction)) = self.moving.take_if(|_| has_arrived) {
            let times = match direction {
                Direction::Up => &mut self.grew,
                Direction::Down => &mut self.shrank,
            };
            times.push(now.since(since));
        }
    }
}
