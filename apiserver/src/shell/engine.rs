//! The one thread that writes: it applies calls in order, commits many at once, and only then
//! answers and publishes.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use daemon_kit::chain;
use tokio::sync::{mpsc, oneshot};

use super::db::{Db, DbError, Frozen, Position};
use super::hub::Hub;
use crate::core::error::{ApiError, Reason};
use crate::core::store::{Store, WriteRequest, WriteResponse};
use crate::core::view::Change;

/// Calls waiting for the thread. Beyond it callers wait their turn.
const QUEUE: usize = 1024;
/// Calls in one commit: enough that the disk's speed does not bound concurrent writers, few enough
/// that the first of them does not wait long for the last.
const BATCH: usize = 128;

type WriteResult = Result<WriteResponse, ApiError>;

enum Job {
    Write(Box<WriteRequest>, oneshot::Sender<WriteResult>),
    CollectGarbage,
    Freeze(oneshot::Sender<Result<(Position, Frozen), DbError>>),
    #[cfg(feature = "testing")]
    Plant(Planting),
}

/// Plants objects. Returns the report of it, to be made once that is committed.
#[cfg(feature = "testing")]
type Planting = Box<dyn FnOnce(&mut Store) -> Box<dyn FnOnce() + Send> + Send>;

/// The writing thread, waited for at the latest when this goes: the store is closed then. Every
/// [`Engine`] must be gone by that time.
#[derive(Debug)]
pub struct StoreThread(Option<std::thread::JoinHandle<()>>);

impl StoreThread {
    /// Waits for the end. `false` if the thread panicked.
    #[must_use]
    pub fn join(mut self) -> bool {
        self.0.take().is_none_or(|thread| thread.join().is_ok())
    }
}

impl Drop for StoreThread {
    fn drop(&mut self) {
        if self.0.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the store's thread failed");
        }
    }
}

/// Handle to the writing thread.
#[derive(Debug, Clone)]
pub struct Engine {
    jobs: mpsc::Sender<Job>,
}

impl std::fmt::Debug for Job {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Job")
    }
}

impl Engine {
    /// Starts the thread. It ends when the last handle is gone; the store is closed then.
    ///
    /// # Errors
    /// When the system has no thread to give.
    pub fn start(store: Store, db: Db, hub: Arc<Hub>) -> std::io::Result<(Self, StoreThread)> {
        let (jobs, queue) = mpsc::channel(QUEUE);
        let thread = std::thread::Builder::new()
            .name("apiserver-store".to_owned())
            .spawn(move || Writer { store, db, hub }.run(queue))?;
        Ok((Self { jobs }, StoreThread(Some(thread))))
    }

    /// Applies a call. The answer comes after its changes are durable and visible to readers.
    ///
    /// # Errors
    /// The refusal; 500 or 507 when the store cannot be written.
    pub async fn call(&self, call: WriteRequest) -> WriteResult {
        let (sender, answer) = oneshot::channel();
        let stopped = || ApiError::new(Reason::InternalError, "the server is stopping");
        self.jobs
            .send(Job::Write(Box::new(call), sender))
            .await
            .map_err(|_| stopped())?;
        answer.await.map_err(|_| stopped())?
    }

    /// Has the thread plant objects, for tests. Returns after the changes are visible to readers;
    /// `None` if they could not be committed.
    #[cfg(feature = "testing")]
    pub async fn plant<T: Send + 'static>(
        &self,
        plant: impl FnOnce(&mut Store) -> T + Send + 'static,
    ) -> Option<T> {
        let (sender, answer) = oneshot::channel();
        let planting: Planting = Box::new(|store| {
            let planted = plant(store);
            Box::new(|| drop(sender.send(planted)))
        });
        self.jobs.send(Job::Plant(planting)).await.ok()?;
        answer.await.ok()
    }

    /// Asks for objects without living owners to be deleted, if the thread has time.
    pub fn collect_garbage(&self) {
        // A full queue means writers are busy; the next round comes soon.
        let _ = self.jobs.try_send(Job::CollectGarbage);
    }

    /// What is committed now, for a copy; `None` when the server is stopping.
    pub async fn freeze(&self) -> Option<Result<(Position, Frozen), DbError>> {
        freeze(&self.jobs).await
    }

    /// A handle that does not keep the thread from ending.
    #[must_use]
    pub fn backups(&self) -> Backups {
        Backups(self.jobs.downgrade())
    }
}

/// Makes copies of a running store, as long as it runs.
#[derive(Debug, Clone)]
pub struct Backups(mpsc::WeakSender<Job>);

impl Backups {
    /// Writes a copy of the store to `path`, which must not exist. `None` when the server is
    /// stopping.
    ///
    /// # Errors
    /// See [`DbError`].
    pub async fn write(&self, path: std::path::PathBuf) -> Option<Result<Position, DbError>> {
        let jobs = self.0.upgrade()?;
        let frozen = freeze(&jobs).await?;
        drop(jobs);
        let write = move || {
            let (position, frozen) = frozen?;
            frozen.copy_to(&path).map(|()| position)
        };
        tokio::task::spawn_blocking(write).await.ok()
    }
}

async fn freeze(jobs: &mpsc::Sender<Job>) -> Option<Result<(Position, Frozen), DbError>> {
    let (sender, answer) = oneshot::channel();
    jobs.send(Job::Freeze(sender)).await.ok()?;
    answer.await.ok()
}

struct Writer {
    store: Store,
    db: Db,
    hub: Arc<Hub>,
}

impl Writer {
    fn run(mut self, mut queue: mpsc::Receiver<Job>) {
        let mut batch = Vec::with_capacity(BATCH);
        loop {
            batch.clear();
            let Some(first) = queue.blocking_recv() else {
                return;
            };
            batch.push(first);
            while batch.len() < BATCH {
                let Ok(next) = queue.try_recv() else { break };
                batch.push(next);
            }
            self.serve(&mut batch);
        }
    }

    fn serve(&mut self, batch: &mut Vec<Job>) {
        let mut changes: Vec<Change> = Vec::new();
        let mut answers = Vec::with_capacity(batch.len());
        let mut frozen = Vec::new();
        #[cfg(feature = "testing")]
        let mut reports = Vec::new();
        for job in batch.drain(..) {
            match job {
                Job::Write(call, sender) => {
                    let answer = self.apply(*call, &mut changes);
                    answers.push((sender, answer));
                }
                Job::CollectGarbage => changes.extend(self.store.collect_garbage(super::now())),
                Job::Freeze(sender) => frozen.push(sender),
                #[cfg(feature = "testing")]
                Job::Plant(planting) => {
                    reports.push(planting(&mut self.store));
                    changes.extend(self.store.planted());
                }
            }
        }
        for sender in frozen {
            let _ = sender.send(self.freeze());
        }
        if !changes.is_empty()
            && let Err(error) = self.db.commit(&changes)
        {
            tracing::error!(error = %chain(&error), "a write was refused because the store could not take it");
            let refusal = storage_refusal(&error);
            self.store.rollback(changes);
            // Every answer of the batch may rest on what was just taken back.
            for (sender, _) in answers {
                let _ = sender.send(Err(refusal.clone()));
            }
            return;
        }
        self.hub.publish(changes);
        for (sender, answer) in answers {
            // A caller that went away does not want the answer.
            let _ = sender.send(answer);
        }
        #[cfg(feature = "testing")]
        reports.into_iter().for_each(|report| report());
    }

    /// Answers with what is on disk, whatever is still to be committed.
    fn freeze(&mut self) -> Result<(Position, Frozen), DbError> {
        self.db.reopen()?;
        Ok((self.db.position()?, self.db.frozen()?))
    }

    fn apply(&mut self, call: WriteRequest, changes: &mut Vec<Change>) -> WriteResult {
        match catch_unwind(AssertUnwindSafe(|| self.store.apply(call))) {
            Ok(Ok((reply, made))) => {
                changes.extend(made);
                Ok(reply)
            }
            Ok(Err(refusal)) => Err(refusal),
            Err(_) => {
                tracing::error!("a call made the store panic; its changes were taken back");
                self.store.abandon();
                Err(ApiError::new(
                    Reason::InternalError,
                    "the call failed inside the server",
                ))
            }
        }
    }
}

fn storage_refusal(error: &DbError) -> ApiError {
    let reason = match error {
        DbError::Full { .. } => Reason::InsufficientStorage,
        _ => Reason::InternalError,
    };
    ApiError::new(reason, format!("nothing was changed: {}", chain(error)))
}
