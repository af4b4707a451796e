//! `check`: reads the channel, and removes the schedule for a critical version.

use super::files::Files;
use super::packages::Database;
use super::settings::Settings;
use super::{Error, channel, timer};
use crate::core::check::{CheckInputs, ends_wait};

/// Runs a check. Returns whether the schedule was removed.
///
/// # Errors
/// Settings are wrong, or the machine cannot be asked.
pub fn run<D: Database>(files: &Files) -> Result<bool, Error> {
    let Some(settings) = Settings::enabled(&files.settings)? else {
        return Ok(false);
    };
    let channel = channel::read(&settings);
    let inputs = CheckInputs {
        wanted: channel.version.ok(),
        installed: D::installed()?,
        is_critical: channel.is_critical,
        has_schedule: timer::is_scheduled(files),
        has_source: files.schedule.exists(),
    };
    if !ends_wait(&inputs) {
        return Ok(false);
    }
    timer::clear(files)
}
