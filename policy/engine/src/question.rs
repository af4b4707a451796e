//! From a question to the table `i`.

use mlua::serde::SerializeOptions;
use mlua::{AnyUserData, Lua, LuaSerdeExt as _, Result, Table, Value};
use serde::Serialize;

/// Builds the table. Members of the question have the names that they have in JSON.
pub(crate) fn table(lua: &Lua, input: &impl Serialize, past: AnyUserData) -> Result<Table> {
    let options = SerializeOptions::new()
        .set_array_metatable(false)
        .serialize_none_to_null(false)
        .serialize_unit_to_null(false);
    match lua.to_value_with(input, options)? {
        Value::Table(table) => {
            table.raw_set("h", past)?;
            Ok(table)
        }
        other => Err(mlua::Error::RuntimeError(format!(
            "a question is a {}",
            other.type_name()
        ))),
    }
}
