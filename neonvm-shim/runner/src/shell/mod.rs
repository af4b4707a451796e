//! Everything of a runner that touches the machine.

pub mod bridge;
mod cable;
mod confined;
pub mod console;
pub mod control;
pub mod disk;
mod door;
pub mod drives;
mod follow;
mod forward;
pub mod guest;
mod hearing;
pub mod http;
pub mod lanes;
pub mod metrics;
pub mod overlay;
mod owed;
pub mod process;
pub mod qmp;
mod qmp_transfer;
pub mod record;
pub mod run;
mod shown;
pub mod supervisor;
pub mod sync;
mod sys;
pub mod transfer;
