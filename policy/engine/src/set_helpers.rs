//! The helpers of policies of sets.
//!
//! * `share("7%", total)`: a part of a whole, as a whole number.
//! * `divide(total, asks)`: what each name gets of a total, max-min, by priority. An ask is a
//!   number, or `{want = 4, unit = 2, priority = 1}`. Fractions are rounded up.
//! * `simple(f)`: a policy from a function that returns counts alone, as
//!   `{web = 3, api = "7%", batch = "rest"}`. Fractions are rounded up, and `nil` keeps the count.

use std::collections::BTreeMap;

use mlua::{Error, Function, Lua, LuaString, Result, Table, Value};
use policy_contract::divide::{PlainClaim, divide};
use policy_contract::sets::{MAX_SETS, share_of};

/// Word of a set that takes what the others leave.
const REST: &str = "rest";

/// Adds the helpers to the table `std`.
pub(crate) fn add(lua: &Lua, std: &Table) -> Result<()> {
    std.raw_set("share", lua.create_function(share)?)?;
    std.raw_set("divide", lua.create_function(divided)?)?;
    std.raw_set("simple", lua.create_function(simple)?)
}

fn share(_: &Lua, (text, total): (LuaString, f64)) -> Result<f64> {
    let text = text.to_str()?;
    let part = share_of(text.as_ref(), amount(total, "the total")?);
    let part = part.ok_or_else(|| {
        Error::RuntimeError("std.share: write a text as \"7%\", 0% to 100%".to_owned())
    })?;
    Ok(number(part))
}

fn divided(lua: &Lua, (total, asks): (f64, Table)) -> Result<Table> {
    let total = amount(total, "the total")?;
    let mut claims = BTreeMap::new();
    for pair in asks.pairs::<LuaString, Value>() {
        let (name, ask) = pair?;
        claims.insert(name.as_bytes().to_vec(), claim(&ask)?);
        if claims.len() > MAX_SETS {
            let rule = format!("std.divide: at most {MAX_SETS} asks");
            return Err(Error::RuntimeError(rule));
        }
    }
    let all: Vec<PlainClaim> = claims.values().copied().collect();
    let parts = lua.create_table()?;
    for (name, part) in claims.keys().zip(divide(u128::from(total), &all)) {
        parts.raw_set(lua.create_string(name)?, number(part))?;
    }
    Ok(parts)
}

fn claim(ask: &Value) -> Result<PlainClaim> {
    let Value::Table(members) = ask else {
        let asked = ask.as_f64().ok_or_else(|| {
            Error::RuntimeError("std.divide: an ask is a number or a table with want".to_owned())
        })?;
        return Ok(PlainClaim {
            asked: amount(asked, "an ask")?,
            unit: 1,
            priority: 0,
        });
    };
    let unit = members.raw_get::<Option<f64>>("unit")?.unwrap_or(1.0);
    Ok(PlainClaim {
        asked: amount(members.raw_get("want")?, "want")?,
        unit: amount(unit, "unit")?.max(1),
        priority: members.raw_get::<Option<i32>>("priority")?.unwrap_or(0),
    })
}

/// A number of things that a program computed, rounded up.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the range is checked"
)]
fn amount(number: f64, what: &str) -> Result<u64> {
    if (0.0..=1e15).contains(&number) {
        return Ok(number.ceil() as u64);
    }
    Err(Error::RuntimeError(format!(
        "{what} is {number}: write a number of 0 or more"
    )))
}

#[expect(clippy::cast_precision_loss, reason = "amounts are below 1e15")]
fn number(part: u64) -> f64 {
    part as f64
}

fn simple(lua: &Lua, counts: Function) -> Result<Function> {
    lua.create_function(move |lua, question: Value| {
        let wanted: Table = counts.call(question)?;
        let sets = lua.create_table()?;
        for pair in wanted.pairs::<Value, Value>() {
            let (name, want) = pair?;
            let change = lua.create_table()?;
            match &want {
                Value::String(word) if word.as_bytes() == REST.as_bytes() => {
                    change.raw_set("rest", true)?;
                }
                Value::String(_) => change.raw_set("share", want)?,
                Value::Number(count) => change.raw_set("count", count.ceil())?,
                // The contract refuses what is no number, with its path.
                _ => change.raw_set("count", want)?,
            }
            sets.raw_set(name, change)?;
        }
        let answer = lua.create_table()?;
        answer.raw_set("sets", sets)?;
        Ok(answer)
    })
}
