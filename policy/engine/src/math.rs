//! Functions whose last bit differs between C libraries, computed by `libm` in Rust: an answer has
//! the same bytes on every machine.

use mlua::{Lua, Result, Table};

type Unary = (&'static str, fn(f64) -> f64);
type Binary = (&'static str, fn(f64, f64) -> f64);

const UNARY: [Unary; 11] = [
    ("acos", libm::acos),
    ("asin", libm::asin),
    ("cos", libm::cos),
    ("cosh", libm::cosh),
    ("exp", libm::exp),
    ("log10", libm::log10),
    ("sin", libm::sin),
    ("sinh", libm::sinh),
    ("tan", libm::tan),
    ("tanh", libm::tanh),
    ("atan", libm::atan),
];

const BINARY: [Binary; 2] = [("pow", libm::pow), ("atan2", libm::atan2)];

/// Names of the library `math` that are replaced.
pub(crate) fn replaced() -> impl Iterator<Item = &'static str> {
    let unary = UNARY.iter().map(|(name, _)| *name);
    let binary = BINARY.iter().map(|(name, _)| *name);
    unary.chain(binary).chain(["log"])
}

/// Replaces the functions in the library `math`.
pub(crate) fn replace(lua: &Lua, math: &Table) -> Result<()> {
    for (name, function) in UNARY {
        math.raw_set(name, lua.create_function(move |_, x: f64| Ok(function(x)))?)?;
    }
    for (name, function) in BINARY {
        let of_two = move |_: &Lua, (x, y): (f64, f64)| Ok(function(x, y));
        math.raw_set(name, lua.create_function(of_two)?)?;
    }
    let log = |_: &Lua, (x, base): (f64, Option<f64>)| Ok(logarithm(x, base));
    math.raw_set("log", lua.create_function(log)?)
}

fn logarithm(x: f64, base: Option<f64>) -> f64 {
    match base {
        None => libm::log(x),
        Some(2.0) => libm::log2(x),
        Some(10.0) => libm::log10(x),
        Some(base) => libm::log(x) / libm::log(base),
    }
}
