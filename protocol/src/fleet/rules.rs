//! What the schemas of the fleet's kinds cannot say, and the refusals that name a fix.

use serde_json::Value;

use self::field::{error, invalid};
use super::channel::ChannelSpec;
use super::deployment::{DeploymentKind, DeploymentSpec};
use super::environment::EnvironmentSpec;
use super::instance::{InstanceSpec, TurnSpec};
use super::kind::FleetKind;
use super::selector::Expression;
use super::texts::check_version;
use crate::admission::{FieldError, FieldErrorKind};
use crate::parts::TOKEN_BYTES;

/// Digits of a SHA-256.
const SHA256_DIGITS: usize = 64;
/// Most instances that a deployment names.
const MAX_INSTANCES: usize = 500;

/// Checks a new object beyond its schema.
///
/// # Errors
/// Every broken rule.
pub fn validate_create(kind: &str, object: &Value) -> Result<(), Vec<FieldError>> {
    let errors = match FleetKind::parse(kind) {
        Some(FleetKind::Environment) => environment(object),
        Some(FleetKind::Deployment) => deployment(object),
        Some(FleetKind::Instance) => instance(object),
        Some(FleetKind::Channel) => match ChannelSpec::of_object(object) {
            Ok(spec) => channel::errors(&spec),
            Err(problem) => unreadable(problem),
        },
        None => Vec::new(),
    };
    if errors.is_empty() {
        Ok(())
    } else {
        Err(errors)
    }
}

/// Checks a change beyond the schema.
///
/// # Errors
/// Every broken rule.
pub fn validate_update(kind: &str, old: &Value, new: &Value) -> Result<(), Vec<FieldError>> {
    validate_create(kind, new)?;
    let errors = match FleetKind::parse(kind) {
        Some(FleetKind::Environment) => kept(old, new, &["type", "part"]),
        Some(FleetKind::Deployment) => deployment_kept(old, new),
        Some(FleetKind::Instance) => epochs_grow(old, new),
        Some(FleetKind::Channel) | None => Vec::new(),
    };
    if errors.is_empty() {
        Ok(())
    } else {
        Err(errors)
    }
}

/// Checks a deletion.
///
/// # Errors
/// The rule that it breaks, with the fix.
pub fn validate_delete(kind: &str, object: &Value) -> Result<(), String> {
    let lock = &object["status"]["lock"];
    if FleetKind::parse(kind) != Some(FleetKind::Environment) || lock["kind"] != "User" {
        return Ok(());
    }
    let deployment = lock["deployment"].as_str().unwrap_or_default();
    Err(format!(
        "an environment is not deleted while a deployment of a person runs: stop {deployment} first"
    ))
}

fn unreadable(problem: String) -> Vec<FieldError> {
    vec![FieldError {
        field: "spec".to_owned(),
        kind: FieldErrorKind::Invalid,
        message: format!(".spec: {problem}"),
        value: Value::Null,
    }]
}

fn environment(object: &Value) -> Vec<FieldError> {
    let spec = match EnvironmentSpec::of_object(object) {
        Ok(spec) => spec,
        Err(problem) => return unreadable(problem),
    };
    let mut errors = Vec::new();
    errors.extend(channel::source_error(&spec.source));
    for (index, one) in spec.selector.match_expressions.iter().enumerate() {
        errors.extend(expression(index, one));
    }
    errors.extend(rollout::errors(&spec.rollout));
    errors.extend(hooks::errors(&spec.rollout));
    errors.extend(windows::errors(&spec));
    errors.extend(service::errors(&spec));
    errors.extend(cron::errors(&spec));
    errors
}

fn expression(index: usize, one: &Expression) -> Option<FieldError> {
    let rule = match (one.operator.compares(), one.values.is_empty()) {
        (true, true) => "must name a value: In and NotIn compare",
        (false, false) => "must be empty: Exists and DoesNotExist compare with nothing",
        _ => return None,
    };
    let path = format!("selector.matchExpressions[{index}].values");
    Some(invalid(&path, rule, one.values.clone()))
}

fn deployment(object: &Value) -> Vec<FieldError> {
    let spec = match DeploymentSpec::of_object(object) {
        Ok(spec) => spec,
        Err(problem) => return unreadable(problem),
    };
    let mut errors = Vec::new();
    if spec.environment.is_empty() {
        errors.push(invalid("environment", "must name an environment", ""));
    }
    let is_of_environment = spec
        .revision
        .strip_prefix(&format!("{}-r", spec.environment))
        .is_some_and(|number| number.parse::<u32>().is_ok());
    if !is_of_environment {
        let rule = "must name a revision of the environment, as ENVIRONMENT-r1";
        errors.push(invalid("revision", rule, spec.revision.as_str()));
    }
    if spec.instances.len() > MAX_INSTANCES {
        let rule = "must name at most 500 instances: leave it out for all";
        errors.push(invalid("instances", rule, spec.instances.len()));
    }
    if (spec.kind == DeploymentKind::Cron) != spec.tick.is_some() {
        let rule = "must name the time of a Cron, and is only for that kind";
        errors.push(invalid("tick", rule, object["spec"]["tick"].clone()));
    }
    if (spec.kind == DeploymentKind::Rollback) == spec.rollback_of.is_empty() {
        let rule = "must name the failed deployment of a Rollback, and is only for that kind";
        errors.push(invalid("rollbackOf", rule, spec.rollback_of.as_str()));
    }
    errors
}

fn instance(object: &Value) -> Vec<FieldError> {
    let spec = match InstanceSpec::of_object(object) {
        Ok(spec) => spec,
        Err(problem) => return unreadable(problem),
    };
    let turns = spec.parts.iter();
    turns
        .flat_map(|(part, turn)| turn_errors(part.as_str(), turn))
        .collect()
}

fn turn_errors(part: &str, turn: &TurnSpec) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let at = |member: &str| format!("parts.{part}.{member}");
    if let Err(rule) = check_version(&turn.version) {
        errors.push(invalid(&at("version"), rule, turn.version.as_str()));
    }
    let is_digit = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
    if turn.sha256.len() != SHA256_DIGITS || !turn.sha256.bytes().all(is_digit) {
        let rule = "must be 64 lower-case hexadecimal digits";
        errors.push(invalid(&at("sha256"), rule, turn.sha256.as_str()));
    }
    if !(1..=TOKEN_BYTES).contains(&turn.token.len()) {
        let rule = "must have 1 to 64 bytes";
        errors.push(invalid(&at("token"), rule, turn.token.as_str()));
    }
    errors
}

fn kept(old: &Value, new: &Value, members: &[&str]) -> Vec<FieldError> {
    let changed = members
        .iter()
        .filter(|member| old["spec"][**member] != new["spec"][**member]);
    changed
        .map(|member| {
            let rule = "is immutable: create another object";
            let value = &new["spec"][*member];
            error(FieldErrorKind::Forbidden, member, rule, value)
        })
        .collect()
}

fn deployment_kept(old: &Value, new: &Value) -> Vec<FieldError> {
    let members = [
        "environment",
        "revision",
        "kind",
        "instances",
        "rollbackOf",
        "reason",
        "tick",
    ];
    let mut errors = kept(old, new, &members);
    if old["spec"]["stop"] == true && new["spec"]["stop"] != true {
        let rule = "stays true: start another deployment";
        let value = &new["spec"]["stop"];
        errors.push(error(FieldErrorKind::Forbidden, "stop", rule, value));
    }
    errors
}

fn epochs_grow(old: &Value, new: &Value) -> Vec<FieldError> {
    let (Ok(old), Ok(new)) = (InstanceSpec::of_object(old), InstanceSpec::of_object(new)) else {
        return Vec::new();
    };
    let mut errors = Vec::new();
    for (part, turn) in &new.parts {
        let Some(before) = old.parts.get(part).filter(|before| *before != turn) else {
            continue;
        };
        if turn.epoch <= before.epoch {
            let path = format!("parts.{}.epoch", part.as_str());
            let rule = format!("must be above {}, that of the turn before", before.epoch);
            errors.push(invalid(&path, &rule, turn.epoch));
        }
    }
    errors
}

mod channel;
mod cron;
mod field;
mod hooks;
mod rollout;
mod service;
mod windows;

pub use windows::{check_window, parse_windows};

#[cfg(test)]
mod tests;
