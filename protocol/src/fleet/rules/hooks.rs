//! Rules of hooks.

use super::super::rollout::{Hook, Rollout};
use super::field::invalid;
use crate::admission::FieldError;
use crate::object::is_label;

/// Longest name of a hook.
const NAME_BYTES: usize = 63;
/// Most hooks of an environment.
const MAX_HOOKS: usize = 16;

pub(super) fn errors(rollout: &Rollout) -> Vec<FieldError> {
    let hooks = &rollout.hooks;
    if hooks.len() > MAX_HOOKS {
        let rule = "must be at most 16: let one program ask for several";
        return vec![invalid("rollout.hooks", rule, hooks.len())];
    }
    let mut errors = Vec::new();
    for (index, hook) in hooks.iter().enumerate() {
        let path = format!("rollout.hooks[{index}]");
        if !is_label(&hook.name, NAME_BYTES)
            || hooks[..index].iter().any(|one| one.name == hook.name)
        {
            let rule = "must be 1 to 63 small letters, digits and inner dashes, and the name of one \
                        hook";
            errors.push(invalid(&format!("{path}.name"), rule, hook.name.as_str()));
        }
        if !has_group(rollout, hook) {
            let rule = "must name a group of rollout.groups: leave it out for the deployment";
            errors.push(invalid(&format!("{path}.group"), rule, hook.group.as_str()));
        }
        if !(10..=86_400).contains(&hook.timeout_seconds) {
            let rule = "must be 10 to 86400";
            let value = hook.timeout_seconds;
            errors.push(invalid(&format!("{path}.timeoutSeconds"), rule, value));
        }
    }
    errors
}

fn has_group(rollout: &Rollout, hook: &Hook) -> bool {
    hook.group.is_empty() || rollout.groups.iter().any(|one| one.name == hook.group)
}
