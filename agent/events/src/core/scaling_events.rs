//! Content of scaling events: each change of size that begins, and each goal that differs enough
//! from the last one reported. Source: docs/compatibility/agent.md §4.7.

use protocol::time::WallTime;
use serde::{Deserialize, Serialize};

use super::billing::text;

/// The parts of a goal, in compute units times the multiplier.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct GoalComponents {
    /// Vote by load average; `None` without system metrics.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<f64>,
    /// Vote by memory usage; `None` without system metrics.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mem: Option<f64>,
    /// Vote by the file cache's working set; `None` without LFC metrics.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lfc: Option<f64>,
}

impl GoalComponents {
    fn parts(&self) -> [Option<f64>; 3] {
        [self.cpu, self.mem, self.lfc]
    }

    /// Whether the same parts are present and each differs by less than `threshold`.
    fn is_close(&self, other: &Self, threshold: f64) -> bool {
        let mut pairs = self.parts().into_iter().zip(other.parts());
        pairs.all(|pair| match pair {
            (Some(a), Some(b)) => (a - b).abs() < threshold,
            (None, None) => true,
            _ => false,
        })
    }

    fn scaled(self, by: f64) -> Self {
        let scale = |part: Option<f64>| part.map(|part| part * by);
        Self {
            cpu: scale(self.cpu),
            mem: scale(self.mem),
            lfc: scale(self.lfc),
        }
    }
}

/// One event in the JSON form that receivers get.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ScalingEvent {
    /// Time of the change or of the goal, RFC 3339 in UTC.
    pub timestamp: String,
    /// Region of the agent, `scalingEvents.regionName` of its configuration.
    pub region: String,
    /// Endpoint that the VM belongs to; empty without one.
    pub endpoint_id: String,
    /// `actual` or `hypothetical`.
    pub kind: String,
    /// Size before the change: thousandths of a compute unit times the multiplier.
    pub current_cu: u32,
    /// Size after the change, or the goal before bounds if `kind` is `hypothetical`; counted as in
    /// `current_cu`.
    pub target_cu: u32,
    /// Parts of the goal; with `hypothetical` only.
    #[serde(
        rename = "goalComponents",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    pub goal_components: Option<GoalComponents>,
}

/// Settings that all scaling events of an agent share.
#[derive(Debug, Clone, PartialEq)]
pub struct Reporting {
    /// Region that every event names, `scalingEvents.regionName`.
    pub region: String,
    /// Factor from compute units to those of the events, `scalingEvents.cuMultiplier`.
    pub multiplier: f64,
    /// Smallest change of one part after which a goal is reported again, in multiplied units
    /// (`scalingEvents.rereportThreshold`).
    pub threshold: f64,
}

impl Reporting {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "rounded, and bounded by the float's own saturation"
    )]
    fn thousandths(&self, units: u32) -> u32 {
        (1000.0 * f64::from(units) * self.multiplier).round() as u32
    }

    /// The event of a change of size from `current` to `target` compute units.
    #[must_use]
    pub fn actual(
        &self,
        wall: WallTime,
        endpoint_id: &str,
        current: u32,
        target: u32,
    ) -> ScalingEvent {
        ScalingEvent {
            timestamp: text(wall),
            region: self.region.clone(),
            endpoint_id: endpoint_id.to_owned(),
            kind: "actual".into(),
            current_cu: self.thousandths(current),
            target_cu: self.thousandths(target),
            goal_components: None,
        }
    }
}

/// The goal of one VM that was last reported.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct LastReported(Option<(u32, GoalComponents)>);

impl LastReported {
    /// The event of a goal before bounds, with its parts in compute units. `None` when the goal is
    /// the one last reported and no part differs by the threshold.
    pub fn hypothetical(
        &mut self,
        reporting: &Reporting,
        wall: WallTime,
        endpoint_id: &str,
        (current, goal): (u32, u32),
        parts: GoalComponents,
    ) -> Option<ScalingEvent> {
        let parts = parts.scaled(reporting.multiplier);
        let target = reporting.thousandths(goal);
        let is_reported = self
            .0
            .is_some_and(|(last, old)| last == target && parts.is_close(&old, reporting.threshold));
        if is_reported {
            return None;
        }
        self.0 = Some((target, parts));
        Some(ScalingEvent {
            kind: "hypothetical".into(),
            goal_components: Some(parts),
            ..reporting.actual(wall, endpoint_id, current, goal)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reporting() -> Reporting {
        Reporting {
            region: "r".into(),
            multiplier: 0.25,
            threshold: 0.25,
        }
    }

    fn parts(cpu: f64, mem: Option<f64>) -> GoalComponents {
        GoalComponents {
            cpu: Some(cpu),
            mem,
            lfc: None,
        }
    }

    #[test]
    fn event_equals_the_deployed_agents_byte_for_byte() {
        let at = WallTime::parse("2024-10-31T23:00:00.5Z").expect("parses");
        let mut last = LastReported::default();
        let event = last.hypothetical(&reporting(), at, "ep-x", (1, 2), parts(1.52, Some(1.0)));
        assert_eq!(
            serde_json::to_string(&event.expect("the first one")).expect("encodes"),
            r#"{"timestamp":"2024-10-31T23:00:00.5Z","region":"r","endpoint_id":"ep-x","kind":"hypothetical","current_cu":250,"target_cu":500,"goalComponents":{"cpu":0.38,"mem":0.25}}"#
        );
        let event = reporting().actual(at, "", 4, 3);
        assert_eq!(
            serde_json::to_string(&event).expect("encodes"),
            r#"{"timestamp":"2024-10-31T23:00:00.5Z","region":"r","endpoint_id":"","kind":"actual","current_cu":1000,"target_cu":750}"#
        );
    }

    #[test]
    fn goal_is_reported_again_only_after_a_large_enough_change() {
        let mut last = LastReported::default();
        let mut is_reported = |goal, parts| {
            let event = last.hypothetical(&reporting(), WallTime(0), "e", (1, goal), parts);
            event.is_some()
        };
        assert!(is_reported(2, parts(1.6, None)));
        assert!(!is_reported(2, parts(1.6, None)));
        assert!(
            !is_reported(2, parts(2.5, None)),
            "0.225 after the multiplier"
        );
        assert!(
            is_reported(2, parts(2.7, None)),
            "measured from the last one reported"
        );
        assert!(is_reported(3, parts(2.7, None)), "another goal");
        assert!(
            is_reported(3, parts(2.7, Some(0.1))),
            "a part that was not there"
        );
        assert!(is_reported(3, parts(2.7, None)), "and one that is gone");
        assert!(
            is_reported(3, parts(3.7, None)),
            "a change of the threshold itself"
        );
    }
}
