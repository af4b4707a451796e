//! `--self-test`: whether a program can serve with these options. It binds no address.

use std::time::Duration;

use super::alarm::Alarm;
use super::clock::Clock;
use super::config::Config;
use super::logging::chain;
use super::memory::{self, Source};
use super::token::AgentToken;
use crate::core::decision::Watched;

/// Longest test. A file that never ends would hold it up.
pub const LIMIT: Duration = Duration::from_secs(10);

/// Checks the files of token and TLS, the readings of memory, and the timer.
///
/// # Errors
/// A sentence for each thing that is missing.
pub fn run(config: &Config) -> Result<(), Vec<String>> {
    let mut problems = Vec::new();
    if let Some(path) = &config.agent_token
        && let Err(error) = AgentToken::load(path)
    {
        problems.push(format!("--agent-token-file: {}", chain(&error)));
    }
    #[cfg(feature = "tls")]
    if let Some(files) = &config.tls
        && let Err(error) = super::tls::Identity::load(files.clone())
    {
        problems.push(format!("--tls-cert: {}", chain(&error)));
    }
    if let Err(failure) = memory::machine_memory(&config.proc_root) {
        problems.push(format!("memory of the machine: {failure}"));
    }
    if config.watched == Watched::Cgroup {
        let group = config.cgroup.as_deref();
        let mut source = Source::new(config.watched, group, &config.proc_root);
        if let Err(failure) = source.sample() {
            problems.push(format!("--cgroup: {failure}"));
        }
    }
    if let Some(folder) = config.control.as_deref().and_then(std::path::Path::parent)
        && !folder.is_dir()
    {
        let folder = folder.display();
        problems.push(format!("--control: {folder} is no folder: make it first"));
    }
    if let Err(error) = Alarm::new(Clock::new()) {
        problems.push(format!("the kernel gives no timer: {error}"));
    }
    if problems.is_empty() {
        Ok(())
    } else {
        Err(problems)
    }
}
