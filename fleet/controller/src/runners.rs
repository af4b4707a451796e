//! Settings of moves to new runners.

use fleet::{MoveSettings, WantedRunner};
use protocol::fleet::{Blackout, Window, check_version, check_window};
use serde::{Deserialize, Serialize};

/// Bounds of `maxInFlight`.
const MAX_IN_FLIGHT: std::ops::RangeInclusive<usize> = 1..=100;
/// Longest name of an image, bytes.
const IMAGE_BYTES: usize = 1024;

/// Members of `runners`. With them running guests are moved to the image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct RunnersConfig {
    /// Image of the runner, by its digest.
    pub image: String,
    /// Version of the image's release.
    pub version: String,
    /// Whether guests go without waiting for a window.
    #[serde(default)]
    pub critical: bool,
    /// Whether guests without KVM are moved.
    #[serde(default)]
    pub without_kvm: bool,
    /// Guests that move at the same time.
    #[serde(default = "one")]
    pub max_in_flight: usize,
    /// Times at which guests move.
    #[serde(default)]
    pub windows: Vec<Window>,
    /// Times at which no guest moves.
    #[serde(default)]
    pub blackouts: Vec<Blackout>,
}

const fn one() -> usize {
    1
}

impl RunnersConfig {
    /// Checks the members.
    ///
    /// # Errors
    /// The member at fault and the rule that it breaks.
    pub fn check(&self) -> Result<(), String> {
        let digest = self.image.split_once("@sha256:");
        let is_pinned = digest.is_some_and(|(name, hex)| {
            let mut digits = hex.bytes();
            let is_hex = digits.all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
            !name.is_empty() && hex.len() == 64 && is_hex
        });
        if !is_pinned || self.image.len() > IMAGE_BYTES {
            let rule = "must be NAME@sha256:HEX: a tag may name another image later";
            return Err(format!("runners.image {rule}"));
        }
        check_version(&self.version).map_err(|rule| format!("runners.version {rule}"))?;
        if !MAX_IN_FLIGHT.contains(&self.max_in_flight) {
            return Err("runners.maxInFlight must be from 1 to 100".to_owned());
        }
        for window in &self.windows {
            let checked = check_window(window, 0);
            checked.map_err(|(member, rule)| format!("runners.windows.{member} {rule}"))?;
        }
        Ok(())
    }

    /// What the driver of moves is allowed.
    #[must_use]
    pub fn settings(&self) -> MoveSettings {
        MoveSettings {
            without_kvm: self.without_kvm,
            max_in_flight: self.max_in_flight,
            windows: self.windows.clone(),
            blackouts: self.blackouts.clone(),
            ..MoveSettings::default()
        }
    }

    /// The runner that guests should have.
    #[must_use]
    pub fn wanted(&self) -> WantedRunner {
        WantedRunner {
            to: self.image.clone(),
            version: self.version.clone(),
            is_critical: self.critical,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn sound() -> Value {
        json!({
            "image": format!("registry.example:5000/runner@sha256:{}", "0a".repeat(32)),
            "version": "1.2.3",
            "windows": [
                {"days": ["Sun"], "start": "02:00", "minutes": 60, "timeZone": "UTC"},
            ],
        })
    }

    fn read(value: Value) -> Result<RunnersConfig, String> {
        let config: RunnersConfig =
            serde_json::from_value(value).map_err(|error| error.to_string())?;
        config.check()?;
        Ok(config)
    }

    #[test]
    fn settings_follow_the_members_and_their_defaults() {
        let config = read(sound()).expect("sound");
        let settings = config.settings();
        assert!(settings.by_image && !settings.without_kvm);
        assert_eq!((settings.max_in_flight, settings.windows.len()), (1, 1));
        assert_eq!(settings.ordered_at, None, "windows hold");
        assert_eq!(config.wanted().to, config.image);
        assert!(!config.wanted().is_critical);
    }

    #[test]
    fn bad_member_is_refused_by_its_name() {
        let rows = [
            ("image", json!("runner"), "image"),
            ("image", json!("runner:1"), "image"),
            ("image", json!("runner@sha256:0a"), "image"),
            (
                "image",
                json!(format!("@sha256:{}", "0a".repeat(32))),
                "image",
            ),
            (
                "image",
                json!(format!("r@sha256:{}", "0A".repeat(32))),
                "image",
            ),
            (
                "image",
                json!(format!("{}@sha256:{}", "r".repeat(1024), "0a".repeat(32))),
                "image",
            ),
            ("version", json!("v1.2.3"), "version"),
            ("maxInFlight", json!(0), "maxInFlight"),
            ("maxInFlight", json!(101), "maxInFlight"),
            ("maxInFlight", json!(-1), "-1"),
            (
                "windows",
                json!([{"days": [], "start": "02:00", "minutes": 60, "timeZone": "UTC"}]),
                "windows",
            ),
            (
                "windows",
                json!([{"days": ["Sun"], "start": "02:00", "minutes": 60, "timeZone": "Mars"}]),
                "windows",
            ),
            ("other", json!(1), "other"),
        ];
        for (member, value, expected) in rows {
            let mut object = sound();
            object[member] = value;
            let problem = read(object).expect_err(member);
            assert!(problem.contains(expected), "{problem}");
        }
        for missing in ["image", "version"] {
            let mut object = sound();
            object.as_object_mut().expect("an object").remove(missing);
            assert!(read(object).is_err(), "{missing}");
        }
    }
}
