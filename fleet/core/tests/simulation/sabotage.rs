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
    /// Trials have no end, and orders to guests on trial are lost (F16).
    EndlessTrials,
}
