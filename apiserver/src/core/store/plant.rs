//! Objects as a test wants them, past every rule: what an older version let in, or what no client
//! may write.

use serde_json::Value;

use super::Store;
use crate::core::object::Object;
use crate::core::view::{Change, ObjectKey};

impl Store {
    /// Puts a state in the place of an object, with the defaults of its kind. `None` takes the
    /// object away, without its dependents.
    pub fn plant(&mut self, kind: &str, place: ObjectKey, value: Option<Value>) {
        if let Some(value) = value {
            let object = self.defaulted(kind, Object::new(value, 0));
            self.write(kind, place, object.value.clone());
        } else if let Some(last) = self.view.get(kind, &place.0, &place.1).cloned() {
            self.remove(kind, &place, last.value.clone());
        }
    }

    /// Changes that [`Store::plant`] has made since this was called last.
    pub fn planted(&mut self) -> Vec<Change> {
        std::mem::take(&mut self.changes)
    }
}
