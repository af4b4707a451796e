//! The benchmarks: what each needs, and how it is built.

use std::process::Command;

use anyhow::Result;
use clap::ValueEnum;

use crate::progress::{Cargo, Depends};
use crate::{build, cluster, shell};

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Name {
    /// Patch of the VM object to guest-visible, beside raw QMP on the same guest
    Resize,
    /// The same in a pod of a real cluster with the deployed parts; needs root and Go
    Cluster,
    /// The static monitor: memory, CPU, size, replies, time from trigger to frame
    Monitor,
    /// The agent with many VMs: memory, CPU, log, decisions, time to patches
    Agent,
    /// The agent while every tenth guest floods, stalls or lies, beside the same agent before that
    Flood,
    /// The scheduler: permits a second with few and many VMs known, time without a leader
    Scheduler,
    /// Programs that climb, leak, fork and flood memory in a real guest: how many of them are
    /// killed
    Oom,
    /// Everything is killed under a writing database: acknowledged transactions that are lost
    Durability,
    /// A guest with and without its walls: boot, throughput to and from outside; needs root
    Walls,
    /// Policies: one answer, an agent whose VMs have one, a replay, a day with another, 16 machines
    Policy,
    /// Rollouts to 10,000 played guests, and changes of the monitor in a real one; `-- --only
    /// rollout` or `-- --only exec` leaves the other out
    Fleet,
}

impl Name {
    pub(super) fn label(self) -> String {
        let value = self.to_possible_value();
        value.map_or_else(String::new, |value| value.get_name().to_owned())
    }

    /// What this machine lacks for the benchmark.
    pub(super) fn lacks(self) -> Result<Option<&'static str>> {
        Ok(match self {
            Self::Cluster | Self::Walls if !shell::is_root() => Some("needs root"),
            Self::Cluster if !cluster::programs::is_built()? && !cluster::programs::has_go() => {
                Some("needs Go 1.21 or newer")
            }
            _ => None,
        })
    }

    /// Builds the benchmark, of which `own` may leave out a part. Returns its command, without
    /// options.
    pub(super) fn build(self, own: &[String]) -> Result<Command> {
        match self {
            Self::Resize => with_guest("bench-resize"),
            Self::Cluster => {
                cluster::build()?;
                let mut command = with_guest("bench-resize")?;
                command.arg("--cluster");
                Ok(command)
            }
            Self::Oom => with_guest_programs("bench-oom"),
            Self::Durability => with_guest("bench-durability"),
            Self::Walls => with_guest("bench-walls"),
            Self::Monitor => {
                let monitor = build::guest_bins()?.join("vm-monitor");
                let bellows = build::host_bins(build::Scope::Binaries)?;
                let mut command = Command::new(bellows.with_file_name("bench-monitor"));
                command.arg("--monitor").arg(monitor);
                Ok(command)
            }
            Self::Agent => {
                let mut command = without_guest("bench-agent")?;
                command.args(["--hot-paths", inner_loops("hot_paths")?.trim()]);
                Ok(command)
            }
            Self::Flood => {
                let mut command = without_guest("bench-agent")?;
                command.arg("--flood");
                Ok(command)
            }
            Self::Scheduler => without_guest("bench-scheduler"),
            Self::Policy => {
                let mut command = without_guest("bench-policy")?;
                for bench in ["answers", "peers"] {
                    command.args(["--measured", inner_loops(bench)?.trim()]);
                }
                Ok(command)
            }
            Self::Fleet => {
                let only = only(own);
                let mut command = match only {
                    Some("rollout") => without_guest("bench-fleet")?,
                    _ => with_guest_programs("bench-fleet")?,
                };
                if only != Some("exec") {
                    command.args(["--measured", inner_loops("rollouts")?.trim()]);
                }
                Ok(command)
            }
        }
    }
}

/// A program that boots guests.
fn with_guest(program: &str) -> Result<Command> {
    let bellows = build::images(build::Scope::Release)?;
    let mut command = Command::new(bellows.with_file_name(program));
    command.env("BELLOWS_BIN", &bellows);
    Ok(command)
}

/// A program that brings programs into the guests that it boots.
fn with_guest_programs(program: &str) -> Result<Command> {
    let mut command = with_guest(program)?;
    command.env("BELLOWS_GUEST_BINS", build::guest_bins()?);
    Ok(command)
}

/// Value of `--only` among a benchmark's own options.
fn only(own: &[String]) -> Option<&str> {
    let joined = own.iter().find_map(|word| word.strip_prefix("--only="));
    joined.or_else(|| {
        let at = own.iter().position(|word| word == "--only")?;
        own.get(at + 1).map(String::as_str)
    })
}

fn without_guest(program: &str) -> Result<Command> {
    let bellows = build::host_bins(build::Scope::Release)?;
    Ok(Command::new(bellows.with_file_name(program)))
}

/// Times of inner loops, warm and alone: the JSON object that a benchmark of cargo prints.
fn inner_loops(bench: &str) -> Result<String> {
    let build = Cargo {
        command: shell::cargo()?,
        subcommand: &["bench", "--no-run", "--bench", bench],
        selection: &["--workspace"],
        depends: Depends::Dev,
        trailing: &[],
    };
    build.run("build the inner loops")?;
    let mut command = shell::cargo()?;
    command.args(["bench", "--quiet", "--workspace", "--bench", bench]);
    shell::say("==> the inner loops, warm");
    shell::output(&mut command)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn part_that_is_left_out_is_known_before_the_program_runs() {
        let only = |words: &[&str]| {
            let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
            only(&words).map(str::to_owned)
        };
        assert_eq!(only(&["--only", "exec"]).as_deref(), Some("exec"));
        assert_eq!(
            only(&["--bad", "3", "--only=exec"]).as_deref(),
            Some("exec")
        );
        assert_eq!(only(&["--only"]), None);
        assert_eq!(only(&[]), None);
    }
}
