//! Properties of requests to write files, as a body for the coverage-guided fuzzer of `fuzz/` and
//! for a property test.

#![expect(
    clippy::missing_panics_doc,
    reason = "to panic is what this is for: a panic is a finding"
)]

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use protocol::time::WallTime;

use crate::projected::{directory, read, write};
use crate::push::{decode, encode};

/// Longest path that is made: each part of it is a directory of the file system.
const MAX_PATH_BYTES: usize = 64;

/// A request to write a directory of files, sent twice: a line with the path, then the body.
/// Decoded files encode to the same files. They are written into the directory below the root, read
/// back equal, and nothing is written outside it. A refusal names the file or the directory.
pub fn guest_files(data: &[u8]) {
    let at = data.iter().position(|byte| *byte == b'\n');
    let (path, body) = data.split_at(at.unwrap_or(data.len()));
    let Ok(files) = decode(body) else { return };
    let body = encode(&files).expect("it prints");
    assert_eq!(decode(&body).ok().as_ref(), Some(&files));

    let path = String::from_utf8_lossy(&path[..path.len().min(MAX_PATH_BYTES)]);
    let place = tempfile::tempdir().expect("a directory");
    let (root, other) = (place.path().join("root"), place.path().join("other"));
    for made in [&root, &other] {
        fs::create_dir(made).expect("made");
    }
    let Ok(dir) = directory(&root, &path) else {
        return;
    };
    assert!(dir.starts_with(&root) && dir != root, "{dir:?}");
    assert!(
        dir.components().all(|part| part.as_os_str() != ".."),
        "{dir:?}"
    );
    for second in 1..=2 {
        let now = WallTime(second * 1_000_000);
        match write(&dir, &files, now) {
            Ok(()) => assert_eq!(read(&dir).ok().as_ref(), Some(&files), "{dir:?}"),
            Err(error) => assert!(names_one(&error.to_string(), &files, &dir), "{error}"),
        }
    }
    let names: Vec<_> = fs::read_dir(place.path()).expect("a directory").collect();
    assert_eq!(names.len(), 2, "{names:?}");
    assert_eq!(fs::read_dir(&other).expect("a directory").count(), 0);
}

/// Whether a refusal names one of the files or the directory.
fn names_one(text: &str, files: &BTreeMap<String, Vec<u8>>, dir: &Path) -> bool {
    let quoted = |name: &String| {
        let start: String = name.chars().take(200).collect();
        text.contains(&format!("{start:?}"))
    };
    files.keys().any(quoted) || text.contains(&dir.display().to_string())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn every_seed_of_files_holds() {
        test_seeds::hold(&[("guest_files", guest_files)]);
    }

    proptest! {
        #[test]
        fn requests_to_write_files_hold(
            path in r"(/|\.|\.\.|a|b|\x00| ){0,6}",
            names in prop::collection::vec(r"(a|b|\.|/|data|_tmp|\\\\|\\u0000){0,3}", 0..4),
            content in "[A-Z=]{0,8}",
        ) {
            let file = |name: &String| format!(r#""{name}":{{"data":"{content}"}}"#);
            let files: Vec<String> = names.iter().map(file).collect();
            guest_files(format!("{path}\n{{{}}}", files.join(",")).as_bytes());
        }
    }
}
