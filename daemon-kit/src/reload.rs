//! Content of files that may be replaced at any time. The last valid content stays in use until
//! the files are valid again.

use std::error::Error;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

/// Inode, size and change time of each file. Equal until a file is replaced or written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stamp(Vec<Option<(u64, u64, i64, i64)>>);

impl Stamp {
    /// Stamp of the files at present. Take it before they are read, so that a change in between is
    /// noticed.
    #[must_use]
    pub fn of<'a>(paths: impl IntoIterator<Item = &'a Path>) -> Self {
        let look = |path: &Path| {
            let found = std::fs::metadata(path).ok()?;
            // The time of the last change of mode or content, which cannot be set back.
            Some((found.ino(), found.size(), found.ctime(), found.ctime_nsec()))
        };
        Self(paths.into_iter().map(look).collect())
    }
}

/// Files that give one content.
pub trait Files {
    /// Name of the content in log lines, in the plural.
    const WHAT: &'static str;
    /// The content, as a cheap handle.
    type Content: Clone;
    /// Error of files that are missing or not valid.
    type Error: Error;

    /// Paths of the files.
    fn paths(&self) -> Vec<&Path>;

    /// Reads the files.
    ///
    /// # Errors
    /// The first invalid file.
    fn read(&self) -> Result<Self::Content, Self::Error>;
}

/// Files and their last valid content.
#[derive(Debug)]
pub struct Reloaded<F: Files> {
    files: F,
    /// Stamp at the last read. `None` before the first one.
    stamp: Option<Stamp>,
    content: Option<F::Content>,
}

impl<F: Files> Reloaded<F> {
    /// The files are not read, and may be missing.
    pub const fn new(files: F) -> Self {
        Self {
            files,
            stamp: None,
            content: None,
        }
    }

    /// Reads the files.
    ///
    /// # Errors
    /// [`Files::read`]
    pub fn load(files: F) -> Result<Self, F::Error> {
        let stamp = Stamp::of(files.paths());
        let content = files.read()?;
        Ok(Self {
            files,
            stamp: Some(stamp),
            content: Some(content),
        })
    }

    /// The files whose content this is.
    pub const fn files(&self) -> &F {
        &self.files
    }

    /// Reads the files again if they have changed or were never valid. Returns the content in use,
    /// and whether it is new. Each change gets one log line.
    ///
    /// # Errors
    /// The files are not valid and never were.
    pub fn renew(&mut self) -> Result<(F::Content, bool), F::Error> {
        let stamp = Some(Stamp::of(self.files.paths()));
        let is_change = self.stamp != stamp;
        if let Some(content) = &self.content
            && !is_change
        {
            return Ok((content.clone(), false));
        }
        let is_first = self.stamp.is_none();
        self.stamp = stamp;
        match (self.files.read(), &self.content) {
            (Ok(content), _) => {
                if !is_first {
                    tracing::info!("changed {} are in use", F::WHAT);
                }
                self.content = Some(content.clone());
                Ok((content, true))
            }
            (Err(error), Some(content)) => {
                let error = crate::chain(&error);
                tracing::warn!(
                    error,
                    "changed {} are not valid: the earlier ones stay in use",
                    F::WHAT
                );
                Ok((content.clone(), false))
            }
            (Err(error), None) => {
                if is_change {
                    let error = crate::chain(&error);
                    tracing::warn!(
                        error,
                        "{} are not valid: there are no earlier ones",
                        F::WHAT
                    );
                }
                Err(error)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::path::PathBuf;

    use super::*;

    struct Number(PathBuf);

    impl Files for Number {
        const WHAT: &'static str = "numbers";
        type Content = u64;
        type Error = io::Error;

        fn paths(&self) -> Vec<&Path> {
            vec![&self.0]
        }

        fn read(&self) -> io::Result<u64> {
            let text = std::fs::read_to_string(&self.0)?;
            text.parse().map_err(io::Error::other)
        }
    }

    /// Replaces a file atomically.
    fn put(path: &Path, text: &str) {
        let next = path.with_extension("next");
        std::fs::write(&next, text).expect("writes");
        std::fs::rename(next, path).expect("renames");
    }

    #[test]
    fn last_valid_content_is_kept_and_a_change_is_reported_once() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("number");
        assert!(Reloaded::load(Number(path.clone())).is_err());
        let mut number = Reloaded::new(Number(path.clone()));
        assert!(number.renew().is_err(), "there is no file");
        put(&path, "rubbish");
        assert!(number.renew().is_err());
        for (text, content, is_new) in [("1", 1, true), ("rubbish", 1, false), ("2", 2, true)] {
            put(&path, text);
            assert_eq!(number.renew().ok(), Some((content, is_new)), "{text}");
            assert_eq!(number.renew().ok(), Some((content, false)), "{text}");
        }
        std::fs::remove_file(&path).expect("removes");
        assert_eq!(number.renew().ok(), Some((2, false)));
        put(&path, "2");
        assert_eq!(number.renew().ok(), Some((2, true)));
        let mut loaded = Reloaded::load(Number(path)).expect("is valid");
        assert_eq!(loaded.renew().ok(), Some((2, false)));
    }
}
