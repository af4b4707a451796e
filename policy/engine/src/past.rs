//! `i.h`: the past of the VM, read by methods.
//!
//! A method takes steps by the slots that it reads, so that the budget bounds the time of a call
//! whatever the length of its windows.

use std::cell::Cell;
use std::rc::Rc;

use mlua::{Error, Lua, LuaString, Result, UserDataMethods as _};
use policy_contract::{History, SLOT_SECONDS, SLOTS, Seconds};

use crate::budget::Steps;

/// Slots of the past that are read in a step.
const SLOTS_A_STEP: f64 = 32.0;

/// Function of a window of the past: series, seconds, now.
type Window = fn(&History, &str, Seconds, Seconds) -> Option<f64>;

const WINDOWS: [(&str, Window); 6] = [
    ("mean", History::mean),
    ("min", History::min),
    ("max", History::max),
    ("slope", History::slope),
    ("delta", History::delta),
    ("seen", History::seen),
];

/// Registers the methods. `now` is the time of the present question.
pub(crate) fn register(lua: &Lua, now: &Rc<Cell<Seconds>>, steps: &Steps) -> Result<()> {
    lua.register_userdata_type::<History>(|registry| {
        for (name, window) in WINDOWS {
            let (now, steps) = (Rc::clone(now), steps.clone());
            registry.add_method(name, move |_, past, args: (LuaString, f64)| {
                let (series, seconds) = args;
                steps.take(cost(seconds))?;
                Ok(window(past, name_of(&series)?.as_ref(), seconds, now.get()))
            });
        }
        let (at, counted) = (Rc::clone(now), steps.clone());
        registry.add_method("q", move |_, past, args: (LuaString, f64, f64)| {
            let (series, share, seconds) = args;
            // The values are sorted.
            counted.take(2 * cost(seconds))?;
            Ok(past.quantile(name_of(&series)?.as_ref(), share, seconds, at.get()))
        });
        let at = Rc::clone(now);
        registry.add_method("last", move |_, past, series: LuaString| {
            Ok(past.last(name_of(&series)?.as_ref(), at.get()))
        });
        let at = Rc::clone(now);
        registry.add_method("age", move |_, past, series: LuaString| {
            Ok(past.age(name_of(&series)?.as_ref(), at.get()))
        });
    })
}

fn name_of(series: &LuaString) -> Result<impl AsRef<str>> {
    series
        .to_str()
        .map_err(|_| Error::RuntimeError("the name of a series is text".to_owned()))
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "clamped to the number of slots"
)]
fn cost(seconds: Seconds) -> u64 {
    let slots = (seconds / SLOT_SECONDS).clamp(0.0, SLOTS as f64);
    (slots / SLOTS_A_STEP) as u64
}
