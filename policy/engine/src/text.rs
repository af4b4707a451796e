//! `tostring` and `string.format` without addresses: a table or a function is written as its
//! type's name. Interpolated strings are compiled to `string.format`.

use mlua::{Function, Lua, MultiValue, Result, Table, Value};

use crate::globals::member;

/// Replaces both functions.
pub(crate) fn replace(lua: &Lua, globals: &Table) -> Result<()> {
    let original: Function = globals.raw_get("tostring")?;
    let to_string = move |lua: &Lua, value: Value| match named(lua, value)? {
        text @ Value::String(_) => Ok(text),
        value => original.call(value),
    };
    globals.raw_set("tostring", lua.create_function(to_string)?)?;
    let original = member(globals, "string", "format")?;
    let format = move |lua: &Lua, arguments: MultiValue| {
        let named = arguments.into_iter().map(|value| named(lua, value));
        original.call::<Value>(named.collect::<Result<MultiValue>>()?)
    };
    globals
        .raw_get::<Table>("string")?
        .raw_set("format", lua.create_function(format)?)
}

/// The value, or its type's name where Luau would write an address.
fn named(lua: &Lua, value: Value) -> Result<Value> {
    match value {
        Value::Nil
        | Value::Boolean(_)
        | Value::Integer(_)
        | Value::Number(_)
        | Value::String(_) => Ok(value),
        other => lua.create_string(other.type_name()).map(Value::String),
    }
}
