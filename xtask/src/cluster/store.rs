//! Programs of clusters in the content-addressed store: folders with a manifest whose digest is the
//! folder's name, and references to them.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::shell;

/// Manifest of a folder.
#[derive(Serialize, Deserialize)]
struct Manifest {
    name: String,
    /// Digest of all inputs.
    inputs: String,
    /// Digests of files that prove that the folder is complete.
    programs: Vec<(String, String)>,
}

fn root() -> Result<PathBuf> {
    Ok(shell::cache_dir()?.join("store"))
}

/// The folder a reference names, if there is such a reference.
pub(crate) fn named(reference: &str) -> Result<Option<PathBuf>> {
    let store = root()?;
    let digest = fs::read_to_string(store.join("refs").join(reference)).ok();
    Ok(digest.map(|digest| store.join("blobs").join(digest.trim())))
}

/// The folder a reference names, if it was built from these inputs and is whole.
pub(super) fn current(reference: &str, inputs: &str) -> Result<Option<PathBuf>> {
    let Some(folder) = named(reference)? else {
        return Ok(None);
    };
    let Ok(text) = fs::read(folder.join("manifest.json")) else {
        return Ok(None);
    };
    let Ok(manifest) = serde_json::from_slice::<Manifest>(&text) else {
        return Ok(None);
    };
    let is_there = |(program, _): &(String, String)| folder.join(program).is_file();
    let is_whole = manifest.inputs == inputs && manifest.programs.iter().all(is_there);
    Ok(is_whole.then_some(folder))
}

/// The folder of a reference with these inputs. If it is missing, `make` builds it, one process at
/// a time, in the cache's folder `work`, which is removed afterwards. `make` gets `work` and an
/// empty `out` in it, which it fills. `files` are some of the made files.
pub(super) fn ensure(
    (reference, inputs): (&str, &str),
    (work, what): (&str, &str),
    files: &[&str],
    make: impl FnOnce(&Path, &Path) -> Result<()>,
) -> Result<PathBuf> {
    if let Some(folder) = current(reference, inputs)? {
        return Ok(folder);
    }
    let work = shell::cache_dir()?.join(work);
    fs::create_dir_all(&work)?;
    let lock = File::create(work.join("lock"))?;
    if lock.try_lock().is_err() {
        shell::say(&format!("==> waiting for another build of {what}"));
        lock.lock()?;
    }
    // Another process may have built it while it held the lock.
    if let Some(folder) = current(reference, inputs)? {
        return Ok(folder);
    }
    let out = work.join("out");
    if out.exists() {
        fs::remove_dir_all(&out)?;
    }
    fs::create_dir(&out)?;
    make(&work, &out)?;
    let folder = publish(reference, inputs, &out, files)?;
    drop(lock);
    fs::remove_dir_all(&work).with_context(|| format!("cannot remove {}", work.display()))?;
    Ok(folder)
}

/// Moves a folder into the store, each step one rename, under the store's lock. `files` prove that
/// it is complete.
pub(super) fn publish(
    reference: &str,
    inputs: &str,
    built: &Path,
    files: &[&str],
) -> Result<PathBuf> {
    let mut programs = Vec::new();
    for file in files {
        let digest = digest_of_file(&built.join(file))?;
        programs.push(((*file).to_owned(), digest));
    }
    let manifest = Manifest {
        name: reference.to_owned(),
        inputs: inputs.to_owned(),
        programs,
    };
    let text = format!("{}\n", serde_json::to_string_pretty(&json!(manifest))?);
    fs::write(built.join("manifest.json"), &text)?;
    let (store, digest) = (root()?, digest_of(text.as_bytes())?);
    let named = store.join("refs").join(reference);
    for dir in [store.join("blobs"), named.with_file_name("")] {
        fs::create_dir_all(dir)?;
    }
    let lock = File::options()
        .create(true)
        .append(true)
        .open(store.join("lock"))?;
    lock.lock()?;
    let folder = store.join("blobs").join(&digest);
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    fs::rename(built, &folder).with_context(|| format!("cannot move {}", built.display()))?;
    let fresh = store.join("refs").join(".fresh");
    fs::write(&fresh, format!("{digest}\n"))?;
    fs::rename(&fresh, &named)?;
    Ok(folder)
}

/// SHA-256 in hexadecimal, by the program every Linux has.
pub(super) fn digest_of(bytes: &[u8]) -> Result<String> {
    let mut child = Command::new("sha256sum")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("sha256sum")?;
    let mut stdin = child.stdin.take().context("it was piped")?;
    stdin.write_all(bytes)?;
    drop(stdin);
    first_word(&child.wait_with_output()?.stdout)
}

fn digest_of_file(path: &Path) -> Result<String> {
    first_word(shell::output(Command::new("sha256sum").arg("--").arg(path))?.as_bytes())
}

fn first_word(text: &[u8]) -> Result<String> {
    let text = std::str::from_utf8(text)?;
    let word = text.split_whitespace().next();
    Ok(word.context("sha256sum says nothing")?.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_are_those_of_sha_256() {
        let empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(digest_of(b"").expect("sha256sum runs"), empty);
    }
}
