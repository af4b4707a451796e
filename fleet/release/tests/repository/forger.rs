//! Metadata that an attacker signs with the keys that he has.

use std::fs;
use std::num::NonZeroU64;

use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair as _};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tough::schema::{Role, Root, Signature, Signed, Snapshot, Targets, Timestamp};
use tough::sign::Sign as _;

use crate::shop::Shop;

/// Roles with the name of their files and keys.
pub(crate) const TARGETS: &str = "targets";
pub(crate) const RELEASES: &str = "releases";
pub(crate) const CHANNEL: &str = "channel-stable";

impl Shop {
    fn key(&self, name: &str) -> Ed25519KeyPair {
        let bytes = fs::read(self.keys().join(format!("{name}.pk8"))).unwrap();
        Ed25519KeyPair::from_pkcs8(&bytes).unwrap()
    }

    fn signature(&self, name: &str, role: &impl Role) -> Signature {
        let key = self.key(name);
        assert_eq!(key.public_key().as_ref().len(), 32);
        Signature {
            keyid: key.tuf_key().key_id().unwrap(),
            sig: key
                .sign(&role.canonical_form().unwrap())
                .as_ref()
                .to_vec()
                .into(),
        }
    }

    fn read_role<T: DeserializeOwned>(&self, file: &str) -> T {
        let text = fs::read(self.metadata(file)).unwrap();
        serde_json::from_slice::<Signed<T>>(&text).unwrap().signed
    }

    /// Signs a role by these keys, and puts it in place. Returns its description for a snapshot.
    fn write_role<T: Role + Serialize>(&self, role: T, keys: &[&str]) -> Value {
        let signatures = keys.iter().map(|key| self.signature(key, &role)).collect();
        let (version, file) = (role.version(), role.filename(true));
        let signed = Signed {
            signed: role,
            signatures,
        };
        let text = serde_json::to_vec(&signed).unwrap();
        fs::write(self.metadata(&file), &text).unwrap();
        let sha256 = Sha256::digest(&text);
        let sha256: String = sha256.iter().map(|byte| format!("{byte:02x}")).collect();
        json!({"length": text.len(), "hashes": {"sha256": sha256}, "version": version})
    }

    /// Changes the root, and signs it by these keys.
    pub(crate) fn forge_root(&self, keys: &[&str], edit: impl FnOnce(&mut Root)) {
        let mut root: Root = self.read_role("1.root.json");
        edit(&mut root);
        self.write_role(root, keys);
    }

    /// Changes the timestamp alone.
    pub(crate) fn forge_timestamp(&self, edit: impl FnOnce(&mut Timestamp)) {
        let mut timestamp: Timestamp = self.read_role("timestamp.json");
        timestamp.version = timestamp.version.saturating_add(1);
        edit(&mut timestamp);
        self.write_role(timestamp, &["timestamp"]);
    }

    /// Changes the snapshot, and lets a new timestamp name it.
    pub(crate) fn forge_snapshot(&self, edit: impl FnOnce(&mut Snapshot)) {
        let mut snapshot: Snapshot = self.newest_snapshot();
        snapshot.version = snapshot.version.saturating_add(1);
        edit(&mut snapshot);
        let meta = self.write_role(snapshot, &["snapshot"]);
        self.forge_timestamp(|timestamp| {
            let meta = serde_json::from_value(meta).unwrap();
            timestamp.meta.insert("snapshot.json".to_owned(), meta);
        });
    }

    fn newest_snapshot(&self) -> Snapshot {
        let timestamp: Timestamp = self.read_role("timestamp.json");
        let version = timestamp.meta["snapshot.json"].version;
        self.read_role(&format!("{version}.snapshot.json"))
    }

    /// Version of a role in the newest snapshot.
    pub(crate) fn version_of(&self, role: &str) -> NonZeroU64 {
        self.newest_snapshot().meta[&format!("{role}.json")].version
    }

    /// A target of a role.
    pub(crate) fn entry(&self, role: &str) -> tough::schema::Target {
        let targets: Targets = self.read_role(&format!("{}.{role}.json", self.version_of(role)));
        targets.targets.into_values().next().unwrap()
    }

    /// Changes a role below the root and signs it by `key`. Snapshot and timestamp follow, signed
    /// by their own keys.
    pub(crate) fn forge(&self, role: &str, key: &str, edit: impl FnOnce(&mut Targets)) {
        let version = self.version_of(role);
        let mut targets: Targets = self.read_role(&format!("{version}.{role}.json"));
        targets.version = version.saturating_add(1);
        edit(&mut targets);
        let meta = if role == TARGETS {
            self.write_role(targets, &[key])
        } else {
            let name = role.to_owned();
            self.write_role(tough::schema::DelegatedTargets { name, targets }, &[key])
        };
        self.forge_snapshot(|snapshot| {
            let meta = serde_json::from_value(meta).unwrap();
            snapshot.meta.insert(format!("{role}.json"), meta);
        });
    }
}
