//! The directory of an image, used as its root. Paths are resolved as the guest resolves them.
//! Writes stay inside the directory, whatever links the image holds.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{PermissionsExt as _, lchown};
use std::path::{Component, Path, PathBuf};

use crate::error::{BuildError, IoContext};
use crate::paths;

/// Most links that are followed for one path.
const MAX_LINKS: u32 = 40;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Account {
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) groups: Vec<u32>,
    pub(super) home: String,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Root<'a>(pub(super) &'a Path);

impl Root<'_> {
    /// Path on the host of a path in the image. Links are followed inside the image, except in the
    /// last part.
    pub(super) fn place(&self, path: &str) -> Result<PathBuf, BuildError> {
        let mut place = self.0.to_owned();
        let mut todo = reversed(Path::new(path));
        let mut links = 0;
        while let Some(part) = todo.pop() {
            if part == ".." {
                if place != self.0 {
                    place.pop();
                }
                continue;
            }
            let next = place.join(&part);
            let is_last = todo.is_empty();
            match fs::read_link(&next) {
                Ok(target) if !is_last => {
                    links += 1;
                    if links > MAX_LINKS {
                        let error = io::Error::other("too many symbolic links");
                        return Err(error).at("find", &next);
                    }
                    if target.is_absolute() {
                        place = self.0.to_owned();
                    }
                    todo.extend(reversed(&target));
                }
                _ => place = next,
            }
        }
        Ok(place)
    }

    /// Creates a directory and its parents, unless it exists.
    pub(super) fn directory(&self, path: &str, mode: u32) -> Result<(), BuildError> {
        let mut above = String::new();
        for part in path.split('/').filter(|part| !part.is_empty()) {
            above = format!("{above}/{part}");
            let place = self.place(&above)?;
            match fs::create_dir(&place) {
                Ok(()) => {
                    let mode = if above.trim_matches('/') == path.trim_matches('/') {
                        mode
                    } else {
                        0o755
                    };
                    fs::set_permissions(&place, Permissions::from_mode(mode))
                        .at("change the mode of", &place)?;
                }
                // A link to a directory counts as a directory.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error).at("create", &place),
            }
        }
        Ok(())
    }

    /// Writes a file of root's. Replaces what is at the path.
    pub(super) fn put(&self, path: &str, content: &[u8], mode: u32) -> Result<PathBuf, BuildError> {
        if let Some((parent, _)) = path.trim_start_matches('/').rsplit_once('/') {
            self.directory(parent, 0o755)?;
        }
        let place = self.place(path)?;
        if place.symlink_metadata().is_ok() {
            paths::remove(&place)?;
        }
        fs::write(&place, content).at("write", &place)?;
        lchown(&place, Some(0), Some(0)).at("change the owner of", &place)?;
        fs::set_permissions(&place, Permissions::from_mode(mode))
            .at("change the mode of", &place)?;
        Ok(place)
    }

    /// A short text of the image. `None` if there is no such file.
    pub(super) fn text(&self, path: &str) -> Option<String> {
        const MOST: u64 = 4 << 20;
        let mut path = path.to_owned();
        for _ in 0..MAX_LINKS {
            let place = self.place(&path).ok()?;
            let meta = place.symlink_metadata().ok()?;
            if meta.is_symlink() {
                let target = fs::read_link(&place).ok()?.to_str()?.to_owned();
                let beside = path.rsplit_once('/').map_or("", |(above, _)| above);
                path = if target.starts_with('/') {
                    target
                } else {
                    format!("{beside}/{target}")
                };
                continue;
            }
            let is_short = meta.is_file() && meta.len() <= MOST;
            return is_short
                .then(|| fs::read(&place).ok())?
                .map(|text| String::from_utf8_lossy(&text).into_owned());
        }
        None
    }

    /// Whether something is at a path. Links are followed.
    pub(super) fn is_program(&self, path: &str) -> bool {
        let mut at = path.to_owned();
        for _ in 0..MAX_LINKS {
            let Ok(place) = self.place(&at) else {
                return false;
            };
            match fs::read_link(&place) {
                Ok(target) if target.is_absolute() => at = target.to_string_lossy().into_owned(),
                Ok(target) => {
                    let beside = at.rsplit_once('/').map_or("", |(above, _)| above);
                    at = format!("{beside}/{}", target.display());
                }
                Err(_) => return place.is_file(),
            }
        }
        false
    }

    /// The user of an image's configuration: a name or number, perhaps with a group after a colon.
    pub(super) fn account(&self, asked: &str) -> Result<Account, BuildError> {
        let (user, group) = match asked.split_once(':') {
            Some((user, group)) => (user, Some(group)),
            None => (asked, None),
        };
        let unknown = |what: &str| BuildError::Unknown {
            what: what.to_owned(),
        };
        let passwd = self.text("etc/passwd").unwrap_or_default();
        let groups = self.text("etc/group").unwrap_or_default();
        let user = if user.is_empty() { "0" } else { user };
        let number: Option<u32> = user.parse().ok();
        let line = lines(&passwd).find(|line| match number {
            Some(number) => field(line, 2) == Some(number),
            None => line[0] == user,
        });
        let (uid, own, name, home) = match (&line, number) {
            (Some(line), _) => (
                field(line, 2).ok_or_else(|| unknown(&format!("user {user:?}")))?,
                field(line, 3).unwrap_or(0),
                line[0],
                line.get(5).copied().unwrap_or("/"),
            ),
            (None, Some(number)) => (number, 0, "", "/"),
            (None, None) => return Err(unknown(&format!("user {user:?}"))),
        };
        let gid = match group {
            None => own,
            Some(group) => match group.parse() {
                Ok(number) => number,
                Err(_) => lines(&groups)
                    .find(|line| line[0] == group)
                    .and_then(|line| field(&line, 2))
                    .ok_or_else(|| unknown(&format!("group {group:?}")))?,
            },
        };
        let is_member = |line: &Vec<&str>| {
            line.get(3)
                .is_some_and(|names| names.split(',').any(|member| member == name))
        };
        let others = lines(&groups).filter(|line| !name.is_empty() && is_member(line));
        let mut others: Vec<u32> = others
            .filter_map(|line| field(&line, 2))
            .filter(|number| *number != gid)
            .collect();
        others.sort_unstable();
        others.dedup();
        Ok(Account {
            uid,
            gid,
            groups: others,
            home: home.to_owned(),
        })
    }
}

fn reversed(path: &Path) -> Vec<std::ffi::OsString> {
    let mut parts: Vec<_> = path
        .components()
        .filter_map(|part| match part {
            Component::Normal(name) => Some(name.to_owned()),
            Component::ParentDir => Some("..".into()),
            _ => None,
        })
        .collect();
    parts.reverse();
    parts
}

fn lines(text: &str) -> impl Iterator<Item = Vec<&str>> {
    text.lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .map(|line| line.split(':').collect())
}

fn field(line: &[&str], at: usize) -> Option<u32> {
    line.get(at)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    /// Requirement: N46
    #[test]
    fn links_of_an_image_lead_nowhere_else() {
        let dir = tempfile::tempdir().unwrap();
        let (root, outside) = (dir.path().join("root"), dir.path().join("outside"));
        fs::create_dir_all(root.join("usr/lib")).unwrap();
        fs::create_dir(&outside).unwrap();
        symlink(&outside, root.join("etc")).unwrap();
        symlink("usr/lib", root.join("lib")).unwrap();
        symlink("../../../../..", root.join("up")).unwrap();
        let at = Root(&root);
        assert_eq!(at.place("lib/x").unwrap(), root.join("usr/lib/x"));
        assert_eq!(at.place("up/y").unwrap(), root.join("y"));
        // The absolute link names a place in the image, which is created.
        let written = at
            .directory("etc", 0o755)
            .and_then(|()| at.put("etc/passwd", b"x", 0o644));
        assert!(!outside.join("passwd").exists(), "{written:?}");
        at.put("lib/link", b"new", 0o600).unwrap();
        symlink("/usr/lib/link", root.join("alias")).unwrap();
        assert_eq!(at.text("alias").as_deref(), Some("new"));
        assert!(at.is_program("alias") && !at.is_program("gone"));
        symlink("circle", root.join("circle")).unwrap();
        assert!(at.place("circle/x").is_err());
        assert_eq!(at.text("circle"), None);
    }

    /// Requirement: N46
    #[test]
    fn users_of_an_image_are_found() {
        let dir = tempfile::tempdir().unwrap();
        let at = Root(dir.path());
        at.put(
            "etc/passwd",
            b"root:x:0:0:root:/root:/bin/sh\npg:x:70:71::/data:/bin/sh\n",
            0o644,
        )
        .unwrap();
        at.put(
            "etc/group",
            b"root:x:0:\npg:x:71:\nssl:x:90:pg,other\ntls:x:91:other\n",
            0o644,
        )
        .unwrap();
        let account = |uid, gid, groups: &[u32], home: &str| Account {
            uid,
            gid,
            groups: groups.to_vec(),
            home: home.to_owned(),
        };
        for (asked, wanted) in [
            ("", account(0, 0, &[], "/root")),
            ("pg", account(70, 71, &[90], "/data")),
            ("70", account(70, 71, &[90], "/data")),
            ("pg:tls", account(70, 91, &[90], "/data")),
            ("1000:1001", account(1000, 1001, &[], "/")),
            ("1000", account(1000, 0, &[], "/")),
        ] {
            assert_eq!(at.account(asked).unwrap(), wanted, "{asked}");
        }
        for asked in ["nobody", "pg:nobody"] {
            assert!(
                at.account(asked)
                    .unwrap_err()
                    .to_string()
                    .contains("nobody")
            );
        }
    }
}
