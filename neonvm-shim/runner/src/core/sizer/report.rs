//! The sizer's report about the order: done, in progress, or its problem.

use protocol::runner::{CpuState, MemoryState, ResizeProblem, ResizeReport, SizeOrder, StageStamp};
use protocol::time::Timestamp;
use protocol::trace::Stage;
use protocol::units::{Bytes, MilliCpu, Resources};

use super::parts::QmpFailure;
use super::{GUEST_BLIND, LEAVE_AGAIN, MEMORY_STUCK, Sizer};
use crate::core::budget::PlugBudget;

impl Sizer {
    /// The problem that keeps the order from being done, if there is one.
    #[must_use]
    pub fn problem(&self, now: Timestamp) -> Option<ResizeProblem> {
        let order = &self.held.order;
        if let Some(rule) = self.shape.refuses(Resources {
            cpu: order.cpu,
            mem: order.memory,
        }) {
            return Some(ResizeProblem::OutOfRange { rule });
        }
        if let Some(message) = self.unreached.clone() {
            let command = "a connection".to_owned();
            return Some(ResizeProblem::Qmp { command, message });
        }
        if let Some(failure) = self.cpu.failure.as_ref().or(self.memory.failure.as_ref()) {
            let QmpFailure { command, message } = failure.clone();
            return Some(ResizeProblem::Qmp { command, message });
        }
        let (cpus_match, memory_match) = self.matches();
        if let Some(id) = self.held_for.clone() {
            let waits = !(cpus_match && memory_match);
            return waits.then_some(ResizeProblem::Moving { id });
        }
        self.cpu_problem(now, cpus_match)
            .or_else(|| self.memory_problem(now, memory_match))
            .or_else(|| self.sight_problem(now))
    }

    fn cpu_problem(&self, now: Timestamp, matched: bool) -> Option<ResizeProblem> {
        let (wanted, plugged) = (self.wanted_cpus()?, self.plugged()?);
        if let Some(possible) = self.guest.and_then(|guest| guest.cpus_possible)
            && possible < wanted
        {
            return Some(ResizeProblem::GuestBlind {
                expected: format!("{wanted} possible CPUs"),
                seen: possible.to_string(),
            });
        }
        let stuck = self
            .leaving_since
            .is_some_and(|since| now >= since + LEAVE_AGAIN);
        (!matched && stuck && plugged > wanted).then(|| ResizeProblem::CpuStuck {
            missing: plugged - wanted,
        })
    }

    fn memory_problem(&self, now: Timestamp, matched: bool) -> Option<ResizeProblem> {
        let (wanted, view) = (self.wanted_device()?, self.device?);
        if matched || now < self.memory_moved + MEMORY_STUCK {
            return None;
        }
        Some(if view.size > wanted {
            ResizeProblem::MemoryStuck {
                missing: Bytes(view.size.0 - wanted.0),
            }
        } else {
            ResizeProblem::GuestBlind {
                expected: format!("{wanted} of hot-plugged memory taken"),
                seen: view.size.to_string(),
            }
        })
    }

    fn sight_problem(&self, now: Timestamp) -> Option<ResizeProblem> {
        let (guest, matched) = (self.guest.as_ref()?, self.held.matched?);
        if self.held.visible.is_some() || now < matched + GUEST_BLIND {
            return None;
        }
        let order = &self.held.order;
        Some(ResizeProblem::GuestBlind {
            expected: format!(
                "{} CPUs online, {}",
                self.shape.cpus_for(order.cpu),
                order.memory
            ),
            seen: match guest.mem_total {
                Some(total) => format!("{} CPUs online, MemTotal {total}", guest.cpus_online),
                None => format!("{} CPUs online", guest.cpus_online),
            },
        })
    }

    /// Whether CPUs and memory have been queried since the start. Before that the figures are
    /// guesses.
    #[must_use]
    pub fn has_looked(&self) -> bool {
        self.looked
    }

    /// Plugs that QEMU has left. `None` without a bound.
    #[must_use]
    pub fn budget(&self) -> Option<PlugBudget> {
        self.budget
    }

    /// The order in force. `None` before the first.
    #[must_use]
    pub fn order(&self) -> Option<&SizeOrder> {
        self.held.asked.then_some(&self.held.order)
    }

    /// Size in force or in progress.
    #[must_use]
    pub fn target(&self) -> &SizeOrder {
        &self.held.order
    }

    /// State of the CPUs for the runner's state.
    #[must_use]
    pub fn cpus(&self) -> CpuState {
        CpuState {
            limit: self.held.order.cpu,
            plugged: self
                .plugged()
                .unwrap_or(self.shape.boot_cpus + self.shape.early_cpus),
            guest_online: self.guest.as_ref().map(|guest| guest.cpus_online),
            ahead: self
                .can_plug_ahead()
                .then(|| self.ahead.map_or(MilliCpu(0), |(cpu, _)| cpu)),
        }
    }

    /// State of the memory for the runner's state. A size that was requested since the last look
    /// counts if it is more: the guest may take it at any time.
    #[must_use]
    pub fn memory(&self) -> MemoryState {
        let view = self.device.or(self.device_before).unwrap_or_default();
        MemoryState {
            base: self.shape.base,
            plugged: view.size,
            requested: view.requested.max(self.requesting.unwrap_or_default()),
            guest_total: self.guest.and_then(|guest| guest.mem_total),
        }
    }

    /// Progress of the order; `unix_us` converts a timestamp into microseconds since 1970.
    pub fn report(
        &self,
        now: Timestamp,
        unix_us: impl Fn(Timestamp) -> i64,
    ) -> Option<ResizeReport> {
        if !self.held.asked {
            return None;
        }
        let stamp = |stage, from: Timestamp, to: Timestamp| StageStamp {
            stage,
            start_unix_us: unix_us(from),
            duration_us: to.since(from).0,
        };
        let mut stages = Vec::new();
        if let Some(matched) = self.held.matched {
            stages.push(stamp(Stage::Qmp, self.held.at, matched));
            if let Some(visible) = self.held.visible {
                stages.push(stamp(Stage::GuestVisible, matched, visible));
            }
        }
        // Done is the current state, not the past: a guest that lost a CPU since is not done.
        let done = self.held.visible.is_some()
            && self.matches() == (true, true)
            && self.seen() == (true, true);
        Some(ResizeReport {
            order: self.held.order.clone(),
            done,
            stages,
            problem: self.problem(now),
        })
    }
}
