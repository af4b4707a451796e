//! What goes into the engine, and what comes out of it.

use protocol::fleet::{
    DeploymentSpec, DeploymentStatus, EnvironmentStatus, InstancePart, TurnSpec,
};
use protocol::time::{Timestamp, WallTime};

use crate::cause::EndCause;
use crate::world::World;

/// Time as the driver reads it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Now {
    /// For durations within this run.
    pub monotonic: Timestamp,
    /// For times that objects keep.
    pub wall: WallTime,
}

/// Something that happened.
#[derive(Debug)]
pub enum Event {
    /// What the driver read. `basis` is `Engine::basis` from before the first read.
    World {
        /// Number of finished writes that the world holds.
        basis: u64,
        /// Objects and guests.
        world: Box<World>,
    },
    /// End of an action.
    Done {
        /// Id of the action.
        id: u64,
        /// How it ended.
        outcome: Outcome,
    },
    /// Another engine leads. This one does nothing more.
    LeadLost,
}

/// How an action ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// It was carried out as ordered.
    Done,
    /// The object has changed, or a newer order was seen.
    Conflict,
    /// No connection, no room or no time. It may have been carried out.
    Transient(String),
    /// The part cannot change now.
    Busy(String),
    /// The program cannot run in this guest.
    Refused(String),
    /// The program on trial has been taken back already.
    GoneBack(String),
    /// The guest does not have the program.
    NothingStaged,
}

/// Something to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Change an object, if it is as it was read.
    Write {
        /// Names the action in [`Event::Done`].
        id: u64,
        /// The change to make.
        write: Write,
    },
    /// Send an order to a guest.
    Call {
        /// Names the action in [`Event::Done`].
        id: u64,
        /// Name of the guest's instance.
        guest: String,
        /// The order to send.
        call: Call,
    },
}

/// Change of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Write {
    /// Status of the environment.
    Environment(EnvironmentStatus),
    /// Finalizer of the environment: added before a deployment begins, or taken away.
    Finalizer(bool),
    /// Status of a deployment.
    Deployment {
        /// Name in its namespace.
        name: String,
        /// Its next status.
        status: DeploymentStatus,
    },
    /// A new deployment.
    Create {
        /// Name in its namespace.
        name: String,
        /// What people asked for.
        spec: DeploymentSpec,
    },
    /// Turn of a guest, in the spec of its instance. The instance may be new.
    Turn {
        /// Name of the guest's instance.
        guest: String,
        /// The turn, which replaces the one before.
        turn: TurnSpec,
    },
    /// End of a turn, in the status of its instance.
    End {
        /// Name of the guest's instance.
        guest: String,
        /// Why it ended, for figures. The part has the text.
        cause: EndCause,
        /// State of the part.
        part: InstancePart,
    },
}

/// Order to a guest. Repeated orders of a token act once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Call {
    /// Bring the program.
    Push(TurnSpec),
    /// Begin the trial.
    Try {
        /// Token of the turn.
        token: String,
        /// Epoch of the turn.
        epoch: u64,
        /// Time after which the guest goes back by itself.
        seconds: u64,
    },
    /// Keep the program.
    Keep {
        /// Token of the turn.
        token: String,
    },
    /// Return to the program before the trial.
    Back {
        /// Token of the turn.
        token: String,
    },
}
