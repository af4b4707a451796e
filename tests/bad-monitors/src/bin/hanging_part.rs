//! A part that runs and serves nothing: deaf to agent and host.

use std::time::Duration;

fn main() {
    if bad_monitors::tells_version("hanging-part", "0.1.5") {
        return;
    }
    while !bad_monitors::is_self_test() {
        bad_monitors::idle(Duration::from_secs(3600));
    }
}
