//! What a [`Mode`] leaves of a decision. The decision itself is the same in all of them; only what
//! is done about it differs, so everything that plans requests goes by [`allowed`], and the
//! decision says what was held back.
//!
//! Outside [`Mode::Full`] people may size VMs by hand: then the object is right about the size, and
//! nothing here takes it back.

use protocol::mode::Mode;
use protocol::units::Resources;

use super::decision::Bound;

/// The size to go for, where `wanted` is what was decided. `held` is the largest size the VM may
/// have by now.
pub(super) fn allowed(
    mode: Mode,
    wanted: Resources,
    using: Resources,
    held: Resources,
) -> Resources {
    match mode {
        Mode::Observe => using,
        Mode::Grow => wanted.field_max(held),
        Mode::Full => wanted,
    }
}

/// What to say where a mode keeps a VM from the size it should have.
pub(super) fn bound(mode: Mode) -> Option<Bound> {
    match mode {
        Mode::Observe => Some(Bound::ObserveMode),
        Mode::Grow => Some(Bound::GrowMode),
        Mode::Full => None,
    }
}
