//! The table `std`: what most policies would write again.
//!
//! * `hold(reason)`: an answer that keeps the size in use.
//! * `clamp(n, lo, hi)`: `n` within bounds; the upper bound wins.
//! * `trend(h, s, short, long)`: `"up"`, `"down"` or `"flat"`; `nil` without enough of the past.
//! * `refused(i, sec)`: within `sec` seconds a permit was cut, the monitor refused a shrink, or it
//!   asked for growth.
//! * `office(i, from_minute, to_minute, weekdays)`: the time of `i` is in these hours of one of
//!   these weekdays. Hours past midnight belong to the day on which they began.
//! * `share`, `divide` and `simple` are for policies of sets: [`set_helpers`].

use mlua::{Lua, ObjectLike as _, Result, Table, Value};

use crate::set_helpers;

/// Relative difference of two means from which a series rises or falls.
const TREND_THRESHOLD: f64 = 0.05;

const MINUTES_A_DAY: f64 = 1_440.0;

/// The table, not frozen yet.
pub(crate) fn table(lua: &Lua) -> Result<Table> {
    let std = lua.create_table()?;
    std.raw_set("hold", lua.create_function(hold)?)?;
    std.raw_set("clamp", lua.create_function(clamp)?)?;
    std.raw_set("trend", lua.create_function(trend)?)?;
    std.raw_set("refused", lua.create_function(refused)?)?;
    std.raw_set("office", lua.create_function(office)?)?;
    set_helpers::add(lua, &std)?;
    Ok(std)
}

fn hold(lua: &Lua, reason: Value) -> Result<Table> {
    let answer = lua.create_table_with_capacity(0, 2)?;
    answer.raw_set("hold", true)?;
    answer.raw_set("reason", reason)?;
    Ok(answer)
}

fn clamp(_: &Lua, (n, low, high): (f64, f64, f64)) -> Result<f64> {
    Ok(n.max(low).min(high))
}

fn trend(
    _: &Lua,
    (past, series, short, long): (mlua::AnyUserData, mlua::LuaString, f64, f64),
) -> Result<Option<&'static str>> {
    let recent: Option<f64> = past.call_method("mean", (&series, short))?;
    let before: Option<f64> = past.call_method("mean", (&series, long))?;
    let (Some(recent), Some(before)) = (recent, before) else {
        return Ok(None);
    };
    let threshold = before.abs() * TREND_THRESHOLD;
    Ok(Some(match recent - before {
        more if more > threshold => "up",
        less if less < -threshold => "down",
        _ => "flat",
    }))
}

fn refused(_: &Lua, (i, seconds): (Table, f64)) -> Result<bool> {
    let is_recent = |event: Option<Table>| -> Result<bool> {
        let age = event.map(|event| event.raw_get::<Option<f64>>("age_s"));
        Ok(age.transpose()?.flatten().is_some_and(|age| age <= seconds))
    };
    if is_recent(i.raw_get("wish")?)? {
        return Ok(true);
    }
    let Some(refusals) = i.raw_get::<Option<Table>>("refused")? else {
        return Ok(false);
    };
    Ok(is_recent(refusals.raw_get("permit")?)? || is_recent(refusals.raw_get("shrink")?)?)
}

fn office(_: &Lua, (i, from, to, weekdays): (Table, f64, f64, Table)) -> Result<bool> {
    let time: Table = i.raw_get("time")?;
    let minute: f64 = time.raw_get("minute")?;
    let weekday: f64 = time.raw_get("weekday")?;
    let has = |day: f64| -> Result<bool> {
        let mut days = weekdays.sequence_values::<f64>();
        days.try_fold(false, |found, it| {
            it.map(|it| found || (it - day).abs() < 0.5)
        })
    };
    if from <= to {
        return Ok((from..to.min(MINUTES_A_DAY)).contains(&minute) && has(weekday)?);
    }
    let yesterday = if weekday > 1.5 { weekday - 1.0 } else { 7.0 };
    Ok(minute >= from && has(weekday)? || minute < to && has(yesterday)?)
}
