//! The driver's part of size orders: accepts them, begins them, and replies.

use protocol::core::Core as _;
use protocol::overtaken;
use protocol::runner::SizeOrder;
use protocol::time::Timestamp;
use protocol::trace::TraceId;
use tracing::{info, warn};

use super::VmDriver;
use crate::core::sizer::Event;
use crate::shell::input::ReplySender;

impl VmDriver {
    pub(super) fn take_order(
        &mut self,
        now: Timestamp,
        order: SizeOrder,
        over: Option<u64>,
        reply: ReplySender,
    ) {
        let TraceId { vm, revision } = &order.trace;
        let is_held = self.sizer.order() == Some(&order);
        match overtaken::count(self.record.orders, over, is_held) {
            Ok(orders) => self.record.orders = orders,
            Err(overtaken) => {
                warn!(vm, revision, cpu = %order.cpu, memory = %order.memory, %overtaken, "order refused");
                // The client may have disconnected.
                let _ = reply.send(Err(overtaken.to_string()));
                return;
            }
        }
        if !is_held {
            self.record.order = Some(order.clone());
            (self.pending.is_unwritten, self.pending.is_unlogged) = (true, true);
        }
        self.hold(now, Event::Order(order), reply);
    }

    /// Logs the accepted order. After it has begun, since readers of the log share the guest's
    /// processors.
    fn log_order(&self) {
        if let Some(order) = &self.record.order {
            let TraceId { vm, revision } = &order.trace;
            info!(vm, revision, cpu = %order.cpu, memory = %order.memory, "size ordered");
        }
    }

    /// Passes an order to the sizer. The reply follows once its first actions have begun.
    pub(super) fn hold(&mut self, now: Timestamp, event: Event, reply: ReplySender) {
        self.sizer.handle(now, event);
        self.pending.replies.push(reply);
    }

    /// Writes record and log, and replies, after this turn's actions have begun.
    pub(super) async fn send_replies(&mut self) {
        if self.pending.replies.is_empty() {
            return;
        }
        // Lets the tasks with commands to QEMU run first.
        tokio::task::yield_now().await;
        if std::mem::take(&mut self.pending.is_unlogged) {
            self.log_order();
        }
        if self.pending.is_unwritten {
            self.save();
        }
        for reply in std::mem::take(&mut self.pending.replies) {
            // The client may have disconnected.
            let _ = reply.send(Ok(self.state.current()));
        }
    }
}
