//! The API in the process of a test: without TLS and disk, and open to states that no client may
//! write. `tests/api` puts faults before it.

use std::sync::{Arc, OnceLock};

use axum::Router;
use tokio_util::sync::CancellationToken;

use crate::core::protobuf::Messages;
use crate::core::store::Store;
use crate::error::StartError;
use crate::kinds;
use crate::shell::db::Db;
use crate::shell::engine::Engine;
use crate::shell::http::{self, App};
use crate::shell::hub::Hub;

/// The bearer token of every API in memory.
pub const TOKEN: &str = "in-memory";

/// A served API and the objects behind it.
#[derive(Debug)]
pub struct InMemory {
    /// Answers requests that carry [`TOKEN`].
    pub router: Router,
    /// Committed objects and their watchers.
    pub hub: Arc<Hub>,
    /// Queue of the thread that writes. The thread ends with the last handle.
    pub engine: Engine,
}

/// State of a new store. Reading the definitions takes longer than most tests do.
static NEW: OnceLock<(Store, Messages)> = OnceLock::new();

/// Serves a new store. No objects go by themselves, and no bookmarks come.
///
/// # Errors
/// See [`StartError`].
pub fn start() -> Result<InMemory, StartError> {
    let mut db = Db::in_memory()?;
    let (store, messages) = match NEW.get() {
        Some(made) => made.clone(),
        None => {
            let mut store = Store::new(kinds::builtin()?, 0);
            crate::bootstrap(&mut store, &mut db)?;
            let made = (store, kinds::protobuf()?);
            NEW.get_or_init(|| made).clone()
        }
    };
    let hub = Arc::new(Hub::new(store.view().clone()));
    let (engine, thread) =
        Engine::start(store, db, Arc::clone(&hub)).map_err(StartError::Thread)?;
    // Nothing is on disk, so nobody waits for its end.
    std::mem::forget(thread);
    let app = App {
        engine: engine.clone(),
        hub: Arc::clone(&hub),
        token: TOKEN.to_owned(),
        messages,
        documents: http::Documents::default(),
        audit: None,
        cancel: CancellationToken::new(),
    };
    let router = http::router(Arc::new(app));
    Ok(InMemory {
        router,
        hub,
        engine,
    })
}
