//! `cargo xtask bench NAME`: each benchmark is a program of the black-box kit that prints a table and writes one shape of
//! JSON: `{"bench":…,"machine":{cpus,mem,kernel,accel},"figures":[{name,value,unit,target,better,met,samples?}]}`.

use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;
use clap::{Args, ValueEnum};

use crate::{build, cluster, shell};

/// Options of `bench`.
#[derive(Args)]
pub(crate) struct Options {
    /// Which benchmark
    name: Name,
    /// Write the figures to FILE
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Repeats of each measurement
    #[arg(long, visible_alias = "runs", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1000))]
    repeats: u32,
    /// Numbers of VMs, for `agent`, `flood` and `scheduler` only
    #[arg(long, value_name = "N,N,…")]
    vms: Option<String>,
    /// Options of the benchmark's own program (see `-- --help`)
    #[arg(last = true, value_name = "OPTION")]
    own: Vec<String>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Name {
    /// Patch of the VM object to guest-visible, beside raw QMP on the same guest
    Resize,
    /// The same in a pod of a real cluster, through its API server and the deployed parts; needs root
    Cluster,
    /// The static monitor: memory, CPU, size, replies, time from trigger to frame
    Monitor,
    /// The agent with many VMs: memory, CPU, log, decisions, time from metrics and requests to patches
    Agent,
    /// The agent while every tenth guest floods, stalls or lies, beside the same agent before that
    Flood,
    /// The scheduler: permits a second with few and many VMs known, time without a leader
    Scheduler,
    /// Programs that climb, leak, fork and flood memory in a real guest: how many of them are killed
    Oom,
    /// Everything is killed under a writing database: acknowledged transactions that are lost
    Durability,
    /// A guest with and without its walls: time to boot, throughput to and from the outside; needs
    /// root
    Walls,
}

/// Builds what the benchmark needs, runs it, shows its table.
pub(crate) fn run(options: &Options) -> Result<()> {
    let (program, mut command) = match options.name {
        Name::Resize => {
            let bellows = build::images(build::Scope::Release)?;
            let program = "bench-resize";
            let mut command = Command::new(bellows.with_file_name(program));
            command.env("BELLOWS_BIN", &bellows);
            (program, command)
        }
        Name::Cluster => {
            cluster::build()?;
            let bellows = build::images(build::Scope::Release)?;
            let program = "bench-resize";
            let mut command = Command::new(bellows.with_file_name(program));
            command.env("BELLOWS_BIN", &bellows).arg("--cluster");
            (program, command)
        }
        Name::Oom => {
            let bellows = build::images(build::Scope::Release)?;
            let program = "bench-oom";
            let mut command = Command::new(bellows.with_file_name(program));
            command
                .env("BELLOWS_BIN", &bellows)
                .env("BELLOWS_GUEST_BINS", build::guest_bins()?);
            (program, command)
        }
        Name::Durability | Name::Walls => {
            let bellows = build::images(build::Scope::Release)?;
            let program = match options.name {
                Name::Walls => "bench-walls",
                _ => "bench-durability",
            };
            let mut command = Command::new(bellows.with_file_name(program));
            command.env("BELLOWS_BIN", &bellows);
            (program, command)
        }
        Name::Monitor => {
            let monitor = build::guest_bins()?.join("vm-monitor");
            let bellows = build::host_bins(build::Scope::Binaries)?;
            let program = "bench-monitor";
            let mut command = Command::new(bellows.with_file_name(program));
            command.arg("--monitor").arg(monitor);
            (program, command)
        }
        Name::Agent => {
            let bellows = build::host_bins(build::Scope::Release)?;
            let program = "bench-agent";
            let mut command = Command::new(bellows.with_file_name(program));
            command.args(["--hot-paths", hot_paths()?.trim()]);
            (program, command)
        }
        Name::Flood => {
            let bellows = build::host_bins(build::Scope::Release)?;
            let program = "bench-agent";
            let mut command = Command::new(bellows.with_file_name(program));
            command.arg("--flood");
            if options.vms.is_none() {
                command.args(["--vms", "200"]);
            }
            (program, command)
        }
        Name::Scheduler => {
            let bellows = build::host_bins(build::Scope::Release)?;
            let program = "bench-scheduler";
            (program, Command::new(bellows.with_file_name(program)))
        }
    };
    command
        .args(["--repeats", &options.repeats.to_string()])
        .args(&options.own);
    if let Some(vms) = &options.vms {
        command.args(["--vms", vms]);
    }
    if let Some(file) = &options.json {
        command.arg("--json").arg(file);
    }
    shell::run(&format!("benchmark {program}"), &mut command)
}

/// What the agent's inner loops take when they run warm and alone: a JSON object of nanoseconds.
fn hot_paths() -> Result<String> {
    let mut command = shell::cargo()?;
    command.args(["bench", "--quiet", "--workspace", "--bench", "hot_paths"]);
    shell::say("==> the agent's inner loops, warm");
    shell::output(&mut command)
}
