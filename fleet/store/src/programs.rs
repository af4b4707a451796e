//! Programs that turns bring to guests: one file each, named by the SHA-256 of its content.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Read, Write as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use protocol::parts::PROGRAM_BYTES;
use sha2::{Digest as _, Sha256};
use tempfile::NamedTempFile;

/// A folder of programs, mode 0700.
#[derive(Debug, Clone)]
pub struct Programs {
    folder: PathBuf,
}

impl Programs {
    /// Programs in a folder, which need not exist.
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self {
            folder: folder.into(),
        }
    }

    /// The programs that the driver of a state directory brings to guests.
    #[must_use]
    pub fn of_state_dir(state_dir: &Path) -> Self {
        Self::new(state_dir.join("fleet/programs"))
    }

    /// Keeps a copy of a program, and returns its SHA-256 as lower-case hex. A program that is
    /// kept already is not written again.
    ///
    /// # Errors
    /// `FileTooLarge` above [`PROGRAM_BYTES`], or the files cannot be read or written.
    pub fn keep(&self, program: &Path) -> io::Result<String> {
        self.keep_from(File::open(program)?, &program.display().to_string())
    }

    /// Keeps a program that was read already, as [`Programs::keep`] does.
    ///
    /// # Errors
    /// Those of [`Programs::keep`].
    pub fn keep_content(&self, content: &[u8]) -> io::Result<String> {
        self.keep_from(content, "the program")
    }

    fn keep_from(&self, source: impl Read, shown: &str) -> io::Result<String> {
        let mut builder = DirBuilder::new();
        builder.recursive(true).mode(0o700).create(&self.folder)?;
        let mut copy = NamedTempFile::new_in(&self.folder)?;
        let mut source = source.take(PROGRAM_BYTES + 1);
        if io::copy(&mut source, copy.as_file_mut())? > PROGRAM_BYTES {
            let text = format!("{shown} has more than 32 MiB");
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, text));
        }
        let sha256 = sha256_of(copy.reopen()?)?;
        let kept = self.path(&sha256);
        let of_kept = File::open(&kept).and_then(sha256_of);
        if of_kept.ok().as_ref() != Some(&sha256) {
            copy.as_file_mut().flush()?;
            copy.as_file().sync_all()?;
            copy.persist(&kept).map_err(|error| error.error)?;
            File::open(&self.folder)?.sync_all()?;
        }
        Ok(sha256)
    }

    /// The program of a hash, read as a whole.
    ///
    /// # Errors
    /// `NotFound` if it is not kept, `InvalidData` if the file's content has another hash.
    pub fn read(&self, sha256: &str) -> io::Result<Vec<u8>> {
        let path = self.path(sha256);
        let content = fs::read(&path)?;
        let found = hex(&Sha256::digest(&content));
        if found == sha256 {
            return Ok(content);
        }
        let text = format!("{} has SHA-256 {found}", path.display());
        Err(io::Error::new(io::ErrorKind::InvalidData, text))
    }

    /// File of the program of a hash.
    #[must_use]
    pub fn path(&self, sha256: &str) -> PathBuf {
        self.folder.join(format!("sha256-{sha256}"))
    }
}

/// SHA-256 of all that can be read, as lower-case hex.
///
/// # Errors
/// Those of reading.
pub fn sha256_of(mut content: impl Read) -> io::Result<String> {
    let mut hasher = Sha256::new();
    io::copy(&mut content, &mut hasher)?;
    Ok(hex(&hasher.finalize()))
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
