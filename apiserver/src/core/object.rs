//! A stored object and reading of its metadata.

use std::sync::Arc;

use serde_json::Value;

/// An object as it is kept: at its storage version, with its JSON text made once for the store and
/// all watchers.
#[derive(Debug)]
pub struct Object {
    /// The object as JSON, `metadata.resourceVersion` included.
    pub value: Value,
    /// `value` as JSON text.
    pub json: Arc<str>,
    /// `metadata.resourceVersion` as a number: revision of the store's last change to the object.
    pub revision: u64,
}

impl Object {
    /// Wraps a value whose `metadata.resourceVersion` is set to `revision`.
    #[must_use]
    pub fn new(mut value: Value, revision: u64) -> Arc<Self> {
        value["metadata"]["resourceVersion"] = Value::from(revision.to_string());
        let json = value.to_string().into();
        Arc::new(Self {
            value,
            json,
            revision,
        })
    }

    /// Reads stored text.
    ///
    /// # Errors
    /// When the text is not JSON or has no numeric resourceVersion.
    pub fn from_stored(text: &str) -> Result<Arc<Self>, String> {
        let value: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
        let revision = meta(&value, "resourceVersion")
            .and_then(|text| text.parse().ok())
            .ok_or("no resourceVersion")?;
        Ok(Arc::new(Self {
            value,
            json: text.into(),
            revision,
        }))
    }

    /// `metadata.uid`, empty if absent.
    #[must_use]
    pub fn uid(&self) -> &str {
        meta(&self.value, "uid").unwrap_or_default()
    }
}

/// A text member of `metadata`.
#[must_use]
pub fn meta<'a>(value: &'a Value, name: &str) -> Option<&'a str> {
    value.get("metadata")?.get(name)?.as_str()
}

/// Whether deletion has been asked for.
#[must_use]
pub fn is_deleting(value: &Value) -> bool {
    meta(value, "deletionTimestamp").is_some()
}

/// `metadata.finalizers`, empty if absent.
#[must_use]
pub fn finalizers(value: &Value) -> Vec<&str> {
    let list = value["metadata"]["finalizers"].as_array();
    list.into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect()
}

/// Uids in `metadata.ownerReferences`.
pub fn owner_uids(value: &Value) -> impl Iterator<Item = &str> {
    let list = value["metadata"]["ownerReferences"].as_array();
    list.into_iter()
        .flatten()
        .filter_map(|owner| owner["uid"].as_str())
}

/// Removes a member of `metadata` and the whole `metadata` member list entry if it is then unused.
pub fn remove_meta(value: &mut Value, name: &str) {
    if let Some(map) = value.get_mut("metadata").and_then(Value::as_object_mut) {
        map.remove(name);
    }
}

/// Copies a member of `metadata` from `from`, removing it where `from` has none.
pub fn copy_meta(value: &mut Value, from: &Value, name: &str) {
    match from.get("metadata").and_then(|metadata| metadata.get(name)) {
        Some(member) => value["metadata"][name] = member.clone(),
        None => remove_meta(value, name),
    }
}

/// Source of the random parts of one request, seeded by the shell so that the core stays
/// deterministic.
#[derive(Debug, Clone)]
pub struct Entropy(u64);

/// Letters and digits of generated names: no vowels and no look-alikes, as Kubernetes chooses them.
const NAME_LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";

impl Entropy {
    /// A source from a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a new version-4 UUID.
    pub fn uid(&mut self) -> String {
        let high = (self.next() & !0xf000) | 0x4000;
        let low = (self.next() & !(0b11 << 62)) | (0b10 << 62);
        format!(
            "{:08x}-{:04x}-{:04x}-{:04x}-{:012x}",
            high >> 32,
            high >> 16 & 0xffff,
            high & 0xffff,
            low >> 48,
            low & 0xffff_ffff_ffff
        )
    }

    /// The five characters put behind a `generateName`.
    pub fn suffix(&mut self) -> String {
        let count = NAME_LETTERS.len() as u64;
        let mut letter = || {
            let index = usize::try_from(self.next() % count).unwrap_or(0);
            char::from(NAME_LETTERS[index])
        };
        (0..5).map(|_| letter()).collect()
    }
}

/// Whether `name` is a DNS-1123 subdomain: at most 253 characters of lower-case letters, digits,
/// `-` and `.`, alphanumeric at both ends of each label.
#[must_use]
pub fn is_dns_subdomain(name: &str) -> bool {
    let label = |label: &str| {
        let edge = |byte: Option<&u8>| {
            byte.is_some_and(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
        };
        let bytes = label.as_bytes();
        edge(bytes.first())
            && edge(bytes.last())
            && bytes
                .iter()
                .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || *byte == b'-')
    };
    !name.is_empty() && name.len() <= 253 && name.split('.').all(label)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uids_are_version_4_and_differ() {
        let mut entropy = Entropy::new(7);
        let (one, two) = (entropy.uid(), entropy.uid());
        assert_ne!(one, two);
        assert_eq!((one.len(), one.as_bytes()[14]), (36, b'4'));
        assert!(b"89ab".contains(&one.as_bytes()[19]), "{one}");
        assert_eq!(entropy.suffix().len(), 5);
    }

    #[test]
    fn names_are_checked() {
        for good in ["a", "a-b.c0", "0"] {
            assert!(is_dns_subdomain(good), "{good}");
        }
        for bad in ["", "A", "a_b", "-a", "a-", "a..b", "a.", &"a".repeat(254)] {
            assert!(!is_dns_subdomain(bad), "{bad}");
        }
    }
}
