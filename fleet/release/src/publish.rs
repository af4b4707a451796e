//! Makes and changes a repository in a folder of this machine. Any file server hands it out.
//!
//! | role | threshold | signs | good for |
//! |---|---|---|---|
//! | root | 2 of 3 | keys of the next four | 365 days |
//! | targets | 1 | keys of the roles below | 90 days |
//! | `releases` | 1 | manifests and programs | 90 days |
//! | `channel-NAME` | 1 | version and mark of a channel | 90 days |
//! | snapshot | 1 | versions of all metadata | 7 days |
//! | timestamp | 1 | the newest snapshot | 7 days |
//!
//! A key for trying makes all of them good for 7 days, and marks the root.

mod draft;
mod error;
mod keys;
mod log;
mod release;
mod role;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use protocol::fleet::{check_channel_name, check_version};
use semver::Version;

use self::draft::Draft;
use self::error::{of_file, put, refused};
use self::keys::Keys;
use self::role::Entry;
use crate::anchor::hex;
use crate::layout::{
    METADATA, RELEASES, TARGETS, channel_role, critical_target, manifest_target, plain_texts,
    version_target,
};

pub use error::PublishError;
pub use log::{Changed, LogLine, read_log};
pub use release::{Program, ReleaseDraft};
pub use role::Audience;

/// A repository and the keys that may change it.
#[derive(Debug, Clone)]
pub struct Publisher {
    folder: PathBuf,
    keys: Keys,
}

impl Publisher {
    /// A repository in a folder. Keys are read when a change needs them.
    #[must_use]
    pub fn new(folder: &Path, keys: &Path) -> Self {
        Self {
            folder: folder.to_owned(),
            keys: Keys::new(keys),
        }
    }

    /// Makes an empty repository and its keys. Returns the root, which readers need.
    ///
    /// # Errors
    /// There is a repository or a key already, or a file cannot be written.
    pub async fn init(&self, audience: Audience) -> Result<PathBuf, PublishError> {
        let root = self.metadata().join("1.root.json");
        if root.exists() {
            let what = format!("repository {}", self.folder.display());
            return Err(refused(what, "it is there already: choose another folder"));
        }
        for name in keys::OF_INIT {
            self.keys.make(name)?;
        }
        let draft = Draft::new(&self.keys, audience).await?;
        draft.write(&self.folder, &self.keys, true).await?;
        log::append(&self.folder, "init", "", "", Changed::Yes)?;
        Ok(root)
    }

    /// Adds a release. The same one again changes nothing.
    ///
    /// # Errors
    /// The release breaks a rule, another one has its version, or a file cannot be written.
    pub async fn release(&self, release: &ReleaseDraft) -> Result<Changed, PublishError> {
        let prepared = release.prepare()?;
        let version = prepared.manifest.version.clone();
        let mut draft = Draft::load(&self.folder).await?;
        let entries = draft.entries(RELEASES)?;
        if let Some(known) = entries.get(&manifest_target(&version)) {
            if known.sha256 == prepared.files[0].entry.sha256 {
                return Ok(Changed::No);
            }
            let rule = "it is published with other programs, and a release never changes: choose \
                        the next version";
            return Err(refused(format!("release {version}"), rule));
        }
        for file in &prepared.files {
            let sha256 = &file.entry.sha256;
            let path = self.target_file(&file.name, sha256);
            put(&path, &file.content()?)?;
            draft.set(RELEASES, &file.name, file.entry.clone())?;
        }
        draft.write(&self.folder, &self.keys, false).await?;
        log::append(&self.folder, "release", "", &version, Changed::Yes)?;
        Ok(Changed::Yes)
    }

    /// Adds a channel with a key of its own. It names no version.
    ///
    /// # Errors
    /// The name breaks its rule or is taken, or a file cannot be written.
    pub async fn add_channel(&self, name: &str) -> Result<(), PublishError> {
        let what = format!("channel {name:?}");
        check_channel_name(name)
            .map_err(|rule| refused(what.as_str(), format!("its name {rule}")))?;
        let mut draft = Draft::load(&self.folder).await?;
        let role = channel_role(name);
        if draft.has(&role) {
            return Err(refused(what, "it is there already"));
        }
        let key = self.keys.make_or_read(&role)?;
        let names = [version_target(name), critical_target(name)];
        draft.add_role(&role, &key, &names)?;
        draft.write(&self.folder, &self.keys, false).await?;
        log::append(&self.folder, "channel", name, "", Changed::Yes)
    }

    /// Lets a channel name a release. The same again changes nothing but the log.
    ///
    /// # Errors
    /// The release or the channel is not there, the major version is lower than one that the
    /// channel served, or a file cannot be written.
    pub async fn promote(
        &self,
        channel: &str,
        version: &str,
        is_critical: bool,
    ) -> Result<Changed, PublishError> {
        let what = format!("release {version} in channel {channel}");
        let parsed = check_version(version)
            .map_err(|rule| refused(what.as_str(), format!("its version {rule}")))?;
        let mut draft = Draft::load(&self.folder).await?;
        let role = channel_role(channel);
        if !draft.has(&role) {
            return Err(refused(what, "there is no such channel: add it first"));
        }
        if !draft
            .entries(RELEASES)?
            .contains_key(&manifest_target(version))
        {
            let rule = "the repository has no such release: publish it first";
            return Err(refused(what, rule));
        }
        let texts = [
            (version_target(channel), format!("{version}\n")),
            (critical_target(channel), mark(is_critical).to_owned()),
        ];
        let entries = draft.entries(&role)?;
        let mut served = entries
            .get(&texts[0].0)
            .map_or_else(Vec::new, |it| it.served.clone());
        refuse_lower_major(&what, &parsed, &served)?;
        let is_same = texts.iter().all(|(name, text)| {
            let known = entries.get(name);
            known.is_some_and(|it| it.sha256 == Entry::of(text.as_bytes()).sha256)
        });
        if is_same {
            log::append(&self.folder, "promote", channel, version, Changed::No)?;
            return Ok(Changed::No);
        }
        if !served.iter().any(|one| one == version) {
            served.push(version.to_owned());
        }
        for (name, text) in &texts {
            let mut entry = Entry::of(text.as_bytes());
            if *name == texts[0].0 {
                entry.served.clone_from(&served);
            }
            put(&self.target_file(name, &entry.sha256), text.as_bytes())?;
            draft.set(&role, name, entry)?;
        }
        draft.write(&self.folder, &self.keys, false).await?;
        for (path, (_, text)) in plain_texts(channel).iter().zip(&texts) {
            put(&self.folder.join(path), text.as_bytes())?;
        }
        log::append(&self.folder, "promote", channel, version, Changed::Yes)?;
        Ok(Changed::Yes)
    }

    /// Takes a release away that no channel ever served.
    ///
    /// # Errors
    /// A channel served it, it is not there, or a file cannot be written.
    pub async fn withdraw(&self, version: &str) -> Result<(), PublishError> {
        let what = format!("release {version}");
        let mut draft = Draft::load(&self.folder).await?;
        for (channel, served) in draft.served()? {
            if served.iter().any(|one| one == version) {
                let rule = format!(
                    "channel {channel} served it, and guests may run it: let the channel name \
                     another version, and leave the release where it is"
                );
                return Err(refused(what, rule));
            }
        }
        let ends = [format!("release-{version}.json"), format!("-{version}-")];
        let entries = draft.entries(RELEASES)?;
        let all = entries.iter();
        let gone: Vec<_> = all
            .filter(|(name, _)| **name == ends[0] || is_program_of(name, &ends[1]))
            .collect();
        if gone.is_empty() {
            return Err(refused(what, "the repository has no such release"));
        }
        for (name, _) in &gone {
            draft.remove(RELEASES, name)?;
        }
        draft.write(&self.folder, &self.keys, false).await?;
        for (name, entry) in gone {
            let path = self.target_file(name, &entry.sha256);
            fs::remove_file(&path).map_err(of_file(&path))?;
        }
        log::append(&self.folder, "withdraw", "", version, Changed::Yes)
    }

    /// Signs the metadata again, so that it does not expire: that of each role whose key is here,
    /// and the root if two of its keys are.
    ///
    /// # Errors
    /// The keys of snapshot and timestamp are not here, or a file cannot be written.
    pub async fn renew(&self) -> Result<BTreeSet<String>, PublishError> {
        let mut draft = Draft::load(&self.folder).await?;
        let renewed = draft.renew(&self.keys)?;
        let is_root = renewed.contains("root");
        draft.write(&self.folder, &self.keys, is_root).await?;
        log::append(&self.folder, "renew", "", "", Changed::Yes)?;
        Ok(renewed)
    }

    fn metadata(&self) -> PathBuf {
        self.folder.join(METADATA)
    }

    fn target_file(&self, name: &str, sha256: &[u8]) -> PathBuf {
        let file = format!("{}.{name}", hex(sha256));
        self.folder.join(TARGETS).join(file)
    }
}

/// `program-PART-VERSION-PLATFORM`. Parts have no hyphen, and platforms neither.
fn is_program_of(name: &str, version: &str) -> bool {
    let rest = name.strip_prefix("program-");
    let rest = rest.and_then(|rest| rest.split_once('-'));
    let platform = rest.and_then(|(part, _)| {
        let before = format!("program-{part}{version}");
        name.strip_prefix(&before)
    });
    platform.is_some_and(|platform| !platform.contains('-'))
}

fn mark(is_critical: bool) -> &'static str {
    if is_critical { "yes\n" } else { "no\n" }
}

fn refuse_lower_major(
    what: &str,
    version: &Version,
    served: &[String],
) -> Result<(), PublishError> {
    let majors = served.iter().filter_map(|one| check_version(one).ok());
    let highest = majors.map(|one| one.major).max();
    match highest {
        Some(highest) if version.major < highest => Err(refused(
            what,
            format!(
                "the channel served major version {highest}, and guests never go back to a lower \
                 one: publish the older program under a version {highest}.x"
            ),
        )),
        _ => Ok(()),
    }
}
