//! What is told of a VM's sizes to whoever collects scaling events: each change that begins, and
//! what the goal alone would be. Source: docs/compatibility/agent.md §4.7.

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
    /// By the file cache's working set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lfc: Option<f64>,
}

impl GoalComponents {
    fn parts(&self) -> [Option<f64>; 3] {
        [self.cpu, self.mem, self.lfc]
    }

    /// Whether the same parts are there and each is within `threshold`.
    fn is_close(&self, other: &Self, threshold: f64) -> bool {
        let pairs = self.parts().into_iter().zip(other.parts());
        let mut pairs = pairs.map(|pair| match pair {
            (Some(a), Some(b)) => (a - b).abs() < threshold,
            (None, None) => true,
            _ => false,
        });
        pairs.all(|is_close| is_close)
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

/// An event as it is sent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ScalingEvent {
    /// When, RFC 3339.
    pub timestamp: String,
    /// Region of the agent, `scalingEvents.regionName` of its configuration.
    pub region: String,
    /// Whose VM; may be empty.
    pub endpoint_id: String,
    /// `actual` or `hypothetical`.
    pub kind: String,
    /// Thousandths of a unit times the multiplier.
    pub current_cu: u32,
    /// Size after the change, or the goal before bounds if `kind` is `hypothetical`; counted as in
    /// `current_cu`.
    pub target_cu: u32,
    /// Why; with `hypothetical` only.
    #[serde(
        rename = "goalComponents",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    pub goal_components: Option<GoalComponents>,
}

/// What stays the same between events.
#[derive(Debug, Clone, PartialEq)]
pub struct Reporting {
    /// Region that every event names, `scalingEvents.regionName`.
    pub region: String,
    /// Factor from compute units to those of the events, `scalingEvents.cuMultiplier`.
    pub multiplier: f64,
    /// Least change of a part of a goal that is reported again, `scalingEvents.rereportThreshold`.
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

    /// A change of size that begins.
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

/// Which goals of one VM have been told.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Told(Option<(u32, GoalComponents)>);

impl Told {
    /// A goal before bounds, its parts in units; `None` when it is so much like the last one told
    /// that it is not worth telling.
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
        let is_told = self
            .0
            .is_some_and(|(told, old)| told == target && parts.is_close(&old, reporting.threshold));
        if is_told {
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
    fn an_event_is_the_deployed_agents_byte_for_byte() {
        let at = WallTime::parse("2024-10-31T23:00:00.5Z").expect("parses");
        let mut told = Told::default();
        let event = told.hypothetical(&reporting(), at, "ep-x", (1, 2), parts(1.52, Some(1.0)));
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
    fn only_what_moved_is_told_again() {
        let mut told = Told::default();
        let mut tell = |goal, parts| {
            let event = told.hypothetical(&reporting(), WallTime(0), "e", (1, goal), parts);
            event.is_some()
        };
        assert!(tell(2, parts(1.6, None)));
        assert!(!tell(2, parts(1.6, None)));
        assert!(!tell(2, parts(2.5, None)), "0.225 after the multiplier");
        assert!(tell(2, parts(2.7, None)), "measured from the last one told");
        assert!(tell(3, parts(2.7, None)), "another goal");
        assert!(tell(3, parts(2.7, Some(0.1))), "a part that was not there");
        assert!(tell(3, parts(2.7, None)), "and one that is gone");
    }
}
