//! A release that is to be published: its programs, and the manifest that names them.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use protocol::fleet::{LinkRange, MANIFEST_BYTES, ReleaseImage, ReleaseManifest, ReleaseProgram};
use protocol::parts::{PROGRAM_BYTES, PartName};

use super::error::{PublishError, of_file, refused};
use super::role::Entry;
use crate::anchor::hex;
use crate::layout::{manifest_target, program_target};

/// A program of a release.
#[derive(Debug, Clone)]
pub struct Program {
    /// Part that it is for.
    pub part: PartName,
    /// Platform, as `x86_64`.
    pub platform: String,
    /// Path of the program, which is read twice.
    pub file: PathBuf,
}

/// A release before it is published.
#[derive(Debug, Clone, Default)]
pub struct ReleaseDraft {
    /// Semantic version, without a leading v.
    pub version: String,
    /// One for each part and platform.
    pub programs: Vec<Program>,
    /// Container images by their part.
    pub images: BTreeMap<String, ReleaseImage>,
    /// Versions of each link that it speaks.
    pub links: BTreeMap<String, LinkRange>,
    /// Version that must have run before it.
    pub at_least: Option<String>,
    /// Whether it waits for no other part.
    pub is_independent: bool,
    /// Text for people, which no program reads.
    pub notes: String,
}

/// A target and the file with its content.
pub(super) struct TargetFile {
    pub(super) name: String,
    pub(super) entry: Entry,
    source: Source,
}

enum Source {
    Text(Vec<u8>),
    File(PathBuf),
}

impl TargetFile {
    /// The content, if the file has not changed since it was hashed.
    pub(super) fn content(&self) -> Result<Vec<u8>, PublishError> {
        let path = match &self.source {
            Source::Text(text) => return Ok(text.clone()),
            Source::File(path) => path,
        };
        let content = fs::read(path).map_err(of_file(path))?;
        if Entry::of(&content) == self.entry {
            Ok(content)
        } else {
            let what = format!("program {}", path.display());
            Err(refused(
                what,
                "it changed while it was published: try again",
            ))
        }
    }
}

/// A checked release. The first file is the manifest.
pub(super) struct Prepared {
    pub(super) manifest: ReleaseManifest,
    pub(super) files: Vec<TargetFile>,
}

impl ReleaseDraft {
    pub(super) fn prepare(&self) -> Result<Prepared, PublishError> {
        let what = format!("release {:?}", self.version);
        if self.programs.is_empty() && self.images.is_empty() {
            return Err(refused(what, "it must have a program or an image"));
        }
        let mut parts: BTreeMap<String, BTreeMap<String, ReleaseProgram>> = BTreeMap::new();
        let mut files = Vec::new();
        for Program {
            part,
            platform,
            file,
        } in &self.programs
        {
            let length = fs::metadata(file).map_err(of_file(file))?.len();
            if length > PROGRAM_BYTES {
                let rule = "a program must be at most 32 MiB: strip it";
                return Err(refused(format!("program {}", file.display()), rule));
            }
            let entry = Entry::of(&fs::read(file).map_err(of_file(file))?);
            let program = ReleaseProgram {
                sha256: hex(&entry.sha256),
                size: entry.length,
            };
            let platforms = parts.entry(part.as_str().to_owned()).or_default();
            if platforms.insert(platform.clone(), program).is_some() {
                let rule = format!("it names {} for {platform} twice", part.as_str());
                return Err(refused(what, rule));
            }
            files.push(TargetFile {
                name: program_target(part.as_str(), &self.version, platform),
                entry,
                source: Source::File(file.clone()),
            });
        }
        let (manifest, of_manifest) = self.manifest(parts)?;
        files.insert(0, of_manifest);
        Ok(Prepared { manifest, files })
    }

    fn manifest(
        &self,
        parts: BTreeMap<String, BTreeMap<String, ReleaseProgram>>,
    ) -> Result<(ReleaseManifest, TargetFile), PublishError> {
        let refused = |rule| refused(format!("release {:?}", self.version), rule);
        let manifest = ReleaseManifest {
            version: self.version.clone(),
            parts,
            images: self.images.clone(),
            links: self.links.clone(),
            independent: self.is_independent,
            at_least: self.at_least.clone(),
            notes: self.notes.clone(),
        };
        manifest.check().map_err(refused)?;
        let text = serde_json::to_vec_pretty(&manifest)
            .map_err(|error| PublishError::Broken(error.to_string()))?;
        if text.len() > MANIFEST_BYTES {
            let rule = format!("its manifest must have at most {MANIFEST_BYTES} bytes: shorten it");
            return Err(refused(rule));
        }
        let file = TargetFile {
            name: manifest_target(&self.version),
            entry: Entry::of(&text),
            source: Source::Text(text),
        };
        Ok((manifest, file))
    }
}
