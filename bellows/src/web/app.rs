//! What every request needs.

use std::sync::Arc;

use super::forms::Forms;
use super::guard::Guard;
use super::live::Live;
use super::report::Reports;
use crate::context::Context;

/// State of the server.
pub(super) struct App {
    pub(super) context: Context,
    pub(super) guard: Guard,
    pub(super) forms: Forms,
    pub(super) live: Live,
    pub(super) reports: Reports,
    /// Held while an order is carried out.
    pub(super) turn: tokio::sync::Mutex<()>,
}

pub(super) type Shared = Arc<App>;
