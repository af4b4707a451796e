//! A monitor that takes 1 MiB of memory each second.

use std::process::ExitCode;

use bad_monitors::{Fault, serve};

fn main() -> ExitCode {
    serve("leaking-part", "0.1.3", Fault::Leaks)
}
