//! The permit: may one more guest be away, and which gate holds it?

use protocol::fleet::Rollout;

/// Why a guest has no turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Gate {
    /// Too few others are settled and healthy.
    Budget,
    /// The most guests are in flight.
    InFlight,
    /// The most guests of its node are in flight.
    Node,
    /// Its VM does not run.
    NotRunning,
    /// Its VM is being resized. Scaling comes first.
    Resizing,
    /// Its VM is being migrated.
    Migrating,
    /// Its other part is in a turn.
    PeerInFlight,
    /// Another environment has the part of this guest.
    Claim,
    /// Its runner or its daemon does not answer.
    Unreachable,
    /// A pause follows its last attempt.
    Pause,
    /// An attempt that nobody ordered was less than an hour ago.
    Spacing,
    /// No window is open, or a trial does not fit into it.
    Window,
    /// Its group, or its part of the group, does not go.
    Group,
    /// Changed guests are watched.
    Bake,
    /// The watch brought too few figures.
    Inconclusive,
    /// The guest is short of memory, or asks for more. Scaling comes first.
    Pressure,
    /// The agent of the node asks to go on for now.
    Restart,
    /// A peer speaks no common version of a link.
    Skew,
    /// A part that goes before is older.
    Order,
    /// Somebody else changed what the environment sets.
    Drift,
    /// Release metadata has expired.
    Freshness,
    /// The image of the release is not signed by the key of images.
    Signature,
    /// A hook has not allowed the deployment to go on.
    Hook,
    /// A health check of the operator's calls the guest unhealthy.
    Check,
    /// A label keeps the guest out.
    OptedOut,
    /// The release did harm.
    Halted,
    /// The fleet cannot change parts of the guest.
    Unmanaged,
}

impl Gate {
    /// All gates, in the order of their declaration.
    pub const ALL: [Self; 27] = [
        Self::Budget,
        Self::InFlight,
        Self::Node,
        Self::NotRunning,
        Self::Resizing,
        Self::Migrating,
        Self::PeerInFlight,
        Self::Claim,
        Self::Unreachable,
        Self::Pause,
        Self::Spacing,
        Self::Window,
        Self::Group,
        Self::Bake,
        Self::Inconclusive,
        Self::Pressure,
        Self::Restart,
        Self::Skew,
        Self::Order,
        Self::Drift,
        Self::Freshness,
        Self::Signature,
        Self::Hook,
        Self::Check,
        Self::OptedOut,
        Self::Halted,
        Self::Unmanaged,
    ];

    /// Whether the deadline of a deployment leaves out the time behind this gate.
    #[must_use]
    pub const fn stops_the_deadline(self) -> bool {
        matches!(self, Self::Window | Self::Bake)
    }

    /// Name in objects.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Budget => "budget",
            Self::InFlight => "in-flight",
            Self::Node => "node",
            Self::NotRunning => "not-running",
            Self::Resizing => "resizing",
            Self::Migrating => "migrating",
            Self::PeerInFlight => "peer-in-flight",
            Self::Claim => "claim",
            Self::Unreachable => "unreachable",
            Self::Pause => "pause",
            Self::Spacing => "spacing",
            Self::Window => "window",
            Self::Group => "group",
            Self::Bake => "bake",
            Self::Inconclusive => "inconclusive",
            Self::Pressure => "pressure",
            Self::Restart => "restart",
            Self::Skew => "skew",
            Self::Order => "order",
            Self::Drift => "drift",
            Self::Freshness => "freshness",
            Self::Signature => "signature",
            Self::Hook => "hook",
            Self::Check => "check",
            Self::OptedOut => "opted-out",
            Self::Halted => "halted",
            Self::Unmanaged => "unmanaged",
        }
    }

    /// The gate, in words.
    #[must_use]
    pub const fn detail(self) -> &'static str {
        match self {
            Self::Budget => "too few other guests are settled and healthy",
            Self::InFlight => "as many guests as allowed are in a turn",
            Self::Node => "as many guests of its node as allowed are in a turn",
            Self::NotRunning => "its VM does not run",
            Self::Resizing => "its VM is being resized",
            Self::Migrating => "its VM is being migrated",
            Self::PeerInFlight => "its other part is in a turn",
            Self::Claim => "another environment has the part of this guest",
            Self::Unreachable => "its runner, its daemon or its node does not answer",
            Self::Pause => "a pause follows its last attempt",
            Self::Spacing => {
                "its last attempt is less than an hour ago, and nobody ordered this one"
            }
            Self::Window => "no window is open in which a trial fits",
            Self::Group => "guests of a group before it, or its group's canaries, go first",
            Self::Bake => "the guests that changed are watched",
            Self::Inconclusive => {
                "the watch brought too few figures: stop, or set onInconclusive to Proceed"
            }
            Self::Pressure => "it is short of memory or asks for more",
            Self::Restart => "its agent must not restart now, as its schedule says",
            Self::Skew => "a peer speaks no common version of a link",
            Self::Order => "a part that goes before it is older",
            Self::Drift => "somebody else changed what the environment sets",
            Self::Freshness => "the release metadata has expired",
            Self::Signature => "the image of the release is not signed by the key of images",
            Self::Hook => "a hook has not allowed it",
            Self::Check => "its health check calls it unhealthy",
            Self::OptedOut => "a label keeps it out",
            Self::Halted => "the release did harm",
            Self::Unmanaged => "the fleet cannot change its parts",
        }
    }
}

/// Guests of an environment that count for the budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Fleet {
    /// All of them.
    pub matches: u32,
    /// Those that are settled and healthy.
    pub settled_healthy: u32,
    /// Those in a turn.
    pub in_flight: u32,
}

/// Fewest settled healthy guests at each grant.
#[must_use]
pub fn required(matches: u32, min_healthy_percent: u32) -> u32 {
    let may_be_away = 100_u64.saturating_sub(u64::from(min_healthy_percent));
    let away = (u64::from(matches) * may_be_away / 100).max(1);
    matches.saturating_sub(u32::try_from(away).unwrap_or(u32::MAX))
}

/// Whether one more guest may have a turn. `costs_room` is false for a guest that is known to be
/// unhealthy.
///
/// # Errors
/// With the gate that holds it.
pub fn permit(fleet: Fleet, rollout: &Rollout, costs_room: bool) -> Result<(), Gate> {
    if fleet.in_flight >= rollout.max_in_flight {
        return Err(Gate::InFlight);
    }
    let required = required(fleet.matches, rollout.min_healthy_percent);
    // A guest that is away already costs nothing.
    let room = fleet.settled_healthy.saturating_sub(required);
    if costs_room && room == 0 {
        return Err(Gate::Budget);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Requirement: B22
    #[test]
    fn small_fleets_go_one_at_a_time() {
        let rows = [
            (1, 90, 0),
            (1, 0, 0),
            (2, 99, 1),
            (3, 66, 2),
            (3, 90, 2),
            (3, 33, 1),
            (10, 90, 9),
            (10, 85, 9),
            (100, 90, 90),
            (100, 0, 0),
            (0, 90, 0),
        ];
        for (matches, percent, expected) in rows {
            assert_eq!(
                required(matches, percent),
                expected,
                "{matches} at {percent} %"
            );
        }
    }

    #[test]
    fn every_gate_has_its_own_name_and_text() {
        let names: std::collections::BTreeSet<&str> = Gate::ALL.map(Gate::as_str).into();
        let texts: std::collections::BTreeSet<&str> = Gate::ALL.map(Gate::detail).into();
        assert_eq!(names.len(), Gate::ALL.len());
        assert_eq!(texts.len(), Gate::ALL.len());
    }

    #[test]
    fn guest_that_is_away_already_costs_no_room() {
        let rollout = Rollout::default();
        let fleet = Fleet {
            matches: 10,
            settled_healthy: 5,
            in_flight: 0,
        };
        assert_eq!(permit(fleet, &rollout, false), Ok(()));
        assert_eq!(permit(fleet, &rollout, true), Err(Gate::Budget));
        let busy = Fleet {
            in_flight: 10,
            settled_healthy: 10,
            ..fleet
        };
        assert_eq!(permit(busy, &rollout, true), Err(Gate::InFlight));
    }

    /// Requirement: B22
    #[test]
    fn million_random_fleets_keep_their_share() {
        let mut seed = 1_u64;
        let mut below = |bound: u64| {
            seed = seed
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            u32::try_from((seed >> 33) % bound).unwrap_or(0)
        };
        for _ in 0..1_000_000 {
            let matches = below(40) + 1;
            let rollout = Rollout {
                min_healthy_percent: below(100),
                max_in_flight: below(20) + 1,
                ..Rollout::default()
            };
            let mut fleet = Fleet {
                matches,
                settled_healthy: matches - below(u64::from(matches) + 1),
                in_flight: 0,
            };
            while fleet.settled_healthy > 0 && permit(fleet, &rollout, true).is_ok() {
                fleet.settled_healthy -= 1;
                fleet.in_flight += 1;
                let share = matches * (100 - rollout.min_healthy_percent);
                let is_enough = if share >= 100 {
                    fleet.settled_healthy * 100 >= matches * rollout.min_healthy_percent
                } else {
                    fleet.settled_healthy + 1 >= matches
                };
                assert!(is_enough, "{fleet:?} {rollout:?}");
            }
        }
    }

    proptest! {
        /// Requirement: B22
        #[test]
        fn permit_never_takes_more_than_the_budget(
            matches in 0_u32..2000,
            percent in 0_u32..100,
            sick in 0_u32..2000,
            in_flight in 1_u32..1000,
        ) {
            let rollout = Rollout { min_healthy_percent: percent, max_in_flight: in_flight, ..Rollout::default() };
            let sick = sick.min(matches);
            let mut fleet = Fleet { matches, settled_healthy: matches - sick, in_flight: 0 };
            let before = fleet.settled_healthy;
            while fleet.settled_healthy > 0 && permit(fleet, &rollout, true).is_ok() {
                fleet.settled_healthy -= 1;
                fleet.in_flight += 1;
            }
            let granted = before - fleet.settled_healthy;
            prop_assert!(granted <= in_flight);
            if granted > 0 {
                let share = u64::from(matches) * u64::from(100 - percent);
                if share >= 100 {
                    let healthy = u64::from(fleet.settled_healthy) * 100;
                    prop_assert!(healthy >= u64::from(matches) * u64::from(percent));
                } else {
                    prop_assert_eq!(fleet.settled_healthy, matches - 1);
                }
            }
            // A healthy fleet always has a step.
            prop_assert!(sick > 0 || matches == 0 || granted > 0);
        }
    }
}
