//! Why are the parts of a guest unknown? Driver and commands say it in the same words.

use fleet_core::{Observed, PartFacts, Returned};
use protocol::parts::{NOT_KEPT, PartName, PartState, PartStates, TAKEN_BACK};
use serde::Serialize;

/// Time after its start in which a guest's daemon need not have named its parts, seconds.
const GRACE_SECONDS: u64 = 120;

/// Why the parts of a guest are unknown. The text is stable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum Unmanaged {
    /// A daemon of ours that is older than parts.
    #[serde(rename = "its image has a guest daemon without parts")]
    OldDaemon,
    /// NeonVM's daemon, which knows no parts.
    #[serde(rename = "its image has NeonVM's guest daemon")]
    NeonvmDaemon,
    /// The daemon may be on its way.
    #[serde(rename = "its guest daemon has not answered")]
    Silent,
    /// The runner is away or has ended.
    #[serde(rename = "its runner does not answer")]
    NoRunner,
    /// The runner is newer than the reader.
    #[serde(rename = "its runner reports parts that this version cannot read")]
    Unreadable,
    /// Commands ask runners by their local sockets alone.
    #[serde(rename = "the runners of a cluster are not asked")]
    InCluster,
}

/// What a runner has of a guest's daemon that names no parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DaemonSigns {
    /// It named the guest's boot, as ours do.
    pub has_boot: bool,
    /// It named a number of CPUs, as NeonVM's does too.
    pub has_cpus: bool,
    /// Time since the start of the guest's QEMU. `None` if unknown.
    pub uptime_seconds: Option<u64>,
}

impl Unmanaged {
    /// The reason in words.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Self::OldDaemon => "its image has a guest daemon without parts",
            Self::NeonvmDaemon => "its image has NeonVM's guest daemon",
            Self::Silent => "its guest daemon has not answered",
            Self::NoRunner => "its runner does not answer",
            Self::Unreadable => "its runner reports parts that this version cannot read",
            Self::InCluster => "the runners of a cluster are not asked",
        }
    }

    /// The reason of a guest whose daemon names no parts. A guest that has just begun may not have
    /// sent its first report.
    #[must_use]
    pub fn without_parts(signs: DaemonSigns) -> Self {
        let is_new = signs
            .uptime_seconds
            .is_some_and(|uptime| uptime < GRACE_SECONDS);
        if is_new {
            Self::Silent
        } else if signs.has_boot {
            Self::OldDaemon
        } else if signs.has_cpus {
            Self::NeonvmDaemon
        } else {
            Self::Silent
        }
    }
}

/// A part of a guest, as the engine reads it.
#[must_use]
pub fn observed(parts: Result<&PartStates, Unmanaged>, part: PartName) -> Observed {
    match parts {
        Ok(states) => match states.get(&part) {
            Some(state) => seen(state.clone()),
            None => Observed::Unmanaged("its guest daemon does not report the part".to_owned()),
        },
        Err(Unmanaged::NoRunner) => Observed::Unreachable,
        Err(Unmanaged::Silent) => Observed::Silent,
        Err(reason) => Observed::Unmanaged(reason.text().to_owned()),
    }
}

/// A part whose daemon reports it.
#[must_use]
pub fn seen(state: PartState) -> Observed {
    let returned = match state.reason.as_str() {
        NOT_KEPT => Returned::NotKept,
        TAKEN_BACK => Returned::ByHost,
        _ => Returned::Ended,
    };
    Observed::Seen(PartFacts { state, returned })
}

#[cfg(test)]
mod tests {
    use protocol::parts::{PartPhase, PartSource};

    use super::*;

    #[test]
    fn text_is_the_one_in_json() {
        for reason in [
            Unmanaged::OldDaemon,
            Unmanaged::NeonvmDaemon,
            Unmanaged::Silent,
            Unmanaged::NoRunner,
            Unmanaged::Unreadable,
            Unmanaged::InCluster,
        ] {
            assert_eq!(serde_json::json!(reason), reason.text());
        }
    }

    #[test]
    fn guest_that_has_just_begun_is_not_unmanaged() {
        let signs = |has_boot, has_cpus, uptime_seconds| DaemonSigns {
            has_boot,
            has_cpus,
            uptime_seconds,
        };
        let rows = [
            (signs(true, true, Some(119)), Unmanaged::Silent),
            (signs(true, true, Some(120)), Unmanaged::OldDaemon),
            (signs(false, true, Some(5)), Unmanaged::Silent),
            (signs(false, true, Some(500)), Unmanaged::NeonvmDaemon),
            (signs(true, true, None), Unmanaged::OldDaemon),
            (signs(false, false, Some(500)), Unmanaged::Silent),
        ];
        for (signs, expected) in rows {
            assert_eq!(Unmanaged::without_parts(signs), expected, "{signs:?}");
        }
    }

    #[test]
    fn return_names_who_took_the_program_back() {
        let state = |reason: &str| PartState {
            version: String::new(),
            sha256: String::new(),
            from: PartSource::Image,
            phase: PartPhase::Back,
            left_s: 0,
            token: "t".to_owned(),
            reason: reason.to_owned(),
            starts: 1,
            resident_bytes: 0,
        };
        for (reason, expected) in [
            (NOT_KEPT, Returned::NotKept),
            (TAKEN_BACK, Returned::ByHost),
            ("it ended with status 1", Returned::Ended),
        ] {
            let states = PartStates::from([(PartName::Monitor, state(reason))]);
            let Observed::Seen(facts) = observed(Ok(&states), PartName::Monitor) else {
                panic!("a part with a state is seen");
            };
            assert_eq!(facts.returned, expected, "{reason}");
            let other = observed(Ok(&states), PartName::Guestd);
            assert!(matches!(other, Observed::Unmanaged(_)), "{other:?}");
        }
    }
}
