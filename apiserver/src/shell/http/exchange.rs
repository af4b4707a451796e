//! The state that all handlers share, and one request for objects.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use super::documents::Documents;
use super::output::Output;
use crate::core::codec::Form;
use crate::core::protobuf::Messages;
use crate::core::request::{Query, Target};
use crate::shell::audit::AuditLog;
use crate::shell::engine::Engine;
use crate::shell::hub::Hub;

/// Shared state of all request handlers.
#[derive(Debug)]
pub struct App {
    /// Queue of the thread that writes.
    pub engine: Engine,
    /// Committed objects and their watchers.
    pub hub: Arc<Hub>,
    /// The only token that is let in.
    pub token: String,
    /// How core kinds look in protobuf.
    pub messages: Messages,
    /// OpenAPI documents made so far.
    pub documents: Documents,
    /// Where calls are written. `None`: nowhere.
    pub audit: Option<AuditLog>,
    /// Ends all running watches.
    pub cancel: CancellationToken,
}

/// One request for objects.
pub(super) struct Exchange {
    pub(super) app: Arc<App>,
    pub(super) target: Target,
    pub(super) form: Form,
    pub(super) query: Query,
    pub(super) agent: String,
    pub(super) output: Output,
}
