//! Rules of windows, blackouts and the critical budget.

use super::super::environment::EnvironmentSpec;
use super::super::window::{Blackout, Day, KEY_WINDOWS, Window, is_time_zone};
use super::field::invalid;
use crate::admission::FieldError;

/// Most windows or blackouts.
const MAX_WINDOWS: usize = 32;
/// Most bytes of the annotation with an owner's windows.
const ANNOTATION_BYTES: usize = 8192;
/// Longest blackout, days: within it and the week after there is an opening.
const BLACKOUT_DAYS: i64 = 28;
/// Microseconds of a day.
const DAY: i64 = 86_400_000_000;

pub(super) fn errors(spec: &EnvironmentSpec) -> Vec<FieldError> {
    let mut errors = Vec::new();
    for (name, count) in [
        ("windows", spec.windows.len()),
        ("blackouts", spec.blackouts.len()),
    ] {
        if count > MAX_WINDOWS {
            errors.push(invalid(
                name,
                "must be at most 32: join those that overlap",
                count,
            ));
        }
    }
    for (index, window) in spec.windows.iter().enumerate() {
        if let Err((member, rule)) = check_window(window, spec.rollout.trial_seconds) {
            let value = serde_json::to_value(window).unwrap_or_default();
            errors.push(invalid(&format!("windows[{index}].{member}"), &rule, value));
        }
    }
    for (index, blackout) in spec.blackouts.iter().enumerate() {
        if let Some(rule) = blackout_rule(blackout) {
            let path = format!("blackouts[{index}].to");
            errors.push(invalid(&path, rule, blackout.to.to_micro_string()));
        }
    }
    if spec.critical.min_healthy_percent > 99 {
        let rule = "must be 0 to 99: with 100 no guest may ever change. Take 99 for one at a time";
        let percent = spec.critical.min_healthy_percent;
        errors.push(invalid("critical.minHealthyPercent", rule, percent));
    }
    errors
}

/// Checks a window of an environment or of an annotation.
///
/// # Errors
/// The member at fault, and the rule that it breaks.
pub fn check_window(window: &Window, trial_seconds: u64) -> Result<(), (&'static str, String)> {
    check_time(&window.days, window.start(), &window.time_zone)
        .map_err(|(member, rule)| (member, rule.to_owned()))?;
    if !(10..=1440).contains(&window.minutes) {
        return Err(("minutes", "must be 10 to 1440".to_owned()));
    }
    // No trial begins in the last trialSeconds + 60.
    let least = trial_seconds.saturating_add(60);
    if u64::from(window.minutes) * 60 <= least {
        let rule = format!("must be longer than a trial and a minute, {least} s: no trial fits");
        return Err(("minutes", rule));
    }
    Ok(())
}

/// Checks a weekly time. The error is the member at fault, and the rule that it breaks.
pub(super) fn check_time(
    days: &[Day],
    start: Option<(u8, u8)>,
    time_zone: &str,
) -> Result<(), (&'static str, &'static str)> {
    let is_repeated = (1..days.len()).any(|n| days[..n].contains(&days[n]));
    if days.is_empty() || is_repeated {
        return Err(("days", "must name a day, and each day once"));
    }
    if start.is_none() {
        return Err(("start", "must be a time of the day, as 02:00"));
    }
    if !is_time_zone(time_zone) {
        let rule = "must be a name of the time zone database, as Europe/Berlin or UTC";
        return Err(("timeZone", rule));
    }
    Ok(())
}

/// Reads the windows of an annotation, a JSON list.
///
/// # Errors
/// What is wrong with the text, for people.
pub fn parse_windows(text: &str, trial_seconds: u64) -> Result<Vec<Window>, String> {
    if text.len() > ANNOTATION_BYTES {
        return Err(format!(
            "{KEY_WINDOWS} must be at most {ANNOTATION_BYTES} bytes"
        ));
    }
    let windows: Vec<Window> = serde_json::from_str(text)
        .map_err(|error| format!("{KEY_WINDOWS} must be a JSON list of windows: {error}"))?;
    if windows.len() > MAX_WINDOWS {
        return Err(format!(
            "{KEY_WINDOWS} must have at most {MAX_WINDOWS} windows"
        ));
    }
    for (index, window) in windows.iter().enumerate() {
        check_window(window, trial_seconds)
            .map_err(|(member, rule)| format!("{KEY_WINDOWS}[{index}].{member} {rule}"))?;
    }
    Ok(windows)
}

fn blackout_rule(blackout: &Blackout) -> Option<&'static str> {
    let length = blackout.to.0.saturating_sub(blackout.from.0);
    if length <= 0 {
        Some("must be after its start")
    } else if length > BLACKOUT_DAYS * DAY {
        Some("must be at most 28 days after its start: to keep guests as they are, stop")
    } else {
        None
    }
}
