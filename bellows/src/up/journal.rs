//! Journals of components that go on without one.

use daemon_kit::journal::{Identity, Journal, Limits};
use protocol::units::Resources;

use super::base::Base;

/// Opens the journal of a part. If it cannot be written, the component goes on without it.
pub(crate) fn open(base: &Base, part: &str) -> Option<Journal> {
    let identity = Identity {
        part: part.into(),
        node: base.instance.node().to_owned(),
        build: env!("CARGO_PKG_VERSION").into(),
        compute_unit: Resources::default(),
        run: u64::try_from(base.clock.wall().0).unwrap_or(0),
    };
    let folder = base.state.journal().join(part);
    let limits = Limits::default();
    Journal::open(&folder, identity, limits, base.clock, Vec::new())
        .inspect_err(|error| {
            let error = daemon_kit::chain(error);
            tracing::error!(part, error, "no journal is written; the component goes on");
        })
        .ok()
}
