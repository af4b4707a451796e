//! Commands of the controller to a runner.

mod link;

use neonvm_controller::core::{Kind as Doing, Moment};
use protocol::runner::{CpusAhead, SizeOrder};
use protocol::time::Span;
use protocol::units::Resources;

use crate::journal::Note;

/// An order that is not answered in this time failed.
pub(crate) const ORDER_PATIENCE: Span = Span::from_secs(5);

/// Command to a runner.
#[derive(Debug, Clone)]
pub(crate) enum RunnerCommand {
    /// A size, over so many orders.
    Size(SizeOrder, Option<u64>),
    /// CPUs to be plugged ahead of an order.
    Ahead(CpusAhead),
}

/// Sender of a command, which waits for the response.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CommandOrigin {
    pub vm: usize,
    /// Number of the controller's process that sent the command.
    epoch: u64,
    /// Number of the command, over all commands of the controller.
    number: u64,
    kind: Doing,
    began: Moment,
}

impl RunnerCommand {
    fn kind(&self) -> Doing {
        match self {
            Self::Size(..) => Doing::SetSize,
            Self::Ahead(_) => Doing::PlugAhead,
        }
    }

    fn note(&self, vm: usize) -> Note {
        match self {
            Self::Size(order, _) => Note::Orders {
                vm,
                size: Resources {
                    cpu: order.cpu,
                    mem: order.memory,
                },
            },
            Self::Ahead(wish) => Note::PlugsAhead { vm, cpu: wish.cpu },
        }
    }
}
