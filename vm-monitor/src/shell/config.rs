//! The checked configuration.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use crate::core::Setup;
use crate::core::cache::CacheMode;
use crate::core::decision::Watched;
use crate::core::file_cache::Sizing;
use crate::core::memory::Rules;
use protocol::time::Span;
use transport::Address;

/// Limit from accepting a connection to its completed handshake. Source:
/// docs/compatibility/monitor.md §1.
pub const READY_LIMIT: Duration = Duration::from_secs(4);

/// Where hooks are looked for unless the configuration says otherwise.
pub const HOOKS_FOLDER: &str = "/etc/bellows/hooks.d";

/// A connection string: it may hold a password, so it is never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Wraps a text.
    #[must_use]
    pub const fn new(text: String) -> Self {
        Self(text)
    }

    /// The text itself, for the one who must have it.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(not shown)")
    }
}

/// The name of a PostgreSQL setting, safe to put into a statement: letters, digits, `_` and dots
/// between parts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SettingName(String);

impl SettingName {
    /// Checks a name.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let part = |part: &str| {
            let mut bytes = part.bytes();
            bytes
                .next()
                .is_some_and(|first| first.is_ascii_alphabetic() || first == b'_')
                && bytes.all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
        };
        let sound = text.len() <= 128 && text.split('.').all(part);
        sound.then(|| Self(text.to_owned()))
    }

    /// Name as given; it needs no quoting in a statement.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The file cache's database and settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileCache {
    /// [`CacheMode::Auto`] or [`CacheMode::On`].
    pub mode: CacheMode,
    /// How to reach the database.
    pub connection: Secret,
    /// The setting that is the limit.
    pub setting: SettingName,
    /// The setting that bounds it, if there is one.
    pub max_setting: Option<SettingName>,
    /// The numbers of the formula.
    pub sizing: Sizing,
}

/// Files of the agent's port, if it speaks TLS. All three are PEM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsFiles {
    /// The monitor's certificate, and those between it and its authority.
    pub cert: PathBuf,
    /// Its key, which nobody but its owner may read.
    pub key: PathBuf,
    /// Whose certificates agents must show.
    pub client_ca: PathBuf,
}

/// The effective configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Where agents dial.
    pub addr: Address,
    /// File with the token that agents must show; without one any agent is taken.
    pub agent_token: Option<PathBuf>,
    /// Certificates of the agent's port; none for a port without TLS.
    pub tls: Option<TlsFiles>,
    /// Where scrapers come.
    pub metrics_addr: SocketAddr,
    /// What is watched. [`Watched::Cgroup`] needs `cgroup`.
    pub watched: Watched,
    /// Folder of the watched group.
    pub cgroup: Option<PathBuf>,
    /// Where cgroup v2 is mounted.
    pub cgroup_root: PathBuf,
    /// Where the kernel's process file system is mounted.
    pub proc_root: PathBuf,
    /// The file cache, if it is to be managed.
    pub file_cache: Option<FileCache>,
    /// The numbers of the memory rules.
    pub rules: Rules,
    /// Folder of the hooks, if there may be some.
    pub hooks: Option<PathBuf>,
    /// Whether the working set is estimated by taking memory from the group.
    pub estimates: bool,
    /// Whether the group is brought down to its new size before a shrink is approved.
    pub squeezes: bool,
    /// File for the agent's schedule of upgrades; none where the agent is not asked.
    pub schedule: Option<PathBuf>,
    /// Time without an agent after which the process ends.
    pub exit_when_alone: Option<Span>,
    /// Path of the control socket, if there is one.
    pub control: Option<PathBuf>,
    /// Limit from accept to completed handshake.
    pub ready_limit: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            addr: SocketAddr::from(([0, 0, 0, 0], protocol::monitor::DEFAULT_PORT)).into(),
            agent_token: None,
            tls: None,
            metrics_addr: SocketAddr::from(([0, 0, 0, 0], 9100)),
            watched: Watched::Machine,
            cgroup: None,
            cgroup_root: PathBuf::from("/sys/fs/cgroup"),
            proc_root: PathBuf::from("/proc"),
            file_cache: None,
            rules: Rules::default(),
            hooks: Some(PathBuf::from(HOOKS_FOLDER)),
            estimates: false,
            squeezes: false,
            schedule: None,
            exit_when_alone: None,
            control: None,
            ready_limit: READY_LIMIT,
        }
    }
}

impl Config {
    /// The core's part of it.
    #[must_use]
    pub fn setup(&self) -> Setup {
        let cache = self.file_cache.as_ref();
        Setup {
            rules: self.rules,
            sizing: cache.map(|cache| cache.sizing).unwrap_or_default(),
            watched: self.watched,
            file_cache: cache.map_or(CacheMode::Off, |cache| cache.mode),
            hooks: self.hooks.is_some(),
            estimates: self.estimates && self.watched == Watched::Cgroup,
            squeezes: self.squeezes && self.watched == Watched::Cgroup,
            asks_schedule: self.schedule.is_some(),
            exit_when_alone: self.exit_when_alone,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn setting_names_cannot_carry_sql() {
        for good in [
            "effective_cache_size",
            "neon.file_cache_size_limit",
            "_x",
            "a.b.c",
        ] {
            assert_eq!(SettingName::parse(good).expect(good).as_str(), good);
        }
        for bad in [
            "",
            ".",
            "a.",
            ".a",
            "1a",
            "a b",
            "a;b",
            "a'b",
            "a\"b",
            "a=1",
            "größe",
            &"a".repeat(129),
        ] {
            assert_eq!(SettingName::parse(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn a_connection_string_is_not_shown() {
        let secret = Secret::new("host=db password=hunter2".into());
        assert!(!format!("{secret:?}").contains("hunter2"));
    }
}
