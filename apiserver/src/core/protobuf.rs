//! Reading the Kubernetes protobuf form of a few core kinds.
//!
//! `kubectl create namespace|configmap|secret|serviceaccount` and some client libraries send core
//! kinds only in this form, with no way back to JSON. It is read, never written: all of them take
//! JSON answers. Which messages have which members is data, in `kinds/protobuf.yaml`.

use std::collections::BTreeMap;

use base64::Engine as _;
use serde_json::{Map, Value};

use super::time::WallTime;

/// First bytes of the envelope.
const MAGIC: &[u8] = b"k8s\0";
/// Deepest nesting of messages.
const MAX_DEPTH: usize = 16;

/// Why bytes are not an object.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProtobufError {
    /// No message is known for that kind.
    #[error("kind {0} is not read in protobuf here; send JSON")]
    UnknownKind(String),
    /// The bytes are no protobuf message of the kind.
    #[error("the body is not Kubernetes protobuf: {0}")]
    Malformed(&'static str),
}

/// Known messages by name, and their members by number.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Messages(BTreeMap<String, BTreeMap<u64, Member>>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Member {
    name: String,
    shape: Shape,
    keeps_zero: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Shape {
    One(String),
    List(String),
    Map(String),
}

impl Messages {
    /// Reads the document; `None` if it has another form.
    #[must_use]
    pub fn parse(document: &Value) -> Option<Self> {
        let mut messages = BTreeMap::new();
        for (name, members) in document.as_object()? {
            let mut fields = BTreeMap::new();
            for (number, text) in members.as_object()? {
                let (member, shape) = text.as_str()?.split_once(' ')?;
                let (shape, keeps_zero) = match shape.strip_suffix('?') {
                    Some(shape) => (shape, true),
                    None => (shape, false),
                };
                let inside = |open, close| {
                    shape
                        .strip_prefix(open)?
                        .strip_suffix(close)
                        .map(str::to_owned)
                };
                let shape = match (inside('[', ']'), inside('{', '}')) {
                    (Some(item), _) => Shape::List(item),
                    (_, Some(value)) => Shape::Map(value),
                    _ => Shape::One(shape.to_owned()),
                };
                let member = Member {
                    name: member.to_owned(),
                    shape,
                    keeps_zero,
                };
                fields.insert(number.parse().ok()?, member);
            }
            messages.insert(name.clone(), fields);
        }
        Some(Self(messages))
    }

    /// Reads an object in its envelope.
    ///
    /// # Errors
    /// See [`ProtobufError`].
    pub fn decode(&self, bytes: &[u8]) -> Result<Value, ProtobufError> {
        let envelope = bytes
            .strip_prefix(MAGIC)
            .ok_or(ProtobufError::Malformed("no envelope"))?;
        let (mut api_version, mut kind, mut raw) = (String::new(), String::new(), &[][..]);
        for field in Fields::new(envelope) {
            match field? {
                (1, Wire::Bytes(type_meta)) => {
                    for field in Fields::new(type_meta) {
                        match field? {
                            (1, Wire::Bytes(text)) => api_version = utf8(text)?,
                            (2, Wire::Bytes(text)) => kind = utf8(text)?,
                            _ => {}
                        }
                    }
                }
                (2, Wire::Bytes(bytes)) => raw = bytes,
                _ => {}
            }
        }
        // Options have one form in every group.
        let name = if kind == "DeleteOptions" {
            kind.clone()
        } else {
            format!("{api_version}/{kind}")
        };
        if !self.0.contains_key(&name) {
            return Err(ProtobufError::UnknownKind(name));
        }
        let mut object = self.message(&name, raw, 0)?;
        object.insert("apiVersion".to_owned(), api_version.into());
        object.insert("kind".to_owned(), kind.into());
        Ok(Value::Object(object))
    }

    fn message(
        &self,
        name: &str,
        bytes: &[u8],
        depth: usize,
    ) -> Result<Map<String, Value>, ProtobufError> {
        if depth > MAX_DEPTH {
            return Err(ProtobufError::Malformed("nested too deep"));
        }
        let members = self
            .0
            .get(name)
            .ok_or(ProtobufError::Malformed("unknown message"))?;
        let mut map = Map::new();
        for field in Fields::new(bytes) {
            let (number, wire) = field?;
            let Some(member) = members.get(&number) else {
                continue;
            };
            match &member.shape {
                Shape::One(kind) => {
                    let value = self.value(kind, wire, depth)?;
                    if member.keeps_zero || !is_zero(&value) {
                        map.insert(member.name.clone(), value);
                    }
                }
                Shape::List(kind) => {
                    let value = self.value(kind, wire, depth)?;
                    let list = map
                        .entry(member.name.clone())
                        .or_insert_with(|| Value::Array(Vec::new()));
                    if let Value::Array(list) = list {
                        list.push(value);
                    }
                }
                Shape::Map(kind) => {
                    let (key, value) = self.entry(kind, wire, depth)?;
                    let entries = map
                        .entry(member.name.clone())
                        .or_insert_with(|| Value::Object(Map::new()));
                    if let Value::Object(entries) = entries {
                        entries.insert(key, value);
                    }
                }
            }
        }
        Ok(map)
    }

    fn entry(
        &self,
        kind: &str,
        wire: Wire<'_>,
        depth: usize,
    ) -> Result<(String, Value), ProtobufError> {
        let Wire::Bytes(bytes) = wire else {
            return Err(ProtobufError::Malformed("a map entry"));
        };
        let (mut key, mut value) = (String::new(), self.value(kind, Wire::Bytes(&[]), depth)?);
        for field in Fields::new(bytes) {
            match field? {
                (1, Wire::Bytes(text)) => key = utf8(text)?,
                (2, wire) => value = self.value(kind, wire, depth)?,
                _ => {}
            }
        }
        Ok((key, value))
    }

    fn value(&self, kind: &str, wire: Wire<'_>, depth: usize) -> Result<Value, ProtobufError> {
        Ok(match (kind, wire) {
            ("string", Wire::Bytes(bytes)) => utf8(bytes)?.into(),
            ("bytes", Wire::Bytes(bytes)) => base64::engine::general_purpose::STANDARD
                .encode(bytes)
                .into(),
            ("int", Wire::Number(number)) => number.cast_signed().into(),
            ("bool", Wire::Number(number)) => (number != 0).into(),
            ("time", Wire::Bytes(bytes)) => time(bytes)?,
            ("string" | "bytes" | "int" | "bool" | "time", _) => {
                return Err(ProtobufError::Malformed("a member of another type"));
            }
            (message, Wire::Bytes(bytes)) => {
                Value::Object(self.message(message, bytes, depth + 1)?)
            }
            (_, Wire::Number(_)) => return Err(ProtobufError::Malformed("a number for a message")),
        })
    }
}

fn is_zero(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(flag) => !flag,
        Value::Number(number) => number.as_i64() == Some(0),
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(map) => map.is_empty(),
    }
}

/// Seconds and nanoseconds to text; an empty message is no time.
fn time(bytes: &[u8]) -> Result<Value, ProtobufError> {
    let (mut seconds, mut nanos) = (0_i64, 0_i64);
    for field in Fields::new(bytes) {
        match field? {
            (1, Wire::Number(number)) => seconds = number.cast_signed(),
            (2, Wire::Number(number)) => nanos = number.cast_signed(),
            _ => {}
        }
    }
    if (seconds, nanos) == (0, 0) {
        return Ok(Value::Null);
    }
    let micros = seconds
        .checked_mul(1_000_000)
        .and_then(|micros| micros.checked_add(nanos / 1000));
    let time = WallTime(micros.ok_or(ProtobufError::Malformed("a time out of range"))?);
    Ok(if nanos == 0 {
        time.to_string().into()
    } else {
        time.to_micro_string().into()
    })
}

fn utf8(bytes: &[u8]) -> Result<String, ProtobufError> {
    let text = std::str::from_utf8(bytes)
        .map_err(|_| ProtobufError::Malformed("a text that is not UTF-8"))?;
    Ok(text.to_owned())
}

/// A field's value as it is on the wire.
enum Wire<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

/// The fields of a message, in order.
struct Fields<'a> {
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    fn new(rest: &'a [u8]) -> Self {
        Self { rest }
    }

    fn varint(&mut self) -> Option<u64> {
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            let (byte, rest) = self.rest.split_first()?;
            self.rest = rest;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }

    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(count)?;
        self.rest = rest;
        Some(taken)
    }

    fn field(&mut self) -> Option<(u64, Wire<'a>)> {
        let tag = self.varint()?;
        let wire = match tag & 7 {
            0 => Wire::Number(self.varint()?),
            1 => Wire::Number(u64::from_le_bytes(self.take(8)?.try_into().ok()?)),
            2 => {
                let length = usize::try_from(self.varint()?).ok()?;
                Wire::Bytes(self.take(length)?)
            }
            5 => Wire::Number(u64::from(u32::from_le_bytes(
                self.take(4)?.try_into().ok()?,
            ))),
            _ => return None,
        };
        Some((tag >> 3, wire))
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<(u64, Wire<'a>), ProtobufError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_none() {
            self.rest = &[];
        }
        Some(field.ok_or(ProtobufError::Malformed("a field is cut short")))
    }
}

#[cfg(test)]
mod tests;
