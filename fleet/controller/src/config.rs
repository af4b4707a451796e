//! The file of settings.

use std::path::{Path, PathBuf};
use std::time::Duration;

use fleet::Location;
use fleet_signatures::{ImageKey, KeyError};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::join::JoinConfig;
use crate::runners::RunnersConfig;

/// Most bytes of the file, and of each file that it names.
const MAX_BYTES: u64 = 1 << 20;
/// Bounds of `stuckSeconds`. A step takes up to 20 s while the API does not respond.
const STUCK_SECONDS: std::ops::RangeInclusive<u32> = 25..=3600;

/// Settings of the program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub struct Config {
    /// Whether releases may be signed by keys for trying.
    pub allow_dev_keys: bool,
    /// Files with certificates of authorities, PEM, that servers of channels are believed by beside
    /// the system's.
    pub authorities: Vec<PathBuf>,
    /// Signatures of container images. Without it images are not verified.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub images: Option<ImagesConfig>,
    /// Scripts by which machines get the updater. Without it they are not served.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub join: Option<JoinConfig>,
    /// Seconds in one step after which a task is stuck and the process ends.
    pub stuck_seconds: u32,
    /// Moves of running guests to a new runner. Without it no guest is moved.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub runners: Option<RunnersConfig>,
    /// Whether VMs get the schedules of updaters in their guests.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub schedules: bool,
}

/// Members of `images`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ImagesConfig {
    /// File with the public key by which each image is signed, PEM.
    pub key: PathBuf,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            allow_dev_keys: false,
            authorities: Vec::new(),
            images: None,
            join: None,
            stuck_seconds: 30,
            runners: None,
            schedules: false,
        }
    }
}

/// The settings cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// A file cannot be read.
    #[error("{file}: {reason}; give a file of at most 1 MiB that this user can read")]
    Unreadable {
        /// Path of the file.
        file: PathBuf,
        /// Text of the failure.
        reason: String,
    },
    /// The file has other members or values.
    #[error(
        "{file}: {reason}; its members are allowDevKeys (true or false), authorities (paths), \
         images (an object), join (an object), runners (an object), schedules (true or false) and \
         stuckSeconds (25 to 3600)"
    )]
    Invalid {
        /// Path of the file.
        file: PathBuf,
        /// Text of the failure.
        reason: String,
    },
    /// The file has no key of images.
    #[error("{file}: {error}")]
    Key {
        /// Path of the file.
        file: PathBuf,
        /// Rule and fix.
        error: KeyError,
    },
}

impl Config {
    /// Reads a file of settings.
    ///
    /// # Errors
    /// [`ConfigError`].
    pub fn load(file: Option<&Path>) -> Result<Self, ConfigError> {
        let Some(file) = file else {
            return Ok(Self::default());
        };
        // An array is no object, although it would be read as one.
        let members = serde_json::from_slice::<Map<String, Value>>(&read(file)?);
        let config = members.and_then(|members| Self::deserialize(Value::Object(members)));
        let config = config.map_err(|error| invalid(file, &error.to_string()))?;
        if !STUCK_SECONDS.contains(&config.stuck_seconds) {
            let reason = format!("stuckSeconds is {}", config.stuck_seconds);
            return Err(invalid(file, &reason));
        }
        if let Some(runners) = &config.runners {
            runners.check().map_err(|reason| invalid(file, &reason))?;
        }
        if let Some(join) = &config.join {
            join.check().map_err(|reason| invalid(file, &reason))?;
        }
        Ok(config)
    }

    /// Where the driver works.
    ///
    /// # Errors
    /// A file of an authority or of the key of images cannot be read.
    pub fn location(&self) -> Result<Location, ConfigError> {
        let authorities = self.authorities.iter().map(|file| read(file));
        Ok(Location::Cluster {
            allow_dev: self.allow_dev_keys,
            authorities: authorities.collect::<Result<_, _>>()?,
            image_key: self.image_key()?,
        })
    }

    fn image_key(&self) -> Result<Option<ImageKey>, ConfigError> {
        let Some(ImagesConfig { key }) = &self.images else {
            return Ok(None);
        };
        let pem = read(key)?;
        let parsed = ImageKey::parse(&String::from_utf8_lossy(&pem));
        let parsed = parsed.map_err(|error| ConfigError::Key {
            file: key.clone(),
            error,
        })?;
        Ok(Some(parsed))
    }

    /// Longest step of a task.
    #[must_use]
    pub fn longest_step(&self) -> Duration {
        Duration::from_secs(self.stuck_seconds.into())
    }
}

fn invalid(file: &Path, reason: &str) -> ConfigError {
    ConfigError::Invalid {
        file: file.to_owned(),
        reason: reason.to_owned(),
    }
}

fn read(file: &Path) -> Result<Vec<u8>, ConfigError> {
    let unreadable = |reason: String| ConfigError::Unreadable {
        file: file.to_owned(),
        reason,
    };
    let metadata = std::fs::metadata(file).map_err(|error| unreadable(error.to_string()))?;
    if !metadata.is_file() || metadata.len() > MAX_BYTES {
        return Err(unreadable("it is no file, or too large".to_owned()));
    }
    std::fs::read(file).map_err(|error| unreadable(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(text: &str) -> Result<Config, ConfigError> {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), text).expect("written");
        Config::load(Some(file.path()))
    }

    #[test]
    fn member_that_is_left_out_has_its_default() {
        assert_eq!(Config::load(None).expect("built in"), Config::default());
        assert_eq!(load("{}").expect("empty"), Config::default());
        let config = load(r#"{"allowDevKeys": true, "stuckSeconds": 60}"#).expect("valid");
        assert!(config.allow_dev_keys && config.authorities.is_empty());
        assert_eq!(config.longest_step(), Duration::from_secs(60));
    }

    #[test]
    fn invalid_file_is_refused_with_its_members() {
        for bad in [
            "",
            "[]",
            "{",
            r#"{"allowDevKeys": "yes"}"#,
            r#"{"allow_dev_keys": true}"#,
            r#"{"stuckSeconds": 24}"#,
            r#"{"stuckSeconds": 3601}"#,
            r#"{"stuckSeconds": -1}"#,
            r#"{"authorities": "/a.pem"}"#,
            r#"{"runners": {"image": "r:1", "version": "1.0.0"}}"#,
            r#"{"images": {}}"#,
            r#"{"join": {}}"#,
            r#"{"join": {"suiteUrl": "http://a.example", "suiteKey": "a2V5", "channels": {"s": "https://a.example"}}}"#,
            r#"{"images": {"key": "/a.pem", "log": true}}"#,
        ] {
            let error = load(bad).expect_err(bad).to_string();
            assert!(error.contains("stuckSeconds (25 to 3600)"), "{error}");
        }
    }

    /// A wrong key must not pass for no key.
    ///
    /// Requirement: R25
    #[test]
    fn file_without_a_key_of_images_is_refused() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let text = format!(r#"{{"images": {{"key": "{}"}}}}"#, file.path().display());
        let config = load(&text).expect("valid");
        let error = config.location().expect_err("an empty file").to_string();
        assert!(
            error.contains("the key of images cannot be used"),
            "{error}"
        );
        let signer = test_authority::ImageSigner::new();
        std::fs::write(file.path(), signer.public_key()).expect("written");
        let location = config.location().expect("a key");
        let Location::Cluster { image_key, .. } = location else {
            panic!("{location:?}");
        };
        assert!(image_key.is_some());
    }

    #[test]
    fn file_that_cannot_be_read_is_named() {
        let folder = tempfile::tempdir().expect("a folder");
        let large = folder.path().join("large");
        let file = std::fs::File::create(&large).expect("a file");
        file.set_len(MAX_BYTES + 1).expect("a length");
        for path in [folder.path().join("missing"), folder.path().into(), large] {
            let name = path.display().to_string();
            let error = Config::load(Some(&path)).expect_err("unreadable");
            assert!(error.to_string().contains(&name), "{error}");
            let config = Config {
                authorities: vec![path],
                ..Config::default()
            };
            let error = config.location().expect_err("unreadable");
            assert!(error.to_string().contains(&name), "{error}");
        }
    }
}
