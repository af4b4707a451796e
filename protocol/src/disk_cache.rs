//! How QEMU caches what guests write to their disks, as the controller tells runners
//! (`-qemu-disk-cache-settings`, docs/compatibility/neonvm.md §3.1).
//!
//! The text becomes part of an option of QEMU's, so nothing passes but what is understood here.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The three switches that every one of QEMU's spellings means.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct DiskCache {
    /// A write is done when the host has it, not its disk; the guest may ask for that.
    pub writeback: bool,
    /// The host's own cache is passed by (`O_DIRECT`), which not every file system can.
    pub direct: bool,
    /// Nothing the guest asks for is forced to the host's disk: what was written lives as long as
    /// the host.
    pub no_flush: bool,
}

/// Errors of a cache setting's text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DiskCacheError {
    /// The text has an option that is not implemented.
    #[error(
        "{0:?} is not one of cache.writeback=, cache.direct=, cache.no-flush= with on or off, and cache= with \
         writeback, none, writethrough, directsync or unsafe"
    )]
    Unknown(String),
    /// The text sets an option twice.
    #[error("{0} is said twice")]
    Twice(String),
}

impl DiskCache {
    /// Ours: no disk of a guest's outlives its pod, let alone its host, so nothing is forced to the
    /// host's disk; and the host's cache is used, where guests of one image find what another one
    /// has read.
    pub const OURS: Self = Self {
        writeback: true,
        direct: false,
        no_flush: true,
    };

    /// What a word of `cache=` means.
    fn word(word: &str) -> Option<Self> {
        let (writeback, direct, no_flush) = match word {
            "writeback" => (true, false, false),
            "none" => (true, true, false),
            "writethrough" => (false, false, false),
            "directsync" => (false, true, false),
            "unsafe" => (true, false, true),
            _ => return None,
        };
        Some(Self {
            writeback,
            direct,
            no_flush,
        })
    }
}

impl Default for DiskCache {
    fn default() -> Self {
        Self::OURS
    }
}

impl FromStr for DiskCache {
    type Err = DiskCacheError;

    /// Options of QEMU's with commas. As there, a switch that is said holds against `cache=`,
    /// wherever it stands; and what is not said at all is as in `cache=writeback`. No option is
    /// [`DiskCache::OURS`].
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let options: Vec<&str> = text
            .split(',')
            .filter(|option| !option.is_empty())
            .collect();
        if options.is_empty() {
            return Ok(Self::OURS);
        }
        let mut said: Vec<&str> = Vec::new();
        let (mut base, mut switches) = (None, [None; 3]);
        for option in options {
            let unknown = || DiskCacheError::Unknown(option.chars().take(64).collect());
            let (key, value) = option.split_once('=').ok_or_else(unknown)?;
            if said.contains(&key) {
                return Err(DiskCacheError::Twice(key.to_owned()));
            }
            said.push(key);
            let switch = match key {
                "cache" => {
                    base = Some(Self::word(value).ok_or_else(unknown)?);
                    continue;
                }
                "cache.writeback" => 0,
                "cache.direct" => 1,
                "cache.no-flush" => 2,
                _ => return Err(unknown()),
            };
            switches[switch] = Some(match value {
                "on" => true,
                "off" => false,
                _ => return Err(unknown()),
            });
        }
        let base = base.unwrap_or(Self {
            writeback: true,
            direct: false,
            no_flush: false,
        });
        let [writeback, direct, no_flush] = switches;
        Ok(Self {
            writeback: writeback.unwrap_or(base.writeback),
            direct: direct.unwrap_or(base.direct),
            no_flush: no_flush.unwrap_or(base.no_flush),
        })
    }
}

impl TryFrom<String> for DiskCache {
    type Error = DiskCacheError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<DiskCache> for String {
    fn from(cache: DiskCache) -> Self {
        cache.to_string()
    }
}

impl fmt::Display for DiskCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = |on| if on { "on" } else { "off" };
        write!(
            f,
            "cache.writeback={},cache.direct={},cache.no-flush={}",
            word(self.writeback),
            word(self.direct),
            word(self.no_flush)
        )
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn every_spelling_of_qemus_is_three_switches() {
        for (text, switches) in [
            ("", [true, false, true]),
            ("cache=unsafe", [true, false, true]),
            ("cache=none", [true, true, false]),
            ("cache=writeback", [true, false, false]),
            ("cache=writethrough", [false, false, false]),
            ("cache=directsync", [false, true, false]),
            ("cache.direct=on", [true, true, false]),
            (
                "cache.writeback=on,cache.direct=on,cache.no-flush=on",
                [true, true, true],
            ),
            ("cache.direct=off,cache=none", [true, false, false]),
        ] {
            let cache: DiskCache = text.parse().expect(text);
            let is = [cache.writeback, cache.direct, cache.no_flush];
            assert_eq!(is, switches, "{text}");
            assert_eq!(String::from(cache).parse(), Ok(cache), "{text}");
        }
    }

    #[test]
    fn nothing_else_reaches_qemu() {
        for text in [
            "cache",
            "cache=",
            "cache=fast",
            "cache.direct",
            "cache.direct=yes",
            "werror=ignore",
            "cache=none,file=/etc/shadow",
            "cache=none -device x",
        ] {
            let error = text.parse::<DiskCache>().expect_err(text);
            let told = error.to_string();
            assert!(told.contains("is not one of cache.writeback="), "{told}");
        }
        let twice = "cache=none,cache=unsafe".parse::<DiskCache>();
        assert_eq!(twice, Err(DiskCacheError::Twice("cache".into())));
    }

    proptest! {
        #[test]
        fn what_is_written_reads_back_the_same(writeback: bool, direct: bool, no_flush: bool, text in "[a-z.=,-]{0,40}") {
            let cache = DiskCache { writeback, direct, no_flush };
            prop_assert_eq!(cache.to_string().parse(), Ok(cache));
            if let Ok(cache) = text.parse::<DiskCache>() {
                prop_assert_eq!(cache.to_string().parse(), Ok(cache));
            }
        }
    }
}
