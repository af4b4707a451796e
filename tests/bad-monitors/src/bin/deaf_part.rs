//! A monitor that its agent cannot reach. It serves its host.

use std::process::ExitCode;

use bad_monitors::{Fault, serve};

fn main() -> ExitCode {
    serve("deaf-part", "0.1.4", Fault::Deaf)
}
