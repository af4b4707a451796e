//! Assignment of processors: with two of them, the scheduler has one, and the simulated API and the
//! clients share the other.

use anyhow::{Context as _, Result};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Two processors of this machine.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cores {
    pub(super) scheduler: usize,
    pub(super) played: usize,
}

impl Cores {
    /// The first two that this process may use; `None`: there is one.
    pub(super) fn find() -> Result<Option<Self>> {
        let allowed = sched_getaffinity(None).context("processors of this process")?;
        let mut usable = (0..CpuSet::MAX_CPU).filter(|core| allowed.is_set(*core));
        let two = usable.next().zip(usable.next());
        Ok(two.map(|(played, scheduler)| Self { scheduler, played }))
    }
}

/// Keeps this thread on a processor, and every process and thread that it starts from now on.
pub(super) fn stay_on(core: usize) -> Result<()> {
    let mut set = CpuSet::new();
    set.set(core);
    sched_setaffinity(None, &set).with_context(|| format!("failed to stay on processor {core}"))
}

/// Runs a closure on a thread that is pinned to a processor, if one is given.
pub(super) fn run_on<T: Send>(
    core: Option<usize>,
    run: impl FnOnce() -> Result<T> + Send,
) -> Result<T> {
    let pinned = || {
        core.map_or(Ok(()), stay_on)?;
        run()
    };
    let ended = std::thread::scope(|scope| scope.spawn(pinned).join());
    ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mine() -> Vec<usize> {
        let allowed = sched_getaffinity(None).unwrap();
        let all = 0..CpuSet::MAX_CPU;
        all.filter(|core| allowed.is_set(*core)).collect()
    }

    #[test]
    fn thread_and_the_processes_it_starts_stay_on_the_given_core() {
        let before = mine();
        let Some(cores) = Cores::find().unwrap() else {
            assert_eq!(before.len(), 1);
            return;
        };
        assert_ne!(cores.scheduler, cores.played);
        let status = run_on(Some(cores.scheduler), || {
            assert_eq!(mine(), [cores.scheduler]);
            let allowed = format!("^Cpus_allowed_list:[[:space:]]*{}$", cores.scheduler);
            let mut grep = std::process::Command::new("grep");
            Ok(grep.args(["-q", &allowed, "/proc/self/status"]).status()?)
        });
        assert!(status.unwrap().success());
        assert_eq!(mine(), before, "this thread is where it was");
    }
}
