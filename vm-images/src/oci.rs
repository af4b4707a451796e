//! OCI images from files and trees, written as one archive that any container runtime imports: no
//! daemon, no registry.
//!
//! The same input gives the same bytes: names are sorted, owners are root, times are the epoch.
//! Nothing is compressed, because the archive is read once, on this machine or by a registry that
//! compresses itself. Nothing is written twice: a first pass over the files computes digests and
//! sizes, a second one writes the archive.
//!
//! Format: the OCI image layout in a tar, with the name where containerd looks for it
//! (`io.containerd.image.name`).

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use protocol::image::Digest;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

mod tar;

#[cfg(test)]
pub(crate) use tar::record as pax_record;
use tar::{Body, Entry};

/// Longest reference in bytes.
const MAX_REFERENCE: usize = 255;
/// Search path of programs in a container.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Content and configuration of an OCI image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OciImage {
    /// Name with its tag, such as `bellows/runner:1`.
    pub reference: String,
    /// Layers, the lowest first.
    pub layers: Vec<Vec<Part>>,
    /// Program of a container, with its first arguments.
    #[serde(default)]
    pub entrypoint: Vec<String>,
    /// Environment of that program, beside `PATH`.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// Default arguments after the entrypoint's.
    #[serde(default)]
    pub cmd: Vec<String>,
    /// User of the program: a name or number, perhaps with a group after a colon. `None` is root.
    #[serde(default)]
    pub user: Option<String>,
    /// Working directory of the program. `None` is `/`.
    #[serde(default)]
    pub working_dir: Option<String>,
}

/// A part of a layer. Its parent directories are created. A later part replaces an earlier one of
/// the same path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub enum Part {
    /// A regular file, copied from this machine.
    File {
        /// Path on this machine.
        from: PathBuf,
        /// Path in the image.
        at: String,
        /// Permission bits. `None` keeps those of the file.
        #[serde(default)]
        mode: Option<u32>,
    },
    /// A directory with everything below it.
    Tree {
        /// Path on this machine.
        from: PathBuf,
        /// Path in the image.
        at: String,
    },
    /// A symbolic link.
    Link {
        /// Target of the link.
        to: String,
        /// Path in the image.
        at: String,
    },
    /// A file with the given text.
    Text {
        /// Whole content of the file, which gets mode 0644.
        text: String,
        /// Path in the image.
        at: String,
    },
    /// An empty directory.
    Directory {
        /// Path in the image.
        at: String,
        /// Permission bits of the directory, for example 0o755.
        mode: u32,
    },
}

/// Why an archive cannot be written.
#[derive(Debug, thiserror::Error)]
pub enum OciError {
    /// The reference has no colon, contains white space or is too long. Holds the reference.
    #[error("{0:?} is not an image name with a tag")]
    Reference(String),
    /// A path of the image is invalid. Holds the path.
    #[error("{0:?} is not a path inside an image")]
    Path(String),
    /// A file or directory that a part names cannot be read. Holds its path.
    #[error("cannot read {0}")]
    Read(PathBuf, #[source] io::Error),
    /// A path is neither file, directory nor link. Holds the path.
    #[error("{0} is neither a file nor a directory nor a link")]
    Kind(PathBuf),
    /// The archive cannot be written. Holds its path.
    #[error("cannot write {0}")]
    Write(PathBuf, #[source] io::Error),
}

struct Blob {
    digest: Digest,
    bytes: u64,
    content: Content,
}

enum Content {
    Json(Vec<u8>),
    Layer(BTreeMap<String, Entry>),
}

/// Writes the archive in full or not at all. Returns the digest of the image's manifest.
///
/// # Errors
///
/// [`OciError`]. No archive exists then.
pub fn write(image: &OciImage, archive: &Path) -> Result<Digest, OciError> {
    let named = image.reference.len() <= MAX_REFERENCE && image.reference.contains(':');
    if !named || image.reference.contains(char::is_whitespace) {
        return Err(OciError::Reference(image.reference.clone()));
    }
    let mut blobs = Vec::new();
    for parts in &image.layers {
        blobs.push(layer(parts)?);
    }
    let layers: Vec<Value> = blobs
        .iter()
        .map(|blob| descriptor("layer.v1.tar", blob))
        .collect();
    let config = json_blob(&config(image, &blobs));
    let manifest = json_blob(&json!({
        "schemaVersion": 2,
        "mediaType": media_type("manifest.v1+json"),
        "config": descriptor("config.v1+json", &config),
        "layers": layers,
    }));
    let mut listed = descriptor("manifest.v1+json", &manifest);
    let tag = image.reference.rsplit(':').next().unwrap_or_default();
    listed["annotations"] = json!({
        "io.containerd.image.name": image.reference,
        "org.opencontainers.image.ref.name": tag,
    });
    let digest = manifest.digest.clone();
    let index = json!({"schemaVersion": 2, "manifests": [listed]});
    blobs.extend([config, manifest]);
    // Equal layers share one blob.
    blobs.sort_by(|a, b| a.digest.as_str().cmp(b.digest.as_str()));
    blobs.dedup_by(|a, b| a.digest == b.digest);
    let write = || -> io::Result<()> {
        let directory = archive.parent().unwrap_or(Path::new("."));
        let mut file = tempfile::NamedTempFile::new_in(directory)?;
        let mut out = BufWriter::with_capacity(1 << 20, file.as_file_mut());
        archive_to(&mut out, &blobs, &index)?;
        out.flush()?;
        drop(out);
        file.persist(archive).map_err(|error| error.error)?;
        Ok(())
    };
    write().map_err(|error| OciError::Write(archive.to_owned(), error))?;
    Ok(digest)
}

fn config(image: &OciImage, layers: &[Blob]) -> Value {
    let mut env = BTreeMap::from([("PATH".to_owned(), PATH.to_owned())]);
    env.extend(image.env.clone());
    let env: Vec<String> = env.iter().map(|(k, v)| format!("{k}={v}")).collect();
    let digests: Vec<String> = layers.iter().map(|blob| sha256(&blob.digest)).collect();
    let mut process = json!({"Env": env, "Entrypoint": image.entrypoint});
    if !image.cmd.is_empty() {
        process["Cmd"] = json!(image.cmd);
    }
    for (member, value) in [("User", &image.user), ("WorkingDir", &image.working_dir)] {
        if let Some(value) = value {
            process[member] = json!(value);
        }
    }
    json!({
        "architecture": "amd64",
        "os": "linux",
        "created": "1970-01-01T00:00:00Z",
        "config": process,
        "rootfs": {"type": "layers", "diff_ids": digests},
    })
}

fn media_type(kind: &str) -> String {
    format!("application/vnd.oci.image.{kind}")
}

fn sha256(digest: &Digest) -> String {
    format!("sha256:{}", digest.as_str())
}

fn descriptor(kind: &str, blob: &Blob) -> Value {
    json!({"mediaType": media_type(kind), "digest": sha256(&blob.digest), "size": blob.bytes})
}

fn json_blob(value: &Value) -> Blob {
    let text = value.to_string().into_bytes();
    Blob {
        digest: crate::digest::of_bytes(&text),
        bytes: text.len() as u64,
        content: Content::Json(text),
    }
}

/// Computes the content and the digest of a layer.
fn layer(parts: &[Part]) -> Result<Blob, OciError> {
    let mut entries = BTreeMap::new();
    for part in parts {
        add(&mut entries, part)?;
    }
    let mut measure = Measure::default();
    for (path, entry) in &entries {
        tar::append(&mut measure, path, entry)
            .map_err(|error| OciError::Read(entry.source().to_owned(), error))?;
    }
    // A write to memory does not fail.
    tar::finish(&mut measure).map_err(|error| OciError::Read(PathBuf::new(), error))?;
    Ok(Blob {
        digest: Digest::from_bytes(measure.hash.finalize().into()),
        bytes: measure.bytes,
        content: Content::Layer(entries),
    })
}

/// Writes the archive in a second pass over the files.
fn archive_to(out: &mut impl Write, blobs: &[Blob], index: &Value) -> io::Result<()> {
    let text = |value: &Value| Entry::text(value.to_string());
    tar::append(out, "blobs/", &Entry::directory(0o755))?;
    tar::append(out, "blobs/sha256/", &Entry::directory(0o755))?;
    for blob in blobs {
        let path = format!("blobs/sha256/{}", blob.digest.as_str());
        tar::append_stream(out, &path, blob.bytes, |out| match &blob.content {
            Content::Json(text) => out.write_all(text),
            Content::Layer(entries) => {
                for (path, entry) in entries {
                    tar::append(out, path, entry)?;
                }
                tar::finish(out)
            }
        })?;
    }
    tar::append(out, "index.json", &text(index))?;
    let layout = json!({"imageLayoutVersion": "1.0.0"});
    tar::append(out, "oci-layout", &text(&layout))?;
    tar::finish(out)
}

/// Adds a part and its parent directories.
fn add(entries: &mut BTreeMap<String, Entry>, part: &Part) -> Result<(), OciError> {
    match part {
        Part::File { from, at, mode } => {
            let meta = fs::metadata(from).map_err(|error| OciError::Read(from.clone(), error))?;
            if !meta.is_file() {
                return Err(OciError::Kind(from.clone()));
            }
            let body = Body::File(from.clone(), meta.len());
            let mode = mode.unwrap_or(meta.mode()) & 0o7777;
            insert(entries, &inside(at)?, Entry { mode, body });
        }
        Part::Tree { from, at } => add_tree(entries, from, &inside(at)?)?,
        Part::Link { to, at } => insert(entries, &inside(at)?, Entry::link(to)),
        Part::Text { text, at } => insert(entries, &inside(at)?, Entry::text(text.clone())),
        Part::Directory { at, mode } => {
            insert(
                entries,
                &format!("{}/", inside(at)?),
                Entry::directory(*mode),
            );
        }
    }
    Ok(())
}

fn add_tree(entries: &mut BTreeMap<String, Entry>, from: &Path, at: &str) -> Result<(), OciError> {
    let read = |error| OciError::Read(from.to_owned(), error);
    for entry in fs::read_dir(from).map_err(read)? {
        let entry = entry.map_err(read)?;
        let path = entry.path();
        let meta = path
            .symlink_metadata()
            .map_err(|error| OciError::Read(path.clone(), error))?;
        let name = entry.file_name();
        let name = name
            .to_str()
            .ok_or_else(|| OciError::Path(path.display().to_string()))?;
        let at = format!("{at}/{name}");
        let at = at.trim_start_matches('/');
        let mode = meta.mode() & 0o7777;
        if meta.is_dir() {
            insert(entries, &format!("{at}/"), Entry::directory(mode));
            add_tree(entries, &path, at)?;
        } else if meta.is_symlink() {
            let to = fs::read_link(&path).map_err(|error| OciError::Read(path.clone(), error))?;
            insert(entries, at, Entry::link(&to.to_string_lossy()));
        } else if meta.is_file() {
            let body = Body::File(path, meta.len());
            insert(entries, at, Entry { mode, body });
        } else {
            return Err(OciError::Kind(path));
        }
    }
    Ok(())
}

fn insert(entries: &mut BTreeMap<String, Entry>, path: &str, entry: Entry) {
    let mut above = String::new();
    let inner = path.trim_end_matches('/');
    for name in inner
        .split('/')
        .rev()
        .skip(1)
        .collect::<Vec<_>>()
        .into_iter()
        .rev()
    {
        above = format!("{above}{name}/");
        entries
            .entry(above.clone())
            .or_insert_with(|| Entry::directory(0o755));
    }
    entries.insert(path.to_owned(), entry);
}

/// A path in the image without its leading slash.
fn inside(path: &str) -> Result<String, OciError> {
    let relative = path.strip_prefix('/').unwrap_or(path);
    let is_plain = |name: &str| !name.is_empty() && name != "." && name != "..";
    if relative.split('/').all(is_plain) && !relative.contains('\0') {
        Ok(relative.to_owned())
    } else {
        Err(OciError::Path(path.to_owned()))
    }
}

/// Counts and hashes what is written to it.
#[derive(Default)]
struct Measure {
    hash: Sha256,
    bytes: u64,
}

impl Write for Measure {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.hash.update(bytes);
        self.bytes += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Opens a file and checks that its length has not changed.
fn open(path: &Path, bytes: u64) -> io::Result<File> {
    let file = File::open(path)?;
    if file.metadata()?.len() != bytes {
        let text = format!("{} changes while it is read", path.display());
        return Err(io::Error::other(text));
    }
    Ok(file)
}

#[cfg(test)]
mod tests;
