//! Rules of environments that verify at their times.

use super::super::environment::EnvironmentSpec;
use super::field::invalid;
use super::windows::check_time;
use crate::admission::FieldError;

pub(super) fn errors(spec: &EnvironmentSpec) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if spec.is_cron() && spec.part.is_image() {
        let rule = "must be Daemon or Service for parts that are images: Cron verifies programs of \
                    guests";
        errors.push(invalid("type", rule, spec.r#type.as_str()));
    }
    if spec.is_cron() != spec.cron.is_some() {
        let rule = "must name days and start for the type Cron, and is only for that type";
        errors.push(invalid("cron", rule, ""));
    }
    let changes_times = !spec.windows.is_empty() || !spec.blackouts.is_empty();
    if spec.is_cron() && changes_times {
        let rule = "is not for the type Cron, which changes no guest: leave it out";
        errors.push(invalid("windows", rule, spec.windows.len()));
    }
    if let Some(cron) = &spec.cron
        && let Err((member, rule)) = check_time(&cron.days, cron.start(), &cron.time_zone)
    {
        let value = serde_json::to_value(cron).unwrap_or_default();
        errors.push(invalid(&format!("cron.{member}"), rule, value));
    }
    errors
}
