//! Names that a policy can reach: an allowlist, frozen. All others are absent by every road: as a
//! global, by a field, by an index, by a method of a string, and by the compiler's built-in calls.
//!
//! The built-in calls of the compiler (`disabled_builtins`) ignore what stands in a library, but
//! only in a *safe environment*. The globals are none, and the list is kept beside that.

use mlua::chunk::Compiler;
use mlua::{Function, Lua, Result, StdLib, Table, Value};

use crate::{helpers, math, text};

const FUNCTIONS: [&str; 9] = [
    "assert", "error", "ipairs", "next", "pairs", "select", "tonumber", "tostring", "type",
];

const MATH: [&str; 36] = [
    "abs", "acos", "asin", "atan", "atan2", "ceil", "clamp", "cos", "cosh", "deg", "exp", "floor",
    "fmod", "frexp", "huge", "isfinite", "isinf", "isnan", "ldexp", "lerp", "log", "log10", "map",
    "max", "min", "modf", "pi", "pow", "rad", "round", "sign", "sin", "sinh", "sqrt", "tan",
    "tanh",
];

const TABLE: [&str; 16] = [
    "clear", "clone", "concat", "create", "find", "foreach", "foreachi", "freeze", "getn",
    "insert", "isfrozen", "maxn", "pack", "remove", "sort", "unpack",
];

const STRING: [&str; 17] = [
    "byte", "char", "find", "format", "gmatch", "gsub", "len", "lower", "match", "pack",
    "packsize", "rep", "reverse", "split", "sub", "unpack", "upper",
];

const BIT32: [&str; 15] = [
    "arshift", "band", "bnot", "bor", "btest", "bxor", "byteswap", "countlz", "countrz", "extract",
    "lrotate", "lshift", "replace", "rrotate", "rshift",
];

/// Libraries and their members that stay.
const LIBRARIES: [(&str, &[&str]); 4] = [
    ("bit32", &BIT32),
    ("math", &MATH),
    ("string", &STRING),
    ("table", &TABLE),
];

/// Libraries of the interpreter that are not opened, whose calls the compiler has built in.
const CLOSED: [(&str, &[&str]); 3] = [
    (
        "buffer",
        &[
            "readf32",
            "readf64",
            "readi16",
            "readi32",
            "readi8",
            "readinteger",
            "readu16",
            "readu32",
            "readu8",
            "writef32",
            "writef64",
            "writei16",
            "writei32",
            "writei8",
            "writeinteger",
            "writeu16",
            "writeu32",
            "writeu8",
        ],
    ),
    (
        "vector",
        &[
            "abs",
            "ceil",
            "clamp",
            "create",
            "cross",
            "dot",
            "floor",
            "lerp",
            "magnitude",
            "max",
            "min",
            "normalize",
            "sign",
        ],
    ),
    (
        "integer",
        &[
            "add", "band", "bnot", "bor", "bswap", "btest", "bxor", "clamp", "countlz", "countrz",
            "create", "div", "extract", "ge", "gt", "idiv", "le", "lrotate", "lshift", "lt", "max",
            "min", "mod", "mul", "neg", "rem", "rrotate", "rshift", "arshift", "sub", "tonumber",
            "udiv", "uge", "ugt", "ule", "ult", "urem",
        ],
    ),
];

/// Global functions that the compiler has built in and that are absent or replaced.
const BUILT_IN: [&str; 9] = [
    "getmetatable",
    "rawequal",
    "rawget",
    "rawlen",
    "rawset",
    "setmetatable",
    "tostring",
    "typeof",
    "unpack",
];

/// Compiler of policies.
pub(crate) fn compiler() -> Compiler {
    let closed = CLOSED.iter().flat_map(|(library, members)| {
        members
            .iter()
            .map(move |member| format!("{library}.{member}"))
    });
    let replaced = math::replaced().map(|name| format!("math.{name}"));
    let globals = BUILT_IN.iter().map(|name| (*name).to_owned());
    Compiler::new()
        .set_optimization_level(1)
        .set_debug_level(1)
        .set_disabled_builtins(globals.chain(closed).chain(replaced))
}

/// An interpreter with nothing but what a policy may reach.
pub(crate) fn interpreter() -> Result<Lua> {
    let libraries = StdLib::TABLE | StdLib::STRING | StdLib::BIT | StdLib::MATH;
    let lua = Lua::new_with(libraries, mlua::LuaOptions::default())?;
    let globals = lua.globals();
    let libraries = LIBRARIES.map(|(library, _)| library);
    keep(&globals, |name| {
        FUNCTIONS.contains(&name) || libraries.contains(&name)
    })?;
    for (library, members) in LIBRARIES {
        let table: Table = globals.raw_get(library)?;
        keep(&table, |name| members.contains(&name))?;
    }
    math::replace(&lua, &globals.raw_get("math")?)?;
    text::replace(&lua, &globals)?;
    globals.raw_set("std", helpers::table(&lua)?)?;
    for library in libraries.into_iter().chain(["std"]) {
        globals.raw_get::<Table>(library)?.set_readonly(true);
    }
    if let Some(strings) = lua.type_metatable::<mlua::LuaString>() {
        strings.set_readonly(true);
    }
    globals.set_safeenv(false);
    globals.set_readonly(true);
    Ok(lua)
}

/// Removes all members but those with these names.
fn keep(table: &Table, is_kept: impl Fn(&str) -> bool) -> Result<()> {
    let mut dropped = Vec::new();
    for pair in table.pairs::<Value, Value>() {
        let (key, _) = pair?;
        let name = key.as_string().map(|name| name.to_string_lossy());
        if !name.is_some_and(|name| is_kept(&name)) {
            dropped.push(key);
        }
    }
    dropped
        .into_iter()
        .try_for_each(|key| table.raw_set(key, Value::Nil))
}

/// A function of a library, by its name.
pub(crate) fn member(globals: &Table, library: &str, name: &str) -> Result<Function> {
    globals.raw_get::<Table>(library)?.raw_get(name)
}
