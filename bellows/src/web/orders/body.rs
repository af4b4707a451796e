//! Members of a form that was sent.

use axum::body::Bytes;
use protocol::annotations::{BoundsLeaf, ScalingBounds};
use protocol::mode::Mode;

use super::set::count_of;
use crate::actions;
use crate::args::parse_memory;
use crate::fail::{Fail, Outcome};
use crate::web::forms::Fields;

pub(super) struct Body(Vec<(String, String)>);

impl Body {
    pub(super) fn read(body: &Bytes) -> Self {
        Self(form_urlencoded::parse(body).into_owned().collect())
    }

    pub(super) fn get(&self, name: &str) -> &str {
        let mut pairs = self.0.iter();
        pairs
            .find(|(key, _)| key == name)
            .map_or("", |(_, value)| value.trim())
    }

    pub(super) fn fields(&self) -> Fields {
        Fields {
            key: self.get("key").to_owned(),
            token: self.get("token").to_owned(),
        }
    }

    pub(super) fn reason(&self) -> Outcome<&str> {
        let reason = self.get("reason");
        let good = actions::reason(reason);
        good.map_err(|why| Fail::usage(format!("the reason: {why}")))?;
        Ok(reason)
    }

    /// `None` if all four fields are empty.
    pub(super) fn bounds(&self) -> Outcome<Option<ScalingBounds>> {
        let names = ["cpu_min", "cpu_max", "memory_min", "memory_max"];
        if names.iter().all(|name| self.get(name).is_empty()) {
            return Ok(None);
        }
        let end = |cpu: &str, mem: &str| {
            let wrong =
                |name: &str, why: String| Fail::usage(format!("{}: {why}", name.replace('_', " ")));
            let cpu = serde_json::from_value(self.get(cpu).into())
                .map_err(|error| wrong(cpu, error.to_string()))?;
            let mem = parse_memory(self.get(mem)).map_err(|why| wrong(mem, why))?;
            Ok::<_, Fail>(BoundsLeaf { cpu, mem })
        };
        Ok(Some(ScalingBounds {
            min: end("cpu_min", "memory_min")?,
            max: end("cpu_max", "memory_max")?,
        }))
    }

    /// A number of members.
    pub(super) fn count(&self, name: &str) -> Outcome<u32> {
        count_of(self.get(name))
    }

    pub(super) fn mode(&self) -> Outcome<Option<Mode>> {
        match self.get("mode") {
            "" => Ok(None),
            word => match Mode::of(word) {
                Some(mode) => Ok(Some(mode)),
                None => Err(Fail::usage(format!("{word:?} is no mode"))),
            },
        }
    }
}
