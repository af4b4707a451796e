//! Paths below a root: patterns of recipes, where `*` stands for any run of characters within one
//! part of a path, and removal.

use std::fs;
use std::path::{Path, PathBuf};

use crate::error::{BuildError, IoContext};

/// Existing paths below `root` that match the pattern, sorted. Links are not followed.
pub(crate) fn expand(root: &Path, pattern: &str) -> Vec<PathBuf> {
    let mut found = vec![root.to_owned()];
    for part in pattern.split('/') {
        let mut next = Vec::new();
        for dir in found {
            if part.contains('*') {
                let names = fs::read_dir(&dir).into_iter().flatten().flatten();
                let names = names.filter(|e| matches(part, &e.file_name().to_string_lossy()));
                next.extend(names.map(|e| e.path()));
            } else if dir.join(part).symlink_metadata().is_ok() {
                next.push(dir.join(part));
            }
        }
        found = next;
    }
    found.sort();
    found
}

/// Removes a file, a link or a whole directory.
pub(crate) fn remove(path: &Path) -> Result<(), BuildError> {
    let is_dir = path.symlink_metadata().is_ok_and(|m| m.is_dir());
    if is_dir {
        fs::remove_dir_all(path)
    } else {
        fs::remove_file(path)
    }
    .at("remove", path)
}

/// Whether a name matches one part of a pattern.
fn matches(pattern: &str, name: &str) -> bool {
    let mut pieces = pattern.split('*');
    let first = pieces.next().unwrap_or_default();
    let Some(mut rest) = name.strip_prefix(first) else {
        return false;
    };
    let mut pieces: Vec<_> = pieces.collect();
    let Some(last) = pieces.pop() else {
        return rest.is_empty();
    };
    for piece in pieces {
        match rest.find(piece) {
            Some(at) => rest = &rest[at + piece.len()..],
            None => return false,
        }
    }
    rest.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Requirement: N46
    #[test]
    fn stars_match_within_one_part() {
        for (pattern, name, fits) in [
            ("*.rom", "a.rom", true),
            ("*.rom", "a.roms", false),
            ("lib*.so*", "libx.so.1", true),
            ("perl*", "perl", true),
            ("a*b*c", "aXbYbZc", true),
            ("a*b*c", "aXc", false),
            ("ab*b", "ab", false),
            ("exact", "exact", true),
            ("exact", "exactly", false),
        ] {
            assert_eq!(matches(pattern, name), fits, "{pattern} {name}");
        }
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("usr/lib/x/perl5")).unwrap();
        fs::create_dir_all(dir.path().join("usr/lib/y")).unwrap();
        let found = expand(dir.path(), "usr/lib/*/perl*");
        assert_eq!(found, [dir.path().join("usr/lib/x/perl5")]);
        assert!(expand(dir.path(), "nothing/here").is_empty());
    }
}
