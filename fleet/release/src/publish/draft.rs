//! The next state of a repository: metadata that is changed, signed and written as a whole.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU64;
use std::path::Path;

use aws_lc_rs::rand::SystemRandom;
use reqwest::Url;
use serde::Serialize;
use tough::editor::signed::SignedRole;
use tough::schema::decoded::{Decoded, Hex};
use tough::schema::key::Key;
use tough::schema::{
    DelegatedRole, DelegatedTargets, Delegations, KeyHolder, PathPattern, PathSet, Role, RoleKeys,
    RoleType, Root, Snapshot, Targets, Timestamp,
};
use tough::{ExpirationEnforcement, RepositoryLoader, TargetName};

use super::error::{PublishError, of_file, put, refused};
use super::keys::{Keys, ROOTS};
use super::role::{Audience, Entry, expires, metafile};
use crate::fetch::{FetchLimits, Fetcher};
use crate::layout::{METADATA, RELEASES, RELEASES_PATHS, TARGETS, below};
use crate::repository::DEV;

const SPEC_VERSION: &str = "1.0.0";
const ONE: NonZeroU64 = NonZeroU64::MIN;
/// Role of the publisher itself.
const TOP: &str = "targets";

/// Metadata of a repository, and the roles of it that are to be signed again.
pub(super) struct Draft {
    root: Root,
    targets: Targets,
    /// Metadata of the roles below, by name.
    roles: BTreeMap<String, Targets>,
    changed: BTreeSet<String>,
    snapshot: u64,
    timestamp: u64,
    audience: Audience,
}

fn of_tuf(error: impl std::error::Error) -> PublishError {
    PublishError::Broken(error.to_string())
}

fn next(version: NonZeroU64) -> NonZeroU64 {
    version.saturating_add(1)
}

fn key_id(key: &Key) -> Result<Decoded<Hex>, PublishError> {
    key.key_id().map_err(of_tuf)
}

impl Draft {
    /// An empty repository.
    pub(super) async fn new(keys: &Keys, audience: Audience) -> Result<Self, PublishError> {
        let mut root = Root {
            spec_version: SPEC_VERSION.to_owned(),
            consistent_snapshot: true,
            version: ONE,
            expires: expires("root", audience),
            keys: Default::default(),
            roles: Default::default(),
            _extra: Default::default(),
        };
        if audience == Audience::Dev {
            root._extra.insert(DEV.to_owned(), true.into());
        }
        for (role, names, threshold) in [
            (RoleType::Root, ROOTS.as_slice(), 2),
            (RoleType::Targets, &[TOP], 1),
            (RoleType::Snapshot, &["snapshot"], 1),
            (RoleType::Timestamp, &["timestamp"], 1),
        ] {
            let mut keyids = Vec::new();
            for name in names {
                let key = keys.read(name)?;
                let id = key_id(&key)?;
                root.keys.insert(id.clone(), key);
                keyids.push(id);
            }
            let threshold = NonZeroU64::new(threshold).unwrap_or(ONE);
            let role_keys = RoleKeys {
                keyids,
                threshold,
                _extra: Default::default(),
            };
            root.roles.insert(role, role_keys);
        }
        let mut draft = Self {
            root,
            targets: Targets::new(SPEC_VERSION.to_owned(), ONE, expires(TOP, audience)),
            roles: BTreeMap::new(),
            changed: [TOP.to_owned()].into(),
            snapshot: 0,
            timestamp: 0,
            audience,
        };
        draft.add_role(RELEASES, &keys.read(RELEASES)?, &RELEASES_PATHS)?;
        Ok(draft)
    }

    /// Reads and verifies a repository. It may have expired: then it needs a change most.
    pub(super) async fn load(folder: &Path) -> Result<Self, PublishError> {
        let first = folder.join(METADATA).join("1.root.json");
        let root = tokio::fs::read(&first).await.map_err(of_file(&first))?;
        let absolute = std::path::absolute(folder).map_err(of_file(folder))?;
        let url = Url::from_directory_path(&absolute)
            .map_err(|()| PublishError::Broken(format!("{} is no path", absolute.display())))?;
        let fetcher = Fetcher::new(FetchLimits::default(), &[]).map_err(PublishError::Broken)?;
        let repository = RepositoryLoader::new(&root, below(&url, METADATA), below(&url, TARGETS))
            .transport(fetcher)
            .expiration_enforcement(ExpirationEnforcement::Unsafe)
            .load()
            .await
            .map_err(of_tuf)?;
        let mut targets = repository.targets().signed.clone();
        let mut roles = BTreeMap::new();
        for role in targets.delegations.iter_mut().flat_map(|it| &mut it.roles) {
            let of_role = role.targets.take().ok_or_else(|| {
                PublishError::Broken(format!("the repository has no metadata of {}", role.name))
            })?;
            roles.insert(role.name.clone(), of_role.signed);
        }
        let root = repository.root().signed.clone();
        let audience = match root._extra.contains_key(DEV) {
            true => Audience::Dev,
            false => Audience::Production,
        };
        Ok(Self {
            root,
            targets,
            roles,
            changed: BTreeSet::new(),
            snapshot: repository.snapshot().signed.version.get(),
            timestamp: repository.timestamp().signed.version.get(),
            audience,
        })
    }

    pub(super) fn has(&self, role: &str) -> bool {
        self.roles.contains_key(role)
    }

    fn role(&self, role: &str) -> Result<&Targets, PublishError> {
        let known = self.roles.get(role);
        known.ok_or_else(|| PublishError::Broken(format!("the repository has no role {role}")))
    }

    /// Metadata of a role that will be signed again.
    fn change(&mut self, role: &str) -> Result<&mut Targets, PublishError> {
        self.role(role)?;
        self.changed.insert(role.to_owned());
        let known = self.roles.get_mut(role);
        known.ok_or_else(|| PublishError::Broken(format!("the repository has no role {role}")))
    }

    /// Targets of a role by name.
    pub(super) fn entries(&self, role: &str) -> Result<BTreeMap<String, Entry>, PublishError> {
        let all = self.role(role)?.targets_iter();
        Ok(all
            .map(|(name, target)| (name.raw().to_owned(), Entry::of_target(target)))
            .collect())
    }

    /// Versions that each channel served.
    pub(super) fn served(&self) -> Result<Vec<(String, Vec<String>)>, PublishError> {
        let channels = self
            .roles
            .keys()
            .filter_map(|it| it.strip_prefix("channel-"));
        let served = channels.map(|channel| {
            let entries = self.entries(&format!("channel-{channel}"))?;
            let served = entries.into_values().flat_map(|entry| entry.served);
            Ok((channel.to_owned(), served.collect()))
        });
        served.collect()
    }

    pub(super) fn set(&mut self, role: &str, name: &str, entry: Entry) -> Result<(), PublishError> {
        let name = TargetName::new(name).map_err(of_tuf)?;
        self.change(role)?.add_target(name, entry.target());
        Ok(())
    }

    pub(super) fn remove(&mut self, role: &str, name: &str) -> Result<(), PublishError> {
        let name = TargetName::new(name).map_err(of_tuf)?;
        self.change(role)?.remove_target(&name);
        Ok(())
    }

    /// Lets a key sign some names.
    pub(super) fn add_role(
        &mut self,
        role: &str,
        key: &Key,
        names: &[impl AsRef<str>],
    ) -> Result<(), PublishError> {
        let patterns = names.iter().map(|name| PathPattern::new(name.as_ref()));
        let patterns = patterns.collect::<Result<_, _>>().map_err(of_tuf)?;
        let id = key_id(key)?;
        let delegations = self
            .targets
            .delegations
            .get_or_insert_with(Delegations::new);
        delegations.keys.insert(id.clone(), key.clone());
        delegations.roles.push(DelegatedRole {
            name: role.to_owned(),
            keyids: vec![id],
            threshold: ONE,
            paths: PathSet::Paths(patterns),
            terminating: true,
            targets: None,
        });
        let end = expires(role, self.audience);
        let mut empty = Targets::new(SPEC_VERSION.to_owned(), ONE, end);
        empty.delegations = None;
        self.roles.insert(role.to_owned(), empty);
        self.changed.extend([role.to_owned(), TOP.to_owned()]);
        Ok(())
    }

    /// Marks each role whose key is here. Returns them, and the three at the top.
    pub(super) fn renew(&mut self, keys: &Keys) -> Result<BTreeSet<String>, PublishError> {
        let names = self.roles.keys().map(String::as_str).chain([TOP]);
        let here = names.filter(|name| keys.has(name)).map(str::to_owned);
        self.changed = here.collect();
        let mut renewed = self.changed.clone();
        renewed.extend(["snapshot".to_owned(), "timestamp".to_owned()]);
        if ROOTS.iter().filter(|name| keys.has(name)).count() >= 2 {
            self.root.version = next(self.root.version);
            self.root.expires = expires("root", self.audience);
            renewed.insert("root".to_owned());
        }
        Ok(renewed)
    }

    /// Signs what is changed, and writes it. The timestamp comes last.
    pub(super) async fn write(
        mut self,
        folder: &Path,
        keys: &Keys,
        with_root: bool,
    ) -> Result<(), PublishError> {
        let metadata = folder.join(METADATA);
        let of_root = KeyHolder::Root(self.root.clone());
        let mut files: Vec<(String, Vec<u8>)> = Vec::new();
        if with_root {
            let root = sign(self.root.clone(), &of_root, keys, &ROOTS).await?;
            if root.signed().signatures.len() < 2 {
                let text = "the root needs two of its three keys".to_owned();
                return Err(PublishError::NoKey(text));
            }
            files.push((self.root.filename(true), root.buffer().clone()));
        }
        let mut snapshot = Snapshot::new(
            SPEC_VERSION.to_owned(),
            NonZeroU64::new(self.snapshot + 1).unwrap_or(ONE),
            expires("snapshot", self.audience),
        );
        let delegations = self.targets.delegations.clone().unwrap_or_default();
        let of_targets = KeyHolder::Delegations(delegations);
        for (name, mut targets) in std::mem::take(&mut self.roles) {
            let is_changed = self.changed.contains(&name);
            let is_new = !metadata
                .join(format!("{}.{name}.json", targets.version))
                .exists();
            if is_changed {
                targets.expires = expires(&name, self.audience);
                if !is_new {
                    targets.version = next(targets.version);
                }
            }
            let role = DelegatedTargets { name, targets };
            let (version, file) = (role.version(), role.filename(true));
            let member = format!("{}.json", role.name);
            let content = if is_changed {
                let names = [role.name.clone()];
                let names = names.each_ref().map(String::as_str);
                let signed = sign(role, &of_targets, keys, &names).await?;
                files.push((file, signed.buffer().clone()));
                signed.buffer().clone()
            } else {
                let path = metadata.join(file);
                tokio::fs::read(&path).await.map_err(of_file(&path))?
            };
            snapshot.meta.insert(member, metafile(&content, version));
        }
        self.write_top(&metadata, (snapshot, files), &of_root, keys)
            .await
    }

    async fn write_top(
        self,
        metadata: &Path,
        (mut snapshot, mut files): (Snapshot, Vec<(String, Vec<u8>)>),
        of_root: &KeyHolder,
        keys: &Keys,
    ) -> Result<(), PublishError> {
        let mut targets = self.targets;
        let is_changed = self.changed.contains(TOP);
        if is_changed {
            targets.expires = expires(TOP, self.audience);
            if metadata.join(targets.filename(true)).exists() {
                targets.version = next(targets.version);
            }
        }
        let (version, file) = (targets.version, targets.filename(true));
        let content = if is_changed {
            let signed = sign(targets, of_root, keys, &[TOP]).await?;
            files.push((file, signed.buffer().clone()));
            signed.buffer().clone()
        } else {
            let path = metadata.join(file);
            tokio::fs::read(&path).await.map_err(of_file(&path))?
        };
        let member = format!("{TOP}.json");
        snapshot.meta.insert(member, metafile(&content, version));
        let mut timestamp = Timestamp::new(
            SPEC_VERSION.to_owned(),
            NonZeroU64::new(self.timestamp + 1).unwrap_or(ONE),
            expires("timestamp", self.audience),
        );
        let (version, file) = (snapshot.version, snapshot.filename(true));
        let signed = sign(snapshot, of_root, keys, &["snapshot"]).await?;
        files.push((file, signed.buffer().clone()));
        let of_snapshot = metafile(signed.buffer(), version);
        timestamp
            .meta
            .insert("snapshot.json".to_owned(), of_snapshot);
        let file = timestamp.filename(true);
        let signed = sign(timestamp, of_root, keys, &["timestamp"]).await?;
        files.push((file, signed.buffer().clone()));
        for (file, content) in &files {
            put(&metadata.join(file), content)?;
        }
        Ok(())
    }
}

async fn sign<T: Role + Serialize>(
    role: T,
    holder: &KeyHolder,
    keys: &Keys,
    names: &[&str],
) -> Result<SignedRole<T>, PublishError> {
    let sources = keys.sources(names)?;
    let random = SystemRandom::new();
    let signed = SignedRole::new(role, holder, &sources, &random).await;
    signed.map_err(|error| {
        let what = format!("role {}", names.join(" or "));
        refused(
            what,
            format!("its key in the folder does not sign: {error}"),
        )
    })
}
