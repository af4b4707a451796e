//! The destination of a unit in the file system, and the temporary name beside it.
//!
//! The folder of a destination may belong to the program's user, who is not trusted: no link is
//! followed out of it, and everything is done relative to the open folder.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, FileType, Gid, Mode, OFlags, RenameFlags, ResolveFlags, Stat, Uid, fchmod,
    fchown, fstat, fsync, mkdirat, openat, openat2, readlinkat, renameat_with, statat, unlinkat,
};
use rustix::io::Errno;

use crate::core::render::Content;

/// Longest present file that is compared, bytes. A longer one is replaced.
const MAX_PRESENT: u64 = 8 << 20;

/// Owner and mode of a destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::shell) struct Rights {
    pub(in crate::shell) user: u32,
    pub(in crate::shell) group: u32,
    /// Mode of files. A folder can be searched by everybody who can read it.
    pub(in crate::shell) mode: u32,
}

impl Rights {
    fn mode(self, kind: FileType) -> u32 {
        match kind {
            FileType::Directory => self.mode | (self.mode & 0o444) >> 2,
            _ => self.mode,
        }
    }

    fn are_of(self, stat: &Stat) -> bool {
        let mode = self.mode(FileType::from_raw_mode(stat.st_mode));
        (stat.st_uid, stat.st_gid, stat.st_mode & 0o7777) == (self.user, self.group, mode)
    }

    fn give(self, to: &OwnedFd, kind: FileType) -> io::Result<()> {
        let (user, group) = (Uid::from_raw(self.user), Gid::from_raw(self.group));
        fchown(to, Some(user), Some(group))?;
        Ok(fchmod(to, Mode::from_raw_mode(self.mode(kind)))?)
    }
}

/// An open folder with the names in it.
#[derive(Debug)]
pub(super) struct Destination {
    folder: OwnedFd,
    path: PathBuf,
    name: OsString,
    temporary: OsString,
    rights: Rights,
}

impl Destination {
    /// Opens the folder of `destination`.
    ///
    /// # Errors
    /// The folder cannot be opened or has a link in its path, or the destination is a link out of
    /// its folder.
    pub(super) fn open(destination: &Path, rights: Rights) -> Result<Self, String> {
        let path = destination.parent().unwrap_or(Path::new("/")).to_owned();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = openat2(CWD, &path, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS);
        let folder = folder.map_err(|error| match error {
            Errno::LOOP => format!(
                "{} has a link in its path: name the real one",
                path.display()
            ),
            error => format!("failed to open {}: {error}", path.display()),
        })?;
        let name = destination.file_name().unwrap_or_default();
        let name = named(&folder, name)
            .ok_or_else(|| format!("{} is a link out of its folder", destination.display()))?;
        let mut temporary = OsString::from(".");
        temporary.push(&name);
        temporary.push(".bellows-new");
        Ok(Self {
            folder,
            path,
            name,
            temporary,
            rights,
        })
    }

    /// Path of the temporary name, for the check.
    pub(super) fn temporary(&self) -> PathBuf {
        self.path.join(&self.temporary)
    }

    /// Removes the temporary name with all that it holds.
    pub(super) fn discard(&self) -> Result<(), String> {
        let done = match unlinkat(&self.folder, &self.temporary, AtFlags::empty()) {
            Err(Errno::NOENT) => return Ok(()),
            Err(Errno::ISDIR) => {
                let folder = format!("/proc/self/fd/{}", self.folder.as_raw_fd());
                fs::remove_dir_all(Path::new(&folder).join(&self.temporary))
            }
            done => done.map_err(io::Error::from),
        };
        done.map_err(self.said("remove", &self.temporary))
    }

    /// The content of the destination. `None` if nothing is there, or something else than what the
    /// unit writes.
    pub(super) fn read(&self) -> Result<Option<Content>, String> {
        match self.read_any() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            read => read.map_err(self.said("read", &self.name)),
        }
    }

    fn read_any(&self) -> io::Result<Option<Content>> {
        let stat = statat(&self.folder, &self.name, AtFlags::SYMLINK_NOFOLLOW)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
            return Ok(self.read_file(&self.folder, &self.name)?.map(Content::File));
        }
        if !self.rights.are_of(&stat) {
            return Ok(None);
        }
        let dir = openat(
            &self.folder,
            &self.name,
            DIR | OFlags::NOFOLLOW,
            Mode::empty(),
        )?;
        let mut files = std::collections::BTreeMap::new();
        for entry in fs::read_dir(format!("/proc/self/fd/{}", dir.as_raw_fd()))? {
            let name = entry?.file_name();
            let (Some(text), Ok(name)) = (self.read_file(&dir, &name)?, name.into_string()) else {
                return Ok(None);
            };
            files.insert(name, text);
        }
        Ok(Some(Content::Folder(files)))
    }

    /// Text of a file with the unit's owner and mode.
    fn read_file(&self, folder: &OwnedFd, name: &OsStr) -> io::Result<Option<String>> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = openat(folder, name, flags, Mode::empty())?;
        let stat = fstat(&file)?;
        let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        if !is_file || !self.rights.are_of(&stat) {
            return Ok(None);
        }
        let mut bytes = Vec::new();
        File::from(file).take(MAX_PRESENT).read_to_end(&mut bytes)?;
        Ok(String::from_utf8(bytes).ok())
    }

    /// Replaces what is at the temporary name.
    pub(super) fn write(&self, content: &Content) -> Result<(), String> {
        self.discard()?;
        let written = match content {
            Content::File(text) => self.write_file(&self.folder, &self.temporary, text),
            Content::Folder(files) => self.write_folder(files),
        };
        written.map_err(self.said("write", &self.temporary))
    }

    fn write_folder(&self, files: &std::collections::BTreeMap<String, String>) -> io::Result<()> {
        mkdirat(&self.folder, &self.temporary, Mode::RWXU)?;
        let dir = openat(
            &self.folder,
            &self.temporary,
            DIR | OFlags::NOFOLLOW,
            Mode::empty(),
        )?;
        for (name, text) in files {
            self.write_file(&dir, name.as_ref(), text)?;
        }
        self.rights.give(&dir, FileType::Directory)?;
        Ok(fsync(&dir)?)
    }

    fn write_file(&self, folder: &OwnedFd, name: &OsStr, text: &str) -> io::Result<()> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let file = openat(folder, name, flags, Mode::RUSR | Mode::WUSR)?;
        let mut file = File::from(file);
        file.write_all(text.as_bytes())?;
        let file = OwnedFd::from(file);
        self.rights.give(&file, FileType::RegularFile)?;
        Ok(fsync(&file)?)
    }

    /// Puts the temporary name at its place. A folder that is there changes places with the new
    /// one and is then removed.
    pub(super) fn put(&self) -> Result<(), String> {
        self.rename().map_err(self.said("replace", &self.name))?;
        self.discard()
    }

    fn rename(&self) -> io::Result<()> {
        let stat = statat(&self.folder, &self.temporary, AtFlags::SYMLINK_NOFOLLOW)?;
        let is_folder = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
        let is_there = statat(&self.folder, &self.name, AtFlags::SYMLINK_NOFOLLOW).is_ok();
        let flags = match is_folder && is_there {
            true => RenameFlags::EXCHANGE,
            false => RenameFlags::empty(),
        };
        renameat_with(
            &self.folder,
            &self.temporary,
            &self.folder,
            &self.name,
            flags,
        )?;
        Ok(fsync(&self.folder)?)
    }

    fn said(&self, what: &'static str, name: &OsStr) -> impl Fn(io::Error) -> String {
        let path = self.path.join(name);
        move |error| format!("failed to {what} {}: {error}", path.display())
    }
}

const DIR: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::CLOEXEC);

/// The name that is written: `name`, or the name in the same folder that it is a link to. `None`
/// for a link to anything else.
fn named(folder: &OwnedFd, name: &OsStr) -> Option<OsString> {
    let target = match readlinkat(folder, name, Vec::new()) {
        Ok(target) => OsString::from_vec(target.into_bytes()),
        Err(_) => return Some(name.to_owned()),
    };
    let is_plain = Path::new(&target).file_name() == Some(target.as_os_str());
    let is_link = readlinkat(folder, &target, Vec::new()).is_ok();
    (is_plain && !is_link).then_some(target)
}

/// Notes of signals that programs are owed: an empty file for each unit.
#[derive(Debug, Clone)]
pub(super) struct OwedNote {
    folder: PathBuf,
    path: PathBuf,
}

impl OwedNote {
    pub(super) fn new(folder: &Path, unit: &str) -> Self {
        Self {
            folder: folder.to_owned(),
            path: folder.join(format!("{unit}.owed")),
        }
    }

    pub(super) fn is_there(&self) -> bool {
        self.path.exists()
    }

    pub(super) fn make(&self) -> Result<(), String> {
        let made = || {
            fs::create_dir_all(&self.folder)?;
            File::create(&self.path)?.sync_all()?;
            if let Some(above) = self.folder.parent() {
                File::open(above)?.sync_all()?;
            }
            File::open(&self.folder)?.sync_all()
        };
        made().map_err(|error| format!("failed to write {}: {error}", self.path.display()))
    }

    pub(super) fn remove(&self) -> Result<(), String> {
        let removed = || {
            match fs::remove_file(&self.path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            File::open(&self.folder)?.sync_all()
        };
        removed().map_err(|error| format!("failed to remove {}: {error}", self.path.display()))
    }
}
