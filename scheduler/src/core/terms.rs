//! Terms: what begins and ends with the lead that a Lease gives this replica.

use protocol::core::Core as _;
use protocol::time::Timestamp;

use super::event::Action;
use super::lease::Turn;
use super::ledger::Ledger;
use super::standby::{CATCH_UP, NewestVersions, StandbyCache};
use super::{Core, Synced};

impl Core {
    /// Begins and ends terms. Without a valid lead the state is empty and no call begins.
    pub(super) fn follow_lead(&mut self, now: Timestamp) {
        let Some(lead) = &mut self.lead else { return };
        match lead.poll_action(now) {
            Some(Turn::Opens) => {
                let marks = lead.handover().and_then(|text| text.parse().ok());
                self.forget();
                match marks.filter(|_| self.standby_cache.is_some()) {
                    Some(marks) => self.awaited = Some((marks, now + CATCH_UP)),
                    None => self.relist(None),
                }
            }
            Some(Turn::Lapses) => {
                self.forget();
                self.awaited = None;
                if self.caches_on_standby && self.standby_cache.is_none() {
                    self.relist(Some(StandbyCache::default()));
                }
            }
            None => {}
        }
        self.catch_up(now);
    }

    /// Begins the work of a term after a hand-over: with the standby cache once it covers the
    /// marks, or with lists at the deadline.
    fn catch_up(&mut self, now: Timestamp) {
        let Some((marks, until)) = self.awaited else {
            return;
        };
        if let Some(cache) = self.standby_cache.take_if(|cache| cache.covers(marks)) {
            self.awaited = None;
            let (lists, newest) = cache.into_lists(marks);
            self.newest = newest;
            lists.into_iter().for_each(|list| self.observe(now, list));
        } else if now >= until {
            self.awaited = None;
            self.relist(None);
        }
    }

    /// Lists every kind again, into the standby cache if there is one, otherwise into the ledger.
    fn relist(&mut self, standby_cache: Option<StandbyCache>) {
        self.standby_cache = standby_cache;
        self.newest = NewestVersions::default();
        self.out.push_back(Action::List);
    }

    /// Drops the observed state, which may be older than another replica's term, and all unsent
    /// calls. Refuses the open requests.
    fn forget(&mut self) {
        self.ledger = Ledger::new(self.ledger.rules().clone());
        self.placement.forget();
        self.migrate.forget();
        self.denied_increases.forget();
        self.pod_warnings.forget();
        self.synced = Synced::default();
        self.out.retain(|action| !action.is_call());
        for request_id in self.permits.forget() {
            self.refuse_permit(request_id);
        }
        for request_id in self.extender.forget() {
            self.refuse_extender(request_id);
        }
    }
}

#[cfg(test)]
mod tests {
    use protocol::core::Core as _;
    use protocol::time::{Span, Timestamp};

    use crate::core::event::{Action, Event};
    use crate::core::lease::{LeaseRule, LeaseSeen};
    use crate::core::{Core, Settings};

    const fn at(seconds: u64) -> Timestamp {
        Timestamp(seconds * 1_000_000)
    }

    /// A Lease of replica `a`, renewed at `now` and settled two seconds later.
    fn seen(now: u64) -> LeaseSeen {
        LeaseSeen {
            holder: "a_x".into(),
            renewed: at(now),
            settled: at(now + 2),
            handover: None,
        }
    }

    #[test]
    fn core_has_no_state_before_its_term_and_none_after_it() {
        let settings = crate::config::Config::default().settings(false, true);
        let lease = Some(LeaseRule::of_host("a"));
        let mut core = Core::new(Settings { lease, ..settings });
        let list = |core: &mut Core, now| {
            core.handle(now, Event::NodesListed(Vec::new()));
            core.handle(now, Event::PodsListed(Vec::new()));
            core.handle(now, Event::VmsListed(Vec::new()));
        };
        list(&mut core, at(1));
        core.handle(at(2), Event::Lease(seen(2)));
        list(&mut core, at(3));
        assert!(!core.is_ready(), "listed before it was asked for");
        assert_eq!(core.poll_action(at(3)), None);
        assert_eq!(core.poll_deadline(), Some(at(4)));
        assert_eq!(core.poll_action(at(4)), Some(Action::List));
        list(&mut core, at(4));
        assert!(core.may_permit(at(5)));
        assert_eq!(core.call_bound(at(5)), Some(Span::from_secs(6)));
        assert!(!core.may_permit(at(11)), "the margin");
        assert_eq!(core.poll_action(at(11)), None);
        assert!(!core.is_ready(), "forgotten");
        core.handle(at(12), Event::Lease(seen(12)));
        assert_eq!(core.poll_action(at(14)), Some(Action::List));
    }
}
