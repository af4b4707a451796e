//! Effect of a [`Mode`]. The decision is the same in all modes. Plans use the size of [`allowed`],
//! and the decision names the bound.
//!
//! Outside [`Mode::Full`] people may set sizes by hand. The core then adopts the object's size and
//! never reverts it.

use protocol::mode::Mode;
use protocol::units::Resources;

use super::decision::Bound;

/// The part of the desired size `wanted` that the mode allows. `held` is the largest size that the
/// VM may have now.
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

/// Bound to name when the mode keeps a VM from its target.
pub(super) fn bound(mode: Mode) -> Option<Bound> {
    match mode {
        Mode::Observe => Some(Bound::ObserveMode),
        Mode::Grow => Some(Bound::GrowMode),
        Mode::Full => None,
    }
}
