//! Entries of a role's metadata, and their hashes.

use std::num::NonZeroU64;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tough::schema::{Hashes, Metafile, Target};

/// Member of the version of a channel: all versions that it served.
const SERVED: &str = "served";
const DAY: Duration = Duration::from_secs(86_400);

/// For whom a new repository is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Audience {
    /// Everyone who has its root.
    Production,
    /// Its maker, for a try. Clusters refuse it.
    Dev,
}

/// Hash and length of a target, as a role signs them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) sha256: Vec<u8>,
    pub(super) length: u64,
    /// Versions that a channel served, the first one first.
    pub(super) served: Vec<String>,
}

impl Entry {
    pub(super) fn of(content: &[u8]) -> Self {
        Self {
            sha256: Sha256::digest(content).to_vec(),
            length: length(content),
            served: Vec::new(),
        }
    }

    pub(super) fn of_target(target: &Target) -> Self {
        let served = target.custom.get(SERVED).and_then(Value::as_array);
        let served = served.into_iter().flatten().filter_map(Value::as_str);
        Self {
            sha256: target.hashes.sha256.clone().into_vec(),
            length: target.length,
            served: served.map(str::to_owned).collect(),
        }
    }

    pub(super) fn target(&self) -> Target {
        let mut custom = Vec::new();
        if !self.served.is_empty() {
            custom.push((SERVED.to_owned(), json!(self.served)));
        }
        Target {
            length: self.length,
            hashes: hashes(&self.sha256),
            custom: custom.into_iter().collect(),
            _extra: Default::default(),
        }
    }
}

pub(super) fn hashes(sha256: &[u8]) -> Hashes {
    Hashes {
        sha256: sha256.to_vec().into(),
        _extra: Default::default(),
    }
}

/// What a snapshot or a timestamp says about a file.
pub(super) fn metafile(content: &[u8], version: NonZeroU64) -> Metafile {
    Metafile {
        length: Some(length(content)),
        hashes: Some(hashes(&Sha256::digest(content))),
        version,
        _extra: Default::default(),
    }
}

fn length(content: &[u8]) -> u64 {
    u64::try_from(content.len()).unwrap_or(u64::MAX)
}

/// End of new metadata of a role.
pub(super) fn expires(role: &str, audience: Audience) -> Timestamp {
    let days = match (audience, role) {
        (Audience::Dev, _) | (_, "snapshot" | "timestamp") => 7,
        (_, "root") => 365,
        _ => 90,
    };
    let now = Timestamp::now();
    // Whole seconds are what the format has.
    let end = now
        .as_second()
        .saturating_add_unsigned(days * DAY.as_secs());
    Timestamp::from_second(end).unwrap_or(Timestamp::MAX)
}
