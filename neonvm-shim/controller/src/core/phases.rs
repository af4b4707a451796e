//! The phases of a VM (docs/compatibility/neonvm.md §2.3).
//!
//! ```text
//!          name written     pod ready          size differs
//!   "" ─► Pending ────────► Running ◄────────────────────► Scaling
//!             ▲               │  pod or runner ended, or pod gone │
//!             │               ▼                                   ▼
//!             └─ restart ─ Succeeded / Failed ◄───────────────────┘
//! ```

mod alive;
mod claim;
mod ended;
mod fit;
mod progress;
mod sizing;
mod starting;

pub use alive::SILENCE_REPORTED;
pub use progress::PROGRESS_INTERVAL;
pub use sizing::{ORDER_LASTS, REQUESTS_INTERVAL};
