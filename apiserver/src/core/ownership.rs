//! Who set which field: `metadata.managedFields`, kept on every write, and server-side apply on top
//! of it.
//!
//! A plain write (`Update`) takes the fields it changed from whoever had them. An apply states all
//! fields its manager wants: fields it no longer states go if nobody else has them, and a field of
//! somebody else's that it would change is a conflict unless forced.

mod set;
mod typed;

use serde_json::{Map, Value, json};

pub use set::FieldSet;
pub use typed::{Comparison, compare, default_whole_fields, fields_of, merge, without};

use super::error::Cause;
use super::object::remove_meta;
use super::schema::Schema;
use super::time::WallTime;

/// Managers beyond which the oldest plain writers are folded into one, as the real server does.
const MAX_UPDATE_MANAGERS: usize = 10;
/// Name of the manager the oldest ones are folded into.
const FOLDED: &str = "ancient-changes";
/// Name of the manager of what was there before the first apply, where nobody's fields were kept
/// until then.
const BEFORE_APPLY: &str = "before-first-apply";

/// Members of `metadata` that nobody owns.
const UNOWNED_METADATA: [&str; 11] = [
    "creationTimestamp",
    "deletionGracePeriodSeconds",
    "deletionTimestamp",
    "generateName",
    "generation",
    "managedFields",
    "name",
    "namespace",
    "resourceVersion",
    "selfLink",
    "uid",
];

/// Entry of `managedFields`: a manager and its fields.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Manager {
    /// Name given by the client.
    pub name: String,
    /// Whether the operation is `Apply`, not `Update`.
    pub is_apply: bool,
    /// `apiVersion` the set is written in.
    pub api_version: String,
    /// `status`, or empty for the object itself.
    pub subresource: String,
    /// When the set last changed.
    pub time: String,
    /// Fields that the manager owns. An entry without any is not written.
    pub fields: FieldSet,
}

/// Client that writes, as its `managedFields` entry names it.
#[derive(Debug, Clone, Copy)]
pub struct Writer<'a> {
    /// Name given by the client.
    pub name: &'a str,
    /// `apiVersion` of the object.
    pub api_version: &'a str,
    /// `status`, or empty for the object itself.
    pub subresource: &'a str,
    /// Time of the write, for the entry's `time`.
    pub now: WallTime,
}

impl Manager {
    fn is_of(&self, writer: Writer<'_>, is_apply: bool) -> bool {
        self.name == writer.name
            && self.is_apply == is_apply
            && self.subresource == writer.subresource
    }

    fn read(entry: &Value) -> Option<Self> {
        let text = |name: &str| entry[name].as_str().unwrap_or_default().to_owned();
        let is_apply = match entry["operation"].as_str() {
            Some("Apply") => true,
            Some("Update") => false,
            _ => return None,
        };
        Some(Self {
            name: text("manager"),
            is_apply,
            api_version: text("apiVersion"),
            subresource: text("subresource"),
            time: text("time"),
            fields: FieldSet::from_json(entry.get("fieldsV1")?)?,
        })
    }

    fn to_json(&self) -> Value {
        let mut entry = json!({
            "manager": self.name,
            "operation": if self.is_apply { "Apply" } else { "Update" },
            "apiVersion": self.api_version,
            "fieldsType": "FieldsV1",
            "fieldsV1": self.fields.to_json(),
        });
        if !self.time.is_empty() {
            entry["time"] = json!(self.time);
        }
        if !self.subresource.is_empty() {
            entry["subresource"] = json!(self.subresource);
        }
        entry
    }
}

/// The managers of an object. Entries that cannot be read are dropped.
#[must_use]
pub fn managers(object: &Value) -> Vec<Manager> {
    let list = object["metadata"]["managedFields"].as_array();
    list.into_iter()
        .flatten()
        .filter_map(Manager::read)
        .collect()
}

/// The managers a plain write starts from: those the client sent if they can be read, else those
/// there were. A client clears them with an empty list or one empty entry.
#[must_use]
pub fn managers_after(old: &Value, sent: &Value) -> Vec<Manager> {
    match sent["metadata"]["managedFields"].as_array() {
        None => managers(old),
        Some(list) => {
            let read: Option<Vec<Manager>> = list.iter().map(Manager::read).collect();
            match read {
                Some(read) => read,
                None if list.len() == 1
                    && list[0].as_object().is_some_and(serde_json::Map::is_empty) =>
                {
                    Vec::new()
                }
                None => managers(old),
            }
        }
    }
}

/// Writes the managers into an object.
pub fn set_managers(object: &mut Value, managers: &[Manager]) {
    let filled = managers.iter().filter(|manager| !manager.fields.is_empty());
    let list: Vec<Value> = filled.map(Manager::to_json).collect();
    if list.is_empty() {
        remove_meta(object, "managedFields");
    } else {
        object["metadata"]["managedFields"] = Value::from(list);
    }
}

/// An object without the members nobody owns.
fn owned_part(object: &Value) -> Value {
    let Some(map) = object.as_object() else {
        return object.clone();
    };
    let mut owned = Map::new();
    for (name, member) in map {
        let part = match (name.as_str(), member) {
            ("apiVersion" | "kind", _) => continue,
            ("metadata", Value::Object(metadata)) => {
                // The list of owners is often the larger half of an object: it is not copied to be
                // thrown away.
                let kept = metadata
                    .iter()
                    .filter(|(name, _)| !UNOWNED_METADATA.contains(&name.as_str()));
                let kept: Map<String, Value> = kept.map(|(n, m)| (n.clone(), m.clone())).collect();
                if kept.is_empty() {
                    continue;
                }
                Value::Object(kept)
            }
            _ => member.clone(),
        };
        owned.insert(name.clone(), part);
    }
    Value::Object(owned)
}

/// The managers after a plain write from `old` (`None` = created) to `new`. Of an object whose
/// managers a client has cleared none are kept, until somebody applies to it.
#[must_use]
pub fn after_update(
    mut managers: Vec<Manager>,
    old: Option<&Value>,
    new: &Value,
    schema: &Schema,
    writer: Writer<'_>,
) -> Vec<Manager> {
    if old.is_some() && managers.is_empty() {
        return managers;
    }
    let new = owned_part(new);
    let mut found = match old {
        Some(old) => compare(&owned_part(old), &new, Some(schema)),
        None => Comparison {
            changed: fields_of(&new, Some(schema)),
            removed: FieldSet::default(),
        },
    };
    found.changed = root_free(found.changed);
    take_over(&mut managers, &found, |manager| {
        manager.is_of(writer, false)
    });
    if !found.changed.is_empty() {
        let entry = entry_of(&mut managers, writer, false);
        let fields = entry.fields.union(&found.changed);
        if fields != entry.fields || old.is_none() {
            entry.time = writer.now.to_string();
        }
        entry.fields = fields;
    }
    fold_oldest(&mut managers);
    managers
}

/// An object without any member is no field.
fn root_free(mut set: FieldSet) -> FieldSet {
    set.member = false;
    set
}

/// Takes changed fields from all others, and removed ones from everybody.
fn take_over(
    managers: &mut Vec<Manager>,
    found: &Comparison,
    is_writer: impl Fn(&Manager) -> bool,
) {
    for manager in managers.iter_mut() {
        if !is_writer(manager) {
            manager.fields = manager.fields.difference(&found.changed);
        }
        manager.fields = manager.fields.difference(&found.removed);
    }
    managers.retain(|manager| !manager.fields.is_empty());
}

fn entry_of<'a>(
    managers: &'a mut Vec<Manager>,
    writer: Writer<'_>,
    is_apply: bool,
) -> &'a mut Manager {
    let index = managers
        .iter()
        .position(|manager| manager.is_of(writer, is_apply));
    let index = index.unwrap_or_else(|| {
        managers.push(Manager {
            name: writer.name.to_owned(),
            is_apply,
            api_version: writer.api_version.to_owned(),
            subresource: writer.subresource.to_owned(),
            time: writer.now.to_string(),
            fields: FieldSet::default(),
        });
        managers.len() - 1
    });
    let entry = &mut managers[index];
    writer.api_version.clone_into(&mut entry.api_version);
    entry
}

fn fold_oldest(managers: &mut Vec<Manager>) {
    loop {
        let mut updates: Vec<usize> = (0..managers.len())
            .filter(|index| !managers[*index].is_apply)
            .collect();
        if updates.len() <= MAX_UPDATE_MANAGERS {
            return;
        }
        updates.sort_by(|a, b| managers[*a].time.cmp(&managers[*b].time));
        let (first, second) = (updates[0].min(updates[1]), updates[0].max(updates[1]));
        let folded = managers.remove(second);
        let kept = &mut managers[first];
        FOLDED.clone_into(&mut kept.name);
        kept.subresource = String::new();
        kept.fields = kept.fields.union(&folded.fields);
    }
}

/// What an apply comes to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Applied {
    /// The object to be kept, before defaulting.
    pub object: Value,
    /// Field managers after the apply, for `metadata.managedFields`.
    pub managers: Vec<Manager>,
}

/// Merges what a manager applies into the live object.
///
/// # Errors
/// One cause per conflict (`FieldManagerConflict`) when others own fields it would change and
/// `force` is not given.
pub fn apply(
    live: &Value,
    config: &Value,
    schema: &Schema,
    writer: Writer<'_>,
    force: bool,
) -> Result<Applied, Vec<Cause>> {
    let mut managers = managers(live);
    if managers.is_empty() {
        let there = root_free(fields_of(&owned_part(live), Some(schema)));
        let before = Writer {
            name: BEFORE_APPLY,
            ..writer
        };
        if !there.is_empty() {
            entry_of(&mut managers, before, false).fields = there;
        }
    }
    let stated = root_free(fields_of(&owned_part(config), Some(schema)));
    let merged = merge(live, config, Some(schema));
    let found = compare(&owned_part(live), &owned_part(&merged), Some(schema));
    let others = |manager: &&Manager| !manager.is_of(writer, true);
    if !force {
        let conflicts: Vec<Cause> = managers
            .iter()
            .filter(others)
            .flat_map(|manager| conflicts_with(manager, &found.changed))
            .collect();
        if !conflicts.is_empty() {
            return Err(conflicts);
        }
    }
    let index = managers
        .iter()
        .position(|manager| manager.is_of(writer, true));
    let before = index
        .map(|index| managers[index].fields.clone())
        .unwrap_or_default();
    take_over(&mut managers, &found, |manager| manager.is_of(writer, true));
    let everybody_else = managers.iter().filter(others);
    let held = everybody_else.fold(stated.clone(), |held, manager| held.union(&manager.fields));
    // A list item or map stays as long as anybody holds something inside it.
    let gone = before.unheld(&held);
    let object = without(&merged, &gone, Some(schema)).unwrap_or_else(|| json!({}));
    let entry = entry_of(&mut managers, writer, true);
    if entry.fields != stated {
        entry.time = writer.now.to_string();
    }
    entry.fields = stated;
    Ok(Applied { object, managers })
}

fn conflicts_with(manager: &Manager, changed: &FieldSet) -> Vec<Cause> {
    let shared = manager.fields.intersection(changed);
    let using = if manager.subresource.is_empty() {
        String::new()
    } else {
        format!(" with subresource \"{}\"", manager.subresource)
    };
    let since = if manager.is_apply {
        String::new()
    } else {
        format!(" using {}", manager.api_version)
    };
    let cause = |field: String| Cause {
        reason: "FieldManagerConflict".to_owned(),
        message: format!("conflict with \"{}\"{using}{since}", manager.name),
        field,
    };
    shared.paths().into_iter().map(cause).collect()
}

#[cfg(test)]
mod tests;
