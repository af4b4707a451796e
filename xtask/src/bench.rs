//! `cargo xtask bench NAME`: each benchmark is a program of the black-box kit that prints a table and writes one shape of
//! JSON: `{"bench":…,"machine":{cpus,mem,kernel,accel},"figures":[{name,value,unit,target,better,met}]}`.

use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;
use clap::{Args, ValueEnum};

use crate::{build, shell};

/// Options of `bench`.
#[derive(Args)]
pub(crate) struct Options {
    /// Which benchmark
    name: Name,
    /// Write the figures to FILE
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Repeats of each measurement
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1000))]
    repeats: u32,
}

#[derive(Clone, Copy, ValueEnum)]
enum Name {
    /// Patch of the VM object to guest-visible, beside raw QMP on the same guest
    Resize,
}

/// Builds what the benchmark needs, runs it, shows its table.
pub(crate) fn run(options: &Options) -> Result<()> {
    let bellows = build::images(build::Scope::Release)?;
    let program = match options.name {
        Name::Resize => "bench-resize",
    };
    let mut command = Command::new(bellows.with_file_name(program));
    command
        .args(["--repeats", &options.repeats.to_string()])
        .env("BELLOWS_BIN", &bellows);
    if let Some(file) = &options.json {
        command.arg("--json").arg(file);
    }
    shell::run(&format!("benchmark {program}"), &mut command)
}
