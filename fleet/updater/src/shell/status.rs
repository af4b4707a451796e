//! `status`: what is installed, what the channel names, and how the last attempt ended.

use serde::Serialize;

use super::files::Files;
use super::packages::Database;
use super::settings::Settings;
use super::state::State;
use super::{Error, channel, monitor, timer};
use crate::core::upgrade::Health;

/// State of the updater, as people and programs read it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Status {
    /// Whether upgrades are made.
    pub enabled: bool,
    /// Name of the channel.
    pub channel: Option<String>,
    /// Version that it names.
    pub wanted: Option<String>,
    /// Why it names none.
    pub channel_error: Option<String>,
    /// Whether the version is critical.
    pub critical: bool,
    /// Version of the installed package.
    pub installed: Option<String>,
    /// Health of the monitor.
    pub health: Health,
    /// Whether the monitor works, or is not meant to.
    pub healthy: bool,
    /// Whether a schedule is in force.
    pub scheduled: bool,
    /// Attempts so far. `None` if the state cannot be read: only root can.
    pub attempts: Option<u64>,
    /// How the last attempt ended.
    pub last: Option<serde_json::Value>,
}

/// Reads the status.
///
/// # Errors
/// Settings are wrong, or the machine cannot be asked.
pub fn read<D: Database>(files: &Files) -> Result<Status, Error> {
    let settings = Settings::enabled(&files.settings)?;
    let channel = settings.as_ref().map(channel::read);
    let version = channel.as_ref().map(|channel| channel.version.clone());
    let health = monitor::health(settings.as_ref().and_then(|settings| settings.page));
    let state = State::read(files).ok();
    Ok(Status {
        enabled: settings.is_some(),
        channel: settings.map(|settings| settings.channel),
        wanted: version
            .clone()
            .and_then(Result::ok)
            .map(|version| version.to_string()),
        channel_error: version.and_then(Result::err),
        critical: channel.is_some_and(|channel| channel.is_critical),
        installed: D::installed()?.map(|version| version.to_string()),
        health,
        healthy: health.is_healthy(),
        scheduled: timer::is_scheduled(files),
        attempts: state.as_ref().map(|state| state.attempts),
        last: state.and_then(|state| state.last),
    })
}

impl Status {
    /// Lines for people.
    #[must_use]
    pub fn lines(&self) -> String {
        let or_none = |text: &Option<String>| text.clone().unwrap_or_else(|| "none".to_owned());
        let yes = |value: bool| if value { "yes" } else { "no" };
        let mut lines = format!(
            "upgrades   {}\nchannel    {}\nwanted     {}{}\ninstalled  {}\nhealthy    {} ({})\nscheduled  {}\n",
            if self.enabled { "on" } else { "off" },
            or_none(&self.channel),
            or_none(&self.wanted),
            if self.critical { " (critical)" } else { "" },
            or_none(&self.installed),
            yes(self.healthy),
            self.health,
            yes(self.scheduled),
        );
        for (name, value) in [
            ("error", self.channel_error.clone()),
            ("last", self.last.as_ref().map(ToString::to_string)),
        ] {
            if let Some(value) = value {
                lines.push_str(&format!("{name:10} {value}\n"));
            }
        }
        lines
    }
}
