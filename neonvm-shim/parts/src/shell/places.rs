//! The folder of a part in a guest: reads its files and carries out the steps that change them.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use protocol::parts::PartName;

use crate::core::orders::Step;
use crate::core::record::Record;
use crate::core::state::Sight;
use crate::core::trial::{ReturnNote, Slot, Trial};

/// Most bytes of a file that is read whole.
const MAX_FILE_BYTES: u64 = 64 << 10;
/// Mode of folders and programs: the part's user reads and executes them.
const MODE: u32 = 0o755;

/// Result of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stepped {
    /// The files are as the step says.
    Done,
    /// The trial has ended otherwise.
    Lost,
    /// The step concerns a process.
    NotOfFiles,
}

/// Folder of one part.
#[derive(Debug, Clone)]
pub struct Places {
    dir: PathBuf,
}

impl Places {
    /// Folder of `part` below `parts`.
    #[must_use]
    pub fn new(parts: &Path, part: PartName) -> Self {
        Self {
            dir: parts.join(part.as_str()),
        }
    }

    /// The folder itself.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Makes the folder of a slot. A link or file in its place is removed, not followed.
    ///
    /// # Errors
    /// The file system's error.
    pub fn prepare(&self, slot: Slot) -> io::Result<()> {
        for dir in [self.dir.clone(), self.dir.join(slot.as_str())] {
            match dir.symlink_metadata() {
                Ok(meta) if meta.is_dir() => {}
                Ok(_) => fs::remove_file(&dir)?,
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
            fs::create_dir_all(&dir)?;
            fs::set_permissions(&dir, Permissions::from_mode(MODE))?;
        }
        Ok(())
    }

    /// Program of a slot.
    #[must_use]
    pub fn program(&self, slot: Slot) -> PathBuf {
        self.dir.join(slot.as_str()).join("program")
    }

    /// Draft of a slot's program, before it is checked.
    #[must_use]
    pub fn draft(&self, slot: Slot) -> PathBuf {
        self.dir.join(slot.as_str()).join("program.new")
    }

    /// Opens an empty draft. A leftover is removed first.
    ///
    /// # Errors
    /// The file system's error.
    pub fn open_draft(&self, slot: Slot) -> io::Result<File> {
        self.prepare(slot)?;
        self.drop_draft(slot)?;
        let mut options = OpenOptions::new();
        options.write(true).create_new(true).mode(MODE);
        let file = options.open(self.draft(slot))?;
        // Whatever the daemon's mask is.
        file.set_permissions(Permissions::from_mode(MODE))?;
        Ok(file)
    }

    /// Removes a draft, if there is one.
    ///
    /// # Errors
    /// The file system's error.
    pub fn drop_draft(&self, slot: Slot) -> io::Result<()> {
        removed(&self.draft(slot)).map(drop)
    }

    /// Reads the record. One that is missing or malformed is empty.
    ///
    /// # Errors
    /// The file system's error.
    pub fn record(&self) -> io::Result<Record> {
        let text = self.text("record.json")?.unwrap_or_default();
        Ok(serde_json::from_str(&text).unwrap_or_default())
    }

    /// Reads the other files.
    ///
    /// # Errors
    /// The file system's error.
    pub fn sight(&self) -> io::Result<Sight> {
        let link = fs::read_link(self.dir.join("current")).ok();
        let current = link.and_then(|target| Slot::parse(target.to_str()?));
        let trial = |name| {
            let text = self.text(name)?;
            Ok::<_, io::Error>(text.map(|text| Trial::parse(&text).unwrap_or_else(unreadable)))
        };
        let note = self.text("note")?;
        Ok(Sight {
            current,
            trial: trial("trial")?,
            returning: trial("returning")?,
            note: note.and_then(|text| ReturnNote::parse(&text)),
        })
    }

    /// Carries out a step.
    ///
    /// # Errors
    /// The file system's error. The step can be repeated.
    pub fn carry_out(&self, step: &Step) -> io::Result<Stepped> {
        let at = |name: &str| self.dir.join(name);
        match step {
            Step::Record(record) => {
                let text = serde_json::to_vec(record).map_err(io::Error::other)?;
                self.replace("record.json", &text)?;
            }
            Step::Install(slot) => {
                fs::rename(self.draft(*slot), self.program(*slot))?;
                sync(&at(slot.as_str()))?;
            }
            Step::Trial(trial) => self.replace("trial", trial.to_string().as_bytes())?,
            Step::Link(None) => {
                removed(&at("current"))?;
                sync(&self.dir)?;
            }
            Step::Link(Some(slot)) => {
                removed(&at("current.new"))?;
                symlink(slot.as_str(), at("current.new"))?;
                fs::rename(at("current.new"), at("current"))?;
                sync(&self.dir)?;
            }
            Step::EndTrial => {
                if !removed(&at("trial"))? {
                    return Ok(Stepped::Lost);
                }
                sync(&self.dir)?;
            }
            Step::Claim => match fs::rename(at("trial"), at("returning")) {
                Ok(()) => sync(&self.dir)?,
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    if !at("returning").exists() {
                        return Ok(Stepped::Lost);
                    }
                }
                Err(error) => return Err(error),
            },
            Step::Note(note) => {
                let before = self.sight()?.note;
                if before.is_none_or(|before| before.token != note.token) {
                    // A return does not fail for its reason.
                    let _ = self.replace("note", note.to_string().as_bytes());
                }
            }
            Step::Release => {
                removed(&at("returning"))?;
                sync(&self.dir)?;
            }
            Step::Watch | Step::Change(_) | Step::Stop(_) => return Ok(Stepped::NotOfFiles),
        }
        Ok(Stepped::Done)
    }

    /// Text of a file. `None` if there is none.
    fn text(&self, name: &str) -> io::Result<Option<String>> {
        let path = self.dir.join(name);
        match fs::metadata(&path) {
            Ok(meta) if meta.len() > MAX_FILE_BYTES => Ok(Some(String::new())),
            Ok(_) => fs::read(&path).map(|text| Some(String::from_utf8_lossy(&text).into_owned())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Replaces a file. On return its content survives a crash of the guest.
    fn replace(&self, name: &str, content: &[u8]) -> io::Result<()> {
        fs::create_dir_all(&self.dir)?;
        let draft = self.dir.join(format!("{name}.new"));
        removed(&draft)?;
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(&draft)?;
        if let Err(error) = file.write_all(content).and_then(|()| file.sync_all()) {
            // A draft must not keep a full disk full.
            let _ = fs::remove_file(&draft);
            return Err(error);
        }
        fs::rename(&draft, self.dir.join(name))?;
        sync(&self.dir)
    }
}

/// A trial whose file cannot be read is over, and goes back to the image's program.
fn unreadable() -> Trial {
    Trial {
        token: "unreadable".to_owned(),
        end_s: 0,
        back: None,
    }
}

/// Whether the file was there.
fn removed(path: &Path) -> io::Result<bool> {
    match fs::remove_file(path) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

fn sync(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn link_or_file_in_place_of_a_folder_is_replaced() {
        let root = tempfile::tempdir().expect("a folder");
        let outside = root.path().join("outside");
        fs::create_dir(&outside).expect("made");
        let places = Places::new(&root.path().join("parts"), PartName::Monitor);
        fs::create_dir_all(places.dir()).expect("made");
        symlink(&outside, places.dir().join("a")).expect("linked");
        fs::write(places.dir().join("b"), "a file").expect("written");
        for slot in Slot::ALL {
            places.open_draft(slot).expect("opened");
            assert!(places.draft(slot).is_file());
        }
        assert_eq!(fs::read_dir(&outside).expect("a folder").count(), 0);
    }

    #[test]
    fn malformed_files_end_a_trial_and_keep_the_images_program() {
        let root = tempfile::tempdir().expect("a folder");
        let places = Places::new(root.path(), PartName::Guestd);
        assert_eq!(places.sight().expect("readable"), Sight::default());
        fs::create_dir_all(places.dir()).expect("made");
        symlink("../../etc", places.dir().join("current")).expect("linked");
        for name in ["trial", "record.json", "note"] {
            fs::write(places.dir().join(name), [0xff; 9]).expect("written");
        }
        let sight = places.sight().expect("readable");
        assert_eq!((sight.current, sight.note), (None, None));
        assert_eq!(sight.trial.map(|trial| trial.end_s), Some(0));
        assert_eq!(places.record().expect("readable"), Record::default());
    }

    #[test]
    fn return_that_was_claimed_first_wins_over_keep() {
        let root = tempfile::tempdir().expect("a folder");
        let places = Places::new(root.path(), PartName::Monitor);
        let trial = Step::Trial(unreadable());
        let out = |step: &Step| places.carry_out(step).expect("written");
        assert_eq!(out(&trial), Stepped::Done);
        assert_eq!(out(&Step::Claim), Stepped::Done);
        assert_eq!(out(&Step::EndTrial), Stepped::Lost);
        assert_eq!(out(&Step::Claim), Stepped::Done, "the same return goes on");
        assert_eq!(out(&Step::Release), Stepped::Done);
        assert_eq!(out(&trial), Stepped::Done);
        assert_eq!(out(&Step::EndTrial), Stepped::Done);
        assert_eq!(out(&Step::Claim), Stepped::Lost);
    }
}
