//! Planted faults.

/// A fault planted in the surroundings, which a check must notice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FleetSabotage {
    /// Guests forget their tokens, and every call is repeated (F4).
    ForgottenTokens,
    /// Every pending deployment is set going (F2).
    SecondDeployment,
    /// Turns are written three at a time beyond the engine's (F3).
    ExtraTurns,
    /// The gate of a deployment is not stored (F12).
    UnnamedGate,
    /// The lock is never emptied (F13).
    StuckLock,
    /// Guests take lower epochs (F14).
    LowerEpochs,
    /// Ends of turns that were left are not stored (F17).
    OpenTurns,
    /// Guests that run their image's program report another one (F1).
    FalseReports,
    /// The engine does not see the windows (F5).
    NoWindows,
    /// The engine does not see resizes (F8).
    HiddenResizes,
    /// The judge does not see what a release does (F11).
    HiddenHarm,
    /// The engine does not see that the other part of a guest is in a turn (F9).
    HiddenPeers,
    /// The engine does not see that a peer speaks no common version (F10).
    HiddenSkew,
    /// Guests run a program that no revision names (F6).
    ForgedPrograms,
    /// The epoch of each turn is stored as the first one (F7).
    FallingEpochs,
    /// Every record is refused (F15).
    RefusedRecords,
    /// A second engine with the same events sees other worlds (F18).
    OtherWorlds,
    /// Guests that left keep their program, and report the image's (B16).
    FalseReturns,
    /// Trials have no end, and orders to guests on trial are lost (F16).
    EndlessTrials,
}
