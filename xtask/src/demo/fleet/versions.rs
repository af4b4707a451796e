//! The versions of a demo of rollouts: one good, and three with a fault each.

/// A version, and how its rollout ends.
pub(super) struct Version {
    pub(super) id: &'static str,
    pub(super) version: &'static str,
    pub(super) program: &'static str,
    pub(super) ends: &'static str,
}

pub(super) const GOOD: Version = Version {
    id: "good",
    version: "0.1.1",
    program: "next-monitor",
    ends: "Complete",
};

pub(super) const BAD: [Version; 3] = [
    Version {
        id: "crash",
        version: "0.1.2",
        program: "crashing-part",
        ends: "Unhealthy",
    },
    Version {
        id: "leak",
        version: "0.1.3",
        program: "leaking-part",
        ends: "Unhealthy",
    },
    Version {
        id: "deaf",
        version: "0.1.4",
        program: "deaf-part",
        ends: "Unhealthy",
    },
];
