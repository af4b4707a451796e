//! The image specification: what is added to a container image to make a guest of it
//! (docs/compatibility/neonvm.md §4.1). YAML.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use protocol::image::Digest;
use serde::Deserialize;

/// Longest accepted specification in bytes.
const MAX_SPEC: u64 = 1 << 20;
/// Longest accepted file beside a specification, in bytes.
const MAX_FILE: u64 = 256 << 20;
/// Actions of busybox's init that a specification may use.
const ACTIONS: [&str; 4] = ["sysinit", "wait", "once", "respawn"];

/// Why a specification cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SpecError {
    /// The specification or a file that it names cannot be read. Holds its path.
    #[error("cannot read {0}")]
    Read(PathBuf, #[source] std::io::Error),
    /// A file is longer than the reader allows.
    #[error("{path} has {bytes} bytes, the limit is {limit}")]
    Long {
        /// Path of the specification, or of a file that it names.
        path: PathBuf,
        /// Length of the file, above `limit`.
        bytes: u64,
        /// Most bytes allowed: 1 MiB for a specification, 256 MiB for a file that it names.
        limit: u64,
    },
    /// The specification is not YAML, or has unknown members.
    #[error("{path} is not an image specification: {detail}")]
    Syntax {
        /// Path of the specification.
        path: PathBuf,
        /// Message of the parser, with line and column.
        detail: String,
    },
    /// Members of the specification are invalid.
    #[error("{path} has {} problem(s): {}", .problems.len(), .problems.join("; "))]
    Invalid {
        /// Path of the specification.
        path: PathBuf,
        /// All problems, each with its member.
        problems: Vec<String>,
    },
}

/// A specification, with the content of its files.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ImageSpec {
    /// Commands that init runs beside the image's own program.
    pub commands: Vec<Command>,
    /// Shell script. It is repeated at shutdown until the image's program has ended.
    pub shutdown_hook: Option<String>,
    /// Dockerfile lines that change the root file system.
    pub merge: String,
    /// Files that those lines may copy, by name.
    pub files: BTreeMap<String, Vec<u8>>,
    /// SHA-256 of the text. `None` for an empty specification.
    pub sha256: Option<Digest>,
}

/// A command that init runs.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Command {
    /// Name of the command, at most 64 characters. It occurs once in a specification.
    pub name: String,
    /// User that runs it.
    pub user: String,
    /// Time at which init runs it: `sysinit`, `wait`, `once` or `respawn`.
    pub sysv_init_action: String,
    /// Text of the shell script that init runs.
    pub shell: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Raw {
    #[serde(default)]
    commands: Vec<Command>,
    #[serde(default)]
    shutdown_hook: Option<String>,
    #[serde(default)]
    build: Option<String>,
    #[serde(default)]
    merge: Option<String>,
    #[serde(default)]
    files: Vec<RawFile>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct RawFile {
    filename: String,
    #[serde(default)]
    content: Option<String>,
    #[serde(default)]
    host_path: Option<PathBuf>,
}

impl ImageSpec {
    /// Reads a specification and the files that it names, which lie beside it.
    ///
    /// # Errors
    ///
    /// [`SpecError`], with every broken rule.
    pub fn load(path: &Path) -> Result<Self, SpecError> {
        let text = read(path, MAX_SPEC)?;
        let text = String::from_utf8_lossy(&text);
        Self::parse(path, &text)
    }

    /// Parses a specification. Its files lie beside `path`.
    ///
    /// # Errors
    ///
    /// [`SpecError`].
    pub fn parse(path: &Path, text: &str) -> Result<Self, SpecError> {
        let raw: Raw = serde_saphyr::from_str(text).map_err(|error| SpecError::Syntax {
            path: path.to_owned(),
            detail: error.to_string().trim().replace('\n', " "),
        })?;
        let problems = problems(&raw);
        if !problems.is_empty() {
            return Err(SpecError::Invalid {
                path: path.to_owned(),
                problems,
            });
        }
        let beside = path.parent().unwrap_or(Path::new("."));
        let mut files = BTreeMap::new();
        for file in raw.files {
            let content = match (file.content, file.host_path) {
                (Some(text), _) => text.into_bytes(),
                (None, host) => read(&beside.join(host.unwrap_or_default()), MAX_FILE)?,
            };
            files.insert(file.filename, content);
        }
        Ok(Self {
            commands: raw.commands,
            shutdown_hook: raw.shutdown_hook.filter(|hook| !hook.trim().is_empty()),
            merge: raw.merge.unwrap_or_default(),
            files,
            sha256: Some(crate::digest::of_bytes(text.as_bytes())),
        })
    }
}

fn problems(raw: &Raw) -> Vec<String> {
    let mut problems = Vec::new();
    let mut names = BTreeSet::new();
    for (number, command) in raw.commands.iter().enumerate() {
        let at = format!("commands[{number}]");
        for (member, text) in [
            ("name", &command.name),
            ("user", &command.user),
            ("shell", &command.shell),
        ] {
            if text.trim().is_empty() {
                problems.push(format!("{at}.{member} is empty"));
            }
        }
        let is_word = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        if !command.name.chars().all(is_word)
            || command.name.starts_with('.')
            || command.name.len() > 64
        {
            problems.push(format!(
                "{at}.name {:?}: a word of letters, digits, '-', '_' and '.' names a command",
                command.name
            ));
        }
        if !names.insert(&command.name) {
            problems.push(format!("{at}.name {:?} is taken", command.name));
        }
        if !ACTIONS.contains(&command.sysv_init_action.as_str()) {
            let action = &command.sysv_init_action;
            problems.push(format!(
                "{at}.sysvInitAction {action:?}: one of {}",
                ACTIONS.join(", ")
            ));
        }
    }
    if raw
        .build
        .as_ref()
        .is_some_and(|text| !text.trim().is_empty())
    {
        problems.push(
            "build: stages begin with images of a registry, which a build here does not reach; \
             build them elsewhere and give the result as the base"
                .to_owned(),
        );
    }
    let mut names = BTreeSet::new();
    for (number, file) in raw.files.iter().enumerate() {
        let at = format!("files[{number}]");
        let is_plain = |part: &str| !matches!(part, "" | "." | "..") && !part.contains('\0');
        if !file.filename.split('/').all(is_plain) {
            problems.push(format!(
                "{at}.filename {:?}: a relative path without '..'",
                file.filename
            ));
        }
        if !names.insert(&file.filename) {
            problems.push(format!("{at}.filename {:?} is taken", file.filename));
        }
        if file.content.is_some() == file.host_path.is_some() {
            problems.push(format!("{at}: exactly one of content and hostPath"));
        }
        if file
            .host_path
            .as_ref()
            .is_some_and(|path| path.is_absolute())
        {
            problems.push(format!(
                "{at}.hostPath: a path relative to the specification"
            ));
        }
    }
    problems
}

fn read(path: &Path, limit: u64) -> Result<Vec<u8>, SpecError> {
    let bad = |error| SpecError::Read(path.to_owned(), error);
    let bytes = std::fs::metadata(path).map_err(bad)?.len();
    if bytes > limit {
        let path = path.to_owned();
        return Err(SpecError::Long { path, bytes, limit });
    }
    std::fs::read(path).map_err(bad)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<ImageSpec, SpecError> {
        ImageSpec::parse(Path::new("image.yaml"), text)
    }

    /// Requirement: N46
    #[test]
    fn a_specification_of_every_member_is_read() {
        let spec = parse(
            "commands:\n- {name: cgconfig, user: root, sysvInitAction: sysinit, shell: 'cgconfigparser -l /etc/x'}\n\
             shutdownHook: |\n  su -p postgres -c 'pg_ctl stop'\n\
             merge: |\n  COPY a.conf /etc/a.conf\n\
             files:\n- {filename: a.conf, content: 'x = 1'}\n",
        )
        .unwrap();
        assert_eq!(spec.commands[0].name, "cgconfig");
        assert_eq!(spec.files["a.conf"], b"x = 1");
        assert!(spec.shutdown_hook.unwrap().contains("pg_ctl stop"));
        assert!(spec.merge.starts_with("COPY"));
    }

    /// Requirement: N46
    #[test]
    fn every_problem_of_a_specification_is_reported_at_once() {
        let error = parse(
            "commands:\n- {name: a b, user: '', sysvInitAction: boot, shell: x}\n\
             build: |\n  FROM alpine\n\
             files:\n- {filename: ../x, content: y, hostPath: z}\n- {filename: x}\n- {filename: x, hostPath: /etc/passwd}\n",
        )
        .unwrap_err()
        .to_string();
        for part in [
            "commands[0].user is empty",
            "commands[0].name \"a b\"",
            "sysvInitAction \"boot\"",
            "build:",
            "files[0].filename",
            "files[1]: exactly one",
            "files[2].filename \"x\" is taken",
            "files[2].hostPath",
        ] {
            assert!(error.contains(part), "{part}: {error}");
        }
        let unknown = parse("command: []\n").unwrap_err();
        assert!(matches!(unknown, SpecError::Syntax { .. }), "{unknown}");
    }

    /// Requirement: N46
    #[test]
    fn files_beside_the_specification_are_read() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("data"), "content").unwrap();
        let path = dir.path().join("image.yaml");
        std::fs::write(&path, "files: [{filename: d, hostPath: data}]").unwrap();
        assert_eq!(ImageSpec::load(&path).unwrap().files["d"], b"content");
        std::fs::write(&path, "files: [{filename: d, hostPath: gone}]").unwrap();
        assert!(
            matches!(ImageSpec::load(&path), Err(SpecError::Read(at, _)) if at.ends_with("gone"))
        );
    }
}
