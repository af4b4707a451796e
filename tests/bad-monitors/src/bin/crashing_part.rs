//! A part that ends with status 1 soon after its start.

use std::process::ExitCode;
use std::time::Duration;

fn main() -> ExitCode {
    let is_told = bad_monitors::tells_version("crashing-part", "0.1.2");
    if is_told || bad_monitors::is_self_test() {
        return ExitCode::SUCCESS;
    }
    bad_monitors::idle(Duration::from_secs(2));
    ExitCode::FAILURE
}
