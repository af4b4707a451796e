//! Blocks of routine steps as JSON: base64 of the packed bytes, their number and their first time.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD_NO_PAD;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::pack::{Block, PackError, pack, unpack};

/// `S`: a block in a line.
#[derive(Debug, Clone, PartialEq)]
pub struct Sampled {
    /// Number of the VM within the run of the writer.
    pub vm: u32,
    /// Steps in the order of time. Never empty.
    pub block: Block,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Wire {
    d: String,
    n: usize,
    t: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    vm: Option<u32>,
}

impl Wire {
    fn of(block: &Block, vm: Option<u32>) -> Self {
        Self {
            d: BASE64_STANDARD_NO_PAD.encode(pack(block)),
            n: block.0.len(),
            t: block.0.first().map_or(0, |(at, _)| *at),
            vm,
        }
    }

    fn block(&self) -> Result<Block, PackError> {
        let bytes = BASE64_STANDARD_NO_PAD
            .decode(&self.d)
            .map_err(|_| PackError)?;
        let block = unpack(self.t, &bytes)?;
        if block.0.len() != self.n || block.0.is_empty() {
            return Err(PackError);
        }
        Ok(block)
    }
}

impl Serialize for Sampled {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Wire::of(&self.block, Some(self.vm)).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Sampled {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let wire = Wire::deserialize(deserializer)?;
        let vm = wire
            .vm
            .ok_or_else(|| serde::de::Error::missing_field("vm"))?;
        let block = wire.block().map_err(serde::de::Error::custom)?;
        Ok(Self { vm, block })
    }
}

impl Serialize for Block {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Wire::of(self, None).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Block {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let wire = Wire::deserialize(deserializer)?;
        wire.block().map_err(serde::de::Error::custom)
    }
}
