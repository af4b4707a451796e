//! The feeds of a VM's versions, from their reader to the past and the journal.

use protocol::time::Span;

use super::super::feeds::{FeedReader, sources_of};
use super::VmPolicy;
use crate::core::{Core, feeds};
use crate::shell::context::Context;
use crate::shell::journal::JournalWriter;

impl VmPolicy {
    /// Reads the feeds of the versions. Returns the period.
    pub(super) fn follow_feeds(&mut self, ctx: &Context) -> Span {
        let sources = self.asked.sources(&self.runtime.0.settings.feed_ports);
        let metrics = &ctx.config.metrics.system;
        if sources_of(self.feeds.as_deref()) != sources {
            self.feeds = (!sources.is_empty()).then(|| {
                let failures = ctx.metrics.scrape_failures.clone();
                Box::new(FeedReader::start(
                    sources,
                    &self.subject.pod_ip,
                    metrics,
                    failures,
                ))
            });
        }
        metrics.between_requests.span()
    }

    /// Takes values of the feeds between two steps, and asks about them if it is time.
    pub(in crate::shell) fn fed(
        &mut self,
        values: Vec<Option<f64>>,
        core: &Core,
        ctx: &Context,
        journal: &mut JournalWriter,
    ) {
        let sources = sources_of(self.feeds.as_deref());
        let now = journal.between_steps(ctx.clock.now());
        for active in self.asked.all_mut() {
            let own = feeds::values_of(&active.policy.spec, sources, &values);
            active.fed(now, &own, (&self.runtime, self.vm));
        }
        journal.fed(now, values);
        self.ask_all(now, core, |active| active.is_due(now));
    }
}
