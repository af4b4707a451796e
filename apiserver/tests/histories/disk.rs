//! A disk in memory that loses writes which were not synced.

use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};

use apiserver::shell::db::Storage;
use rand::Rng as _;
use redb::{Builder, Database, DatabaseError, StorageBackend};
use tokio::sync::Notify;

/// What the disk writes as a whole.
const SECTOR: usize = 512;

/// What a sync does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SyncMode {
    /// All that was written stays.
    Honest,
    /// A sync says that it has done its work and does nothing.
    Nothing,
    /// It says so at once, and writes become durable this many syncs later. To clients, a server on
    /// it is one that answers before it commits.
    Late(usize),
}

#[derive(Debug, Clone)]
enum Change {
    Write { offset: usize, data: Vec<u8> },
    Length(usize),
}

#[derive(Debug, Default)]
struct State {
    /// What is there after a loss of power.
    durable: Vec<u8>,
    /// What a reader sees now.
    current: Vec<u8>,
    /// Writes since each of the syncs that are still to take effect, the oldest first.
    unsynced: Vec<Vec<Change>>,
    is_loaded: bool,
    /// Operations until the power goes.
    left: Option<u64>,
    /// Writes that were lost so far.
    dropped: usize,
}

/// Survives its server.
#[derive(Debug)]
pub(crate) struct Disk {
    sync: SyncMode,
    /// Whether a random part of the unsynced writes survives, or none.
    loses_all: bool,
    state: Mutex<State>,
    gone: Notify,
}

impl Disk {
    /// A random part of what was not synced survives.
    pub(crate) fn honest() -> Self {
        Self::new(SyncMode::Honest, false)
    }

    /// Nothing of what was not synced survives, so what is left is a store that can be opened.
    pub(crate) fn faulty(sync: SyncMode) -> Self {
        Self::new(sync, true)
    }

    fn new(sync: SyncMode, loses_all: bool) -> Self {
        Self {
            sync,
            loses_all,
            state: Mutex::default(),
            gone: Notify::new(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic")
    }

    /// The power goes.
    pub(crate) fn cut(&self) {
        self.state().left = Some(0);
    }

    /// The power goes after so many operations; waits for that.
    pub(crate) async fn cut_after(&self, operations: u64) {
        let gone = self.gone.notified();
        self.state().left = Some(operations);
        gone.await;
    }

    /// The power comes back. Of the writes that were not synced a part is there, in their order,
    /// and the last of it perhaps not to its end.
    pub(crate) fn come_back(&self) {
        let mut state = self.state();
        let mut rng = rand::rng();
        let share = if self.loses_all {
            0.0
        } else {
            [0.0, 0.5, 0.9, 1.0][rng.random_range(0..4)]
        };
        let groups = std::mem::take(&mut state.unsynced);
        let mut kept: Vec<Change> = groups.into_iter().flatten().collect();
        state.dropped += kept.len();
        kept.retain(|_| rng.random_bool(share));
        state.dropped -= kept.len();
        if let Some(Change::Write { offset, data }) = kept.last_mut()
            && rng.random_bool(0.5)
        {
            let end = rng.random_range(*offset..=*offset + data.len());
            let end = (end / SECTOR * SECTOR).saturating_sub(*offset);
            data.truncate(end);
        }
        for change in &kept {
            apply(&mut state.durable, change);
        }
        state.current = state.durable.clone();
        state.left = None;
    }

    /// How many writes it has lost.
    pub(crate) fn dropped(&self) -> usize {
        self.state().dropped
    }

    /// Counts an operation, and refuses it when the power is gone.
    fn operation(&self) -> io::Result<MutexGuard<'_, State>> {
        let mut state = self.state();
        match &mut state.left {
            None => Ok(state),
            Some(0) => {
                self.gone.notify_waiters();
                Err(io::Error::other("the power is gone"))
            }
            Some(left) => {
                *left -= 1;
                Ok(state)
            }
        }
    }

    fn change(&self, change: Change) -> io::Result<()> {
        let mut state = self.operation()?;
        apply(&mut state.current, &change);
        if state.unsynced.is_empty() {
            state.unsynced.push(Vec::new());
        }
        state.unsynced.last_mut().expect("one").push(change);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        let mut state = self.operation()?;
        let most = match self.sync {
            SyncMode::Nothing => return Ok(()),
            SyncMode::Honest => 0,
            SyncMode::Late(syncs) => {
                state.unsynced.push(Vec::new());
                syncs
            }
        };
        while state.unsynced.len() > most {
            for change in state.unsynced.remove(0) {
                apply(&mut state.durable, &change);
            }
        }
        Ok(())
    }
}

fn apply(image: &mut Vec<u8>, change: &Change) {
    match change {
        Change::Length(length) => image.resize(*length, 0),
        Change::Write { offset, data } => {
            let end = offset + data.len();
            if image.len() < end {
                image.resize(end, 0);
            }
            image[*offset..end].copy_from_slice(data);
        }
    }
}

fn size(number: u64) -> usize {
    usize::try_from(number).expect("a small store")
}

/// Puts a disk in the place of a store's file. The file is made by the server, and read once.
#[derive(Debug, Clone)]
pub(crate) struct Medium(pub(crate) Arc<Disk>);

impl Storage for Medium {
    fn open(&self, builder: &Builder, path: &Path) -> Result<Database, DatabaseError> {
        let mut state = self.0.state();
        if !state.is_loaded {
            state.durable = std::fs::read(path)?;
            state.current = state.durable.clone();
            state.is_loaded = true;
        }
        drop(state);
        builder.create_with_backend(self.clone())
    }
}

impl StorageBackend for Medium {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.state().current.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let (state, offset) = (self.0.state(), size(offset));
        let bytes = state.current.get(offset..offset + out.len());
        out.copy_from_slice(bytes.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.change(Change::Length(size(len)))
    }

    fn sync_data(&self) -> io::Result<()> {
        self.0.sync()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.0.change(Change::Write {
            offset: size(offset),
            data: data.to_vec(),
        })
    }
}
