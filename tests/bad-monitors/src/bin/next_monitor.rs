//! The monitor under the next version.

use std::process::ExitCode;

use bad_monitors::{Fault, serve};

fn main() -> ExitCode {
    serve("next-monitor", "0.1.1", Fault::Sound)
}
