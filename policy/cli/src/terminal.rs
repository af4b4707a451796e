//! What all commands share: exit codes, values of options, and lines for people.

use std::io::{self, Write as _};
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use clap::ValueEnum;
use policy_contract::Series;
use protocol::policy::Scope;

/// Exit codes, those of `bellows`.
pub(crate) mod exit {
    /// A policy breaks a rule.
    pub(crate) const FINDING: u8 = 1;
    /// The command line or a file is at fault.
    pub(crate) const USAGE: u8 = 64;
    /// Something of the machine is missing.
    pub(crate) const UNAVAILABLE: u8 = 69;
    /// The parent of a worker broke the protocol, or a fault of this program.
    pub(crate) const INTERNAL: u8 = 70;
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    Text,
    Json,
}

/// What a policy decides about.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ScopeArg {
    /// The size of a VM
    Vm,
    /// The number of the members of sets of VMs
    Set,
}

impl From<ScopeArg> for Scope {
    fn from(scope: ScopeArg) -> Self {
        match scope {
            ScopeArg::Vm => Self::Vm,
            ScopeArg::Set => Self::Set,
        }
    }
}

pub(crate) fn parameter(text: &str) -> Result<(String, f64), String> {
    let (name, value) = text.split_once('=').ok_or("write NAME=NUMBER")?;
    let value = value.parse().map_err(|error| format!("{error}"))?;
    Ok((name.to_owned(), value))
}

pub(crate) fn series(name: &str) -> Result<Series, String> {
    Series::of(name).ok_or_else(|| format!("there is no series {name}"))
}

pub(crate) fn this_program() -> Result<PathBuf> {
    std::env::current_exe().context("failed to find this program")
}

pub(crate) fn say(text: &str) -> Result<()> {
    io::stdout()
        .write_all(text.as_bytes())
        .context("failed to print")
}

pub(crate) fn complain(text: &str) {
    let _ = writeln!(io::stderr(), "{text}");
}
