//! What a machine does that hears too few others.

/// More machines than these belong into Kubernetes.
pub const MAX_MACHINES: usize = 16;

/// What a machine does without a majority.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Alone {
    /// The counts of sets stay as they are. Sizing of VMs goes on: it needs no peer.
    Hold,
    /// The machines that hear each other plan for themselves.
    Local,
}

/// The operator's rules. The same on every machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// Number of machines. `None` takes the largest number seen in seven days.
    pub expected: Option<usize>,
    /// Several machines without a majority.
    pub on_minority: Alone,
    /// One machine of three or more.
    pub on_alone: Alone,
    /// One machine of two, where neither can have a majority without the other.
    pub on_pair_alone: Alone,
    /// Below this number of machines nothing is planned.
    pub min_cluster: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            expected: None,
            on_minority: Alone::Hold,
            on_alone: Alone::Hold,
            on_pair_alone: Alone::Local,
            min_cluster: 1,
        }
    }
}

/// Why a machine does not plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HoldReason {
    /// It hears half of the expected machines or fewer.
    Minority,
    /// It hears no other machine.
    Alone,
    /// It hears fewer machines than `minCluster`.
    MinCluster,
}

impl HoldReason {
    /// Word for output and logs.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Minority => "minority",
            Self::Alone => "alone",
            Self::MinCluster => "min_cluster",
        }
    }
}

/// What a machine may do with the machines that it hears.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Quorum {
    /// More than half are there.
    Majority,
    /// They are too few, and the operator lets them plan for themselves.
    Local,
    /// Nothing is planned.
    Hold(HoldReason),
}

impl Settings {
    /// What `alive` machines may do, with this one among them, if there should be `expected`.
    #[must_use]
    pub fn quorum(&self, alive: usize, expected: usize) -> Quorum {
        if alive < self.min_cluster {
            return Quorum::Hold(HoldReason::MinCluster);
        }
        if alive * 2 > expected {
            return Quorum::Majority;
        }
        let (rule, reason) = match (alive, expected) {
            (1, 2) => (self.on_pair_alone, HoldReason::Alone),
            (1, _) => (self.on_alone, HoldReason::Alone),
            _ => (self.on_minority, HoldReason::Minority),
        };
        match rule {
            Alone::Local => Quorum::Local,
            Alone::Hold => Quorum::Hold(reason),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Requirement: V22
    #[test]
    fn v22_table_of_machines_heard_and_expected() {
        let default = Settings::default();
        let hold = |reason| Quorum::Hold(reason);
        let rows = [
            (1, 1, Quorum::Majority),
            (2, 2, Quorum::Majority),
            (1, 2, Quorum::Local),
            (1, 3, hold(HoldReason::Alone)),
            (1, 5, hold(HoldReason::Alone)),
            (2, 3, Quorum::Majority),
            (2, 4, hold(HoldReason::Minority)),
            (2, 5, hold(HoldReason::Minority)),
            (3, 5, Quorum::Majority),
            (8, 16, hold(HoldReason::Minority)),
            (9, 16, Quorum::Majority),
        ];
        for (alive, expected, quorum) in rows {
            assert_eq!(
                default.quorum(alive, expected),
                quorum,
                "{alive} of {expected}"
            );
        }
    }

    /// Requirement: V22
    #[test]
    fn v22_each_rule_of_the_operator_decides_its_case_alone() {
        let local = |change: fn(&mut Settings)| {
            let mut settings = Settings {
                on_pair_alone: Alone::Hold,
                ..Settings::default()
            };
            change(&mut settings);
            [(2, 5), (1, 5), (1, 2)]
                .map(|(alive, expected)| settings.quorum(alive, expected) == Quorum::Local)
        };
        assert_eq!(local(|_| ()), [false; 3]);
        assert_eq!(
            local(|s| s.on_minority = Alone::Local),
            [true, false, false]
        );
        assert_eq!(local(|s| s.on_alone = Alone::Local), [false, true, false]);
        assert_eq!(
            local(|s| s.on_pair_alone = Alone::Local),
            [false, false, true]
        );
        let few = Settings {
            min_cluster: 3,
            on_minority: Alone::Local,
            ..Settings::default()
        };
        assert_eq!(few.quorum(2, 2), Quorum::Hold(HoldReason::MinCluster));
        assert_eq!(few.quorum(3, 3), Quorum::Majority);
    }
}
