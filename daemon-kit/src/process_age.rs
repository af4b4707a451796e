//! Age of another process of this machine.

use std::time::Duration;

use procfs::process::Process;
use procfs::{Current as _, Uptime};

/// Time since the start of a process. `None` if it does not run or cannot be read.
#[must_use]
pub fn process_age(pid: u32) -> Option<Duration> {
    let stat = Process::new(i32::try_from(pid).ok()?).ok()?.stat().ok()?;
    let up = Duration::try_from_secs_f64(Uptime::current().ok()?.uptime).ok()?;
    let started = stat
        .starttime
        .checked_div(procfs::ticks_per_second())
        .map(Duration::from_secs)?;
    Some(up.saturating_sub(started))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_process_is_younger_than_the_machine() {
        let age = process_age(std::process::id()).expect("an age");
        let up = Uptime::current().expect("an uptime").uptime;
        assert!(age.as_secs_f64() <= up, "{age:?}");
    }

    #[test]
    fn process_that_does_not_run_has_no_age() {
        assert_eq!(process_age(u32::MAX), None);
    }
}
