//! Rules of environments of the control plane.

use super::super::environment::{EnvironmentSpec, EnvironmentType};
use super::field::invalid;
use crate::admission::FieldError;

pub(super) fn errors(spec: &EnvironmentSpec) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if !spec.is_cron() && spec.r#type != EnvironmentType::of(spec.part) {
        let rule = "must be Service for the parts scheduler, controller and fleet, and Daemon or \
                    Cron for the others";
        errors.push(invalid("type", rule, spec.r#type.as_str()));
    }
    let Some(service) = spec.service else {
        return errors;
    };
    if !spec.part.is_service() {
        let rule = "is only for the parts scheduler, controller and fleet: leave it out";
        errors.push(invalid("service", rule, ""));
    }
    if !(100..=200).contains(&service.max_active_percent) {
        let rule = "must be 100 to 200";
        let value = service.max_active_percent;
        errors.push(invalid("service.maxActivePercent", rule, value));
    }
    if !(60..=3600).contains(&service.progress_seconds) {
        let rule = "must be 60 to 3600";
        let value = service.progress_seconds;
        errors.push(invalid("service.progressSeconds", rule, value));
    }
    errors
}
