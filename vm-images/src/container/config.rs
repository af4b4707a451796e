//! Opens one image of an archive: its layers, and the program that a container of it would run.

use std::path::Path;

use protocol::image::Digest;
use serde::Deserialize;

use super::store::{Store, StoreError, blob_name};

/// Most layers of an image. Overlay file systems accept about as many.
const MAX_LAYERS: usize = 512;
/// Most nested indexes above a manifest.
const MAX_INDEXES: u32 = 4;
/// Operating system and architecture of guests.
const PLATFORM: (&str, &str) = ("linux", "amd64");
/// Annotations with the name of an image: OCI's and docker's.
const NAMES: [&str; 2] = [
    "org.opencontainers.image.ref.name",
    "io.containerd.image.name",
];

/// Why an archive holds no usable image.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// A file of the archive is missing, damaged, too long or cannot be read.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The archive is neither an OCI layout nor a docker archive.
    #[error(
        "it is neither an OCI image layout nor a docker archive: it has no index.json and no manifest.json"
    )]
    Format,
    /// A document cannot be parsed.
    #[error("{name} of the image is not what it should be")]
    Document {
        /// Name of the document inside the archive, for example `index.json`.
        name: String,
        /// Error of the parser.
        #[source]
        source: serde_json::Error,
    },
    /// A digest is not a SHA-256. Holds the digest.
    #[error("{0:?} is not a SHA-256 digest")]
    Digest(String),
    /// More than one image fits, by the tag or without one. Holds the names found in the archive.
    #[error("the archive holds several images ({}): say which with a tag", .0.join(", "))]
    Several(Vec<String>),
    /// No image has the tag.
    #[error("the archive holds no image {tag:?} for linux/amd64, only: {}", .found.join(", "))]
    NoImage {
        /// The requested tag.
        tag: String,
        /// Names of the images in the archive.
        found: Vec<String>,
    },
    /// The image is for another platform. Holds that platform.
    #[error("the image is for {0}; guests are built for linux/amd64")]
    Platform(String),
    /// The numbers of layers and digests differ.
    #[error(
        "the image has {layers} layers and the digests of {digests}; {MAX_LAYERS} are the most"
    )]
    Layers {
        /// Layers in the manifest.
        layers: usize,
        /// Digests in the configuration.
        digests: usize,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LayerRef {
    /// Path of the layer in the archive.
    pub(super) name: String,
    /// SHA-256 of that file, if its name contains it.
    pub(super) packed: Option<Digest>,
    /// SHA-256 of the uncompressed tar.
    pub(super) unpacked: Digest,
}

#[derive(Debug)]
pub(super) struct Image {
    pub(super) store: Store,
    /// SHA-256 of the configuration, which docker calls the image ID.
    pub(super) id: Digest,
    pub(super) layers: Vec<LayerRef>,
    pub(super) process: Process,
}

/// Program, environment and user of a container of the image.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(super) struct Process {
    pub(super) user: Option<String>,
    pub(super) env: Option<Vec<String>>,
    pub(super) entrypoint: Option<Vec<String>>,
    pub(super) cmd: Option<Vec<String>>,
    pub(super) working_dir: Option<String>,
}

#[derive(Deserialize)]
struct Index {
    #[serde(default)]
    manifests: Vec<Descriptor>,
}

#[derive(Deserialize, Clone)]
struct Descriptor {
    digest: String,
    #[serde(rename = "mediaType", default)]
    media_type: String,
    #[serde(default)]
    platform: Option<Platform>,
    #[serde(default)]
    annotations: std::collections::BTreeMap<String, String>,
}

#[derive(Deserialize, Clone)]
struct Platform {
    #[serde(default)]
    os: String,
    #[serde(default)]
    architecture: String,
}

#[derive(Deserialize)]
struct Manifest {
    config: Descriptor,
    #[serde(default)]
    layers: Vec<Descriptor>,
}

#[derive(Deserialize)]
struct Config {
    #[serde(default)]
    architecture: String,
    #[serde(default)]
    os: String,
    #[serde(default)]
    config: Option<Process>,
    rootfs: RootFs,
}

#[derive(Deserialize)]
struct RootFs {
    #[serde(default)]
    diff_ids: Vec<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Saved {
    config: String,
    #[serde(default)]
    repo_tags: Option<Vec<String>>,
    layers: Vec<String>,
}

impl Image {
    /// Opens an image of an archive or directory. `tag` selects it if there are several.
    pub(super) fn open(path: &Path, tag: Option<&str>) -> Result<Self, ConfigError> {
        let store = Store::open(path)?;
        if store.has("index.json") {
            return Self::of_layout(store, tag);
        }
        if store.has("manifest.json") {
            return Self::of_docker(store, tag);
        }
        Err(ConfigError::Format)
    }

    fn of_layout(store: Store, tag: Option<&str>) -> Result<Self, ConfigError> {
        let index: Index = parse("index.json", &store.document("index.json")?)?;
        let mut chosen = choose(index.manifests, tag)?;
        for _ in 0..MAX_INDEXES {
            if !chosen.media_type.contains("index") && !chosen.media_type.contains("manifest.list")
            {
                break;
            }
            let digest = digest(&chosen.digest)?;
            let index: Index = parse("an index", &store.blob(&digest)?)?;
            chosen = choose(index.manifests, None)?;
        }
        let manifest = store.blob(&digest(&chosen.digest)?)?;
        let manifest: Manifest = parse("the manifest", &manifest)?;
        let id = digest(&manifest.config.digest)?;
        let text = store.blob(&id)?;
        let files = manifest.layers.iter().map(|layer| {
            let digest = digest(&layer.digest)?;
            Ok((blob_name(&digest), Some(digest)))
        });
        let files = files.collect::<Result<Vec<_>, ConfigError>>()?;
        Self::with(store, id, &text, files)
    }

    fn of_docker(store: Store, tag: Option<&str>) -> Result<Self, ConfigError> {
        let all: Vec<Saved> = parse("manifest.json", &store.document("manifest.json")?)?;
        let tags = |saved: &Saved| saved.repo_tags.clone().unwrap_or_default();
        let known: Vec<String> = all.iter().flat_map(tags).collect();
        let mut fitting = all.into_iter().filter(|saved| {
            tag.is_none_or(|tag| tags(saved).iter().any(|name| is_named(name, tag)))
        });
        let chosen = fitting.next().ok_or_else(|| ConfigError::NoImage {
            tag: tag.unwrap_or("of any name").to_owned(),
            found: known.clone(),
        })?;
        if fitting.next().is_some() {
            return Err(ConfigError::Several(known));
        }
        let text = store.document(&chosen.config)?;
        let id = crate::digest::of_bytes(&text);
        // The file is named after its digest, in one of two directories.
        let stem = chosen.config.rsplit('/').next().unwrap_or_default();
        if let Ok(named) = Digest::parse(stem.trim_end_matches(".json"))
            && named != id
        {
            let name = chosen.config;
            return Err(StoreError::Digest { name, found: id }.into());
        }
        let files = chosen.layers.into_iter().map(|name| (name, None)).collect();
        Self::with(store, id, &text, files)
    }

    fn with(
        store: Store,
        id: Digest,
        config: &[u8],
        files: Vec<(String, Option<Digest>)>,
    ) -> Result<Self, ConfigError> {
        let config: Config = parse("the configuration", config)?;
        if (config.os.as_str(), config.architecture.as_str()) != PLATFORM {
            let platform = format!("{}/{}", config.os, config.architecture);
            return Err(ConfigError::Platform(platform));
        }
        let (layers, digests) = (files.len(), config.rootfs.diff_ids.len());
        if layers != digests || layers > MAX_LAYERS {
            return Err(ConfigError::Layers { layers, digests });
        }
        let layers = files.into_iter().zip(&config.rootfs.diff_ids);
        let layers = layers.map(|((name, packed), unpacked)| {
            let unpacked = digest(unpacked)?;
            Ok(LayerRef {
                name,
                packed,
                unpacked,
            })
        });
        Ok(Self {
            store,
            id,
            layers: layers.collect::<Result<_, ConfigError>>()?,
            process: config.config.unwrap_or_default(),
        })
    }
}

/// The one image of an index that fits the platform and the tag.
fn choose(manifests: Vec<Descriptor>, tag: Option<&str>) -> Result<Descriptor, ConfigError> {
    let name = |one: &Descriptor| {
        let names = NAMES.iter().filter_map(|key| one.annotations.get(*key));
        names
            .cloned()
            .next_back()
            .unwrap_or_else(|| one.digest.clone())
    };
    let found: Vec<String> = manifests.iter().map(name).collect();
    let is_ours = |one: &Descriptor| {
        let platform = one.platform.as_ref();
        platform.is_none_or(|at| (at.os.as_str(), at.architecture.as_str()) == PLATFORM)
    };
    let has_tag = |one: &Descriptor| {
        let mut names = NAMES.iter().filter_map(|key| one.annotations.get(*key));
        tag.is_none_or(|tag| names.any(|name| is_named(name, tag)))
    };
    let mut fitting: Vec<Descriptor> = manifests
        .into_iter()
        .filter(|one| is_ours(one) && has_tag(one))
        .collect();
    // An image with several names counts once.
    fitting.dedup_by(|a, b| a.digest == b.digest);
    match (fitting.pop(), fitting.is_empty()) {
        (Some(one), true) => Ok(one),
        (Some(_), false) => Err(ConfigError::Several(found)),
        (None, _) => {
            let tag = tag.unwrap_or("of any name").to_owned();
            Err(ConfigError::NoImage { tag, found })
        }
    }
}

/// Whether `name` is `tag`, or ends with it as its tag.
fn is_named(name: &str, tag: &str) -> bool {
    name == tag || name.rsplit(':').next() == Some(tag)
}

fn parse<'a, T: Deserialize<'a>>(name: &str, text: &'a [u8]) -> Result<T, ConfigError> {
    serde_json::from_slice(text).map_err(|source| ConfigError::Document {
        name: name.to_owned(),
        source,
    })
}

fn digest(text: &str) -> Result<Digest, ConfigError> {
    let digits = text.strip_prefix("sha256:").map(Digest::parse);
    let bad = || ConfigError::Digest(text.chars().take(100).collect());
    digits.ok_or_else(bad)?.map_err(|_| bad())
}

#[cfg(test)]
mod tests;
