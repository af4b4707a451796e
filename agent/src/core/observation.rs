//! Measurements that the core takes and the shell publishes.

use protocol::time::Span;
use protocol::units::Resources;

/// Section of a resize that a latency covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Path {
    /// From the decision to a status that reports the size.
    EndToEnd,
    /// From a permit request to the permit.
    Permit,
    /// From a downscale request to the monitor's response.
    Monitor,
    /// From the start of a patch to a status that reports the size.
    VmPatch,
}

/// Something that metrics count: an event of the core, with its times and sizes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Observation {
    /// A revision reached the end of a path.
    Latency {
        /// Section of the resize.
        path: Path,
        /// Time from the start of the section to its end.
        after: Span,
        /// Flags of the revision: growth, shrink or both.
        flags: u64,
    },
    /// A patch starts.
    ResizeStarted {
        /// Size in use when the patch starts.
        from: Resources,
        /// Size that the patch sets.
        to: Resources,
    },
    /// The policy has had no answer for too long, and the built-in goal decides until it has one.
    PolicyFellBack {
        /// First 32 bits of the policy's digest.
        digest: u32,
    },
}
