//! A part that runs and serves nothing: deaf to agent and host.

use std::time::Duration;

fn main() {
    while !bad_monitors::is_self_test() {
        bad_monitors::idle(Duration::from_secs(3600));
    }
}
