//! Which of several machines without Kubernetes leads a part, and how does it divide the members of
//! sets among them? Without I/O: membership comes in as events.
//!
//! * [`Leader`]: claims, gathers and plans for one part.
//! * [`Claim`]: their order decides between two leaders.
//! * [`Settings`]: what a machine does that hears too few others.
//! * [`divide`]: the plan itself. A naive count of moves checks it.
//!
//! # Invariants
//! * A machine of a minority plans only where its operator allows it.
//! * A leader plans after it has asked every machine that it hears what runs there.
//! * One plan never takes a member of a set from a machine and makes one elsewhere.

#![forbid(unsafe_code)]

mod claim;
mod divide;
mod expected;
mod leader;
mod settings;

pub use claim::{Claim, MachineId};
pub use divide::{Counts, Inventory, divide};
pub use expected::Expected;
pub use leader::{Action, Event, Leader, Peer, Plan, Role};
pub use settings::{Alone, HoldReason, MAX_MACHINES, Quorum, Settings};
