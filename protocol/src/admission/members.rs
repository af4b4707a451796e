//! Members of an object by their path: names, joined by dots.

use serde_json::Value;

/// The member at a path. `null` if it is absent.
pub(super) fn at<'a>(object: &'a Value, path: &str) -> &'a Value {
    path.split('.').fold(object, |value, name| &value[name])
}

pub(super) fn at_mut<'a>(object: &'a mut Value, path: &str) -> Option<&'a mut Value> {
    path.split('.')
        .try_fold(object, |value, name| value.get_mut(name))
}
