//! Scrapes of the guests' metrics by the tasks of the agents.

use agent::core::{Event as CoreEvent, SystemMetrics};

use super::times::{SCRAPE_PATIENCE, SCRAPE_PERIOD};
use crate::event::Event;
use crate::faults::Link;
use crate::options::Sabotage;
use crate::world::World;

impl World {
    pub(crate) fn scrape(&mut self, vm: usize, agent_task: u64) {
        if self.agent_task(vm, agent_task).is_none() {
            return;
        }
        let page = self.page_of(vm);
        let delay = self
            .delivery(Link::Scrape)
            .first()
            .filter(|delay| *delay < SCRAPE_PATIENCE);
        let page = page.filter(|_| delay.is_some() && !self.cheats(Sabotage::ShrinkBlind));
        self.after(
            delay.unwrap_or(SCRAPE_PATIENCE),
            Event::Scraped {
                vm,
                agent_task,
                page,
            },
        );
    }

    pub(crate) fn scraped(&mut self, vm: usize, id: u64, page: Option<SystemMetrics>) {
        let now = self.now;
        if self.agent_task(vm, id).is_none() {
            return;
        }
        self.heartbeats_are_never_missed(vm);
        let Some(agent_task) = self.agent_task(vm, id) else {
            return;
        };
        if let Some(page) = page {
            let before = agent_task.metrics_at.replace(now);
            self.policy_sees_metrics(vm, before);
            self.tell_agent_task(vm, CoreEvent::SystemMetrics(page));
        } else if self.cheats(Sabotage::ShrinkBlind) {
            let idle = SystemMetrics::default();
            self.tell_agent_task(vm, CoreEvent::SystemMetrics(idle));
        }
        self.after(SCRAPE_PERIOD, Event::Scrape { vm, agent_task: id });
    }
}
