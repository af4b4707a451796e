//! The core of moves: single decisions, and whole moves in a played cluster with crashes.

#[path = "runners/change.rs"]
mod change;
#[path = "runners/decisions.rs"]
mod decisions;
#[path = "runners/moves.rs"]
mod moves;
#[path = "runners/played.rs"]
mod played;
#[path = "runners/random.rs"]
mod random;
