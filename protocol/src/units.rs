//! Sizes: CPU in thousandths, memory in bytes, and the pair of both.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::quantity::{Quantity, QuantityError};

/// CPU in thousandths of a core. Range 0 to 2^32-1.
///
/// Written as an integer number of cores when it is one (`2`), else as a quantity string
/// (`"250m"`). Read from any quantity or number; finer than a thousandth rounds up. Source:
/// docs/compatibility/neonvm.md §1.1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct MilliCpu(pub u32);

impl MilliCpu {
    /// Whole cores, rounded up: how many virtual CPUs carry it.
    #[must_use]
    pub fn rounded_up_cores(self) -> u32 {
        self.0.div_ceil(1000)
    }

    /// Cores as a float, for metrics and the monitor link only.
    #[must_use]
    pub fn as_cores(self) -> f64 {
        f64::from(self.0) / 1000.0
    }

    /// The quantity string of a JSON patch: always a string (`"1"`, `"250m"`).
    #[must_use]
    pub fn to_quantity_string(self) -> String {
        if self.0.is_multiple_of(1000) {
            (self.0 / 1000).to_string()
        } else {
            format!("{}m", self.0)
        }
    }

    /// Reads a JSON number or quantity string.
    ///
    /// # Errors
    /// When it is not a quantity, is negative or exceeds 2^32-1 thousandths.
    pub fn from_json(value: &serde_json::Value) -> Result<Self, QuantityError> {
        let quantity = Quantity::from_json(value)?;
        u32::try_from(quantity.milli_value())
            .map(Self)
            .map_err(|_| QuantityError::Range(value.to_string()))
    }
}

impl fmt::Display for MilliCpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.to_quantity_string())
    }
}

impl Serialize for MilliCpu {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.0.is_multiple_of(1000) {
            serializer.serialize_u32(self.0 / 1000)
        } else {
            serializer.serialize_str(&self.to_quantity_string())
        }
    }
}

impl<'de> Deserialize<'de> for MilliCpu {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = serde_json::Value::deserialize(deserializer)?;
        Self::from_json(&value).map_err(serde::de::Error::custom)
    }
}

/// Memory in bytes.
///
/// On the wire of [`Resources`] it is an integer below 1024, else a binary-suffix quantity string
/// (`"1Gi"`, `"1536Mi"`, `"150589570"`). Read from any quantity or number; a fraction of a byte
/// rounds up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Bytes(pub u64);

impl Bytes {
    /// Memory of `n` MiB. `n` must be below 2^44.
    #[must_use]
    pub const fn mib(n: u64) -> Self {
        Self(n << 20)
    }

    /// Memory of `n` GiB. `n` must be below 2^34.
    #[must_use]
    pub const fn gib(n: u64) -> Self {
        Self(n << 30)
    }

    /// Reads a JSON number or quantity string.
    ///
    /// # Errors
    /// When it is not a quantity, is negative or exceeds 2^64-1.
    pub fn from_json(value: &serde_json::Value) -> Result<Self, QuantityError> {
        let quantity = Quantity::from_json(value)?;
        quantity
            .as_u64()
            .map(Self)
            .ok_or_else(|| QuantityError::Range(value.to_string()))
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Quantity::from_bytes(self.0).fmt(f)
    }
}

impl Serialize for Bytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.0 < 1024 {
            serializer.serialize_u64(self.0)
        } else {
            serializer.collect_str(self)
        }
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = serde_json::Value::deserialize(deserializer)?;
        Self::from_json(&value).map_err(serde::de::Error::custom)
    }
}

/// A pair of CPU and memory: `{"vCPUs":"250m","mem":"1Gi"}`, in this order. Source:
/// docs/compatibility/agent.md §4.0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub struct Resources {
    /// CPU in thousandths of a CPU.
    #[serde(rename = "vCPUs")]
    pub cpu: MilliCpu,
    /// Memory in whole bytes.
    pub mem: Bytes,
}

impl Resources {
    /// A size of `milli_cpu` thousandths of a core and `mem_bytes` bytes.
    #[must_use]
    pub const fn new(milli_cpu: u32, mem_bytes: u64) -> Self {
        Self {
            cpu: MilliCpu(milli_cpu),
            mem: Bytes(mem_bytes),
        }
    }

    /// The larger value of each field.
    #[must_use]
    pub fn field_max(self, other: Self) -> Self {
        Self {
            cpu: self.cpu.max(other.cpu),
            mem: self.mem.max(other.mem),
        }
    }

    /// The smaller value of each field.
    #[must_use]
    pub fn field_min(self, other: Self) -> Self {
        Self {
            cpu: self.cpu.min(other.cpu),
            mem: self.mem.min(other.mem),
        }
    }

    /// Whether any field is above the other's.
    #[must_use]
    pub fn has_field_above(self, other: Self) -> bool {
        self.cpu > other.cpu || self.mem > other.mem
    }

    /// Whether any field is below the other's.
    #[must_use]
    pub fn has_field_below(self, other: Self) -> bool {
        self.cpu < other.cpu || self.mem < other.mem
    }

    /// Difference of each field, never below 0.
    #[must_use]
    pub fn saturating_sub(self, other: Self) -> Self {
        Self {
            cpu: MilliCpu(self.cpu.0.saturating_sub(other.cpu.0)),
            mem: Bytes(self.mem.0.saturating_sub(other.mem.0)),
        }
    }

    /// Each field times `factor`. A product above the range becomes its upper end.
    #[must_use]
    pub fn saturating_mul(self, factor: u32) -> Self {
        Self {
            cpu: MilliCpu(self.cpu.0.saturating_mul(factor)),
            mem: Bytes(self.mem.0.saturating_mul(u64::from(factor))),
        }
    }

    /// Number of units in this size. `None` if the size is not an exact multiple in both fields.
    #[must_use]
    pub fn exact_multiple_of(self, unit: Self) -> Option<u32> {
        if unit.cpu.0 == 0 || unit.mem.0 == 0 {
            return None;
        }
        let count = self.cpu.0 / unit.cpu.0;
        (unit.saturating_mul(count) == self).then_some(count)
    }

    /// Wire name of the first field that is zero. `None` if both are above 0.
    #[must_use]
    pub fn zero_field(self) -> Option<&'static str> {
        if self.cpu.0 == 0 {
            Some("vCPUs")
        } else if self.mem.0 == 0 {
            Some("mem")
        } else {
            None
        }
    }
}

impl fmt::Display for Resources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} CPU / {}", self.cpu, self.mem)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn resources_print_as_the_spec_says() {
        let cases = [
            (
                Resources::new(250, 1 << 30),
                r#"{"vCPUs":"250m","mem":"1Gi"}"#,
            ),
            (
                Resources::new(2000, 1536 << 20),
                r#"{"vCPUs":2,"mem":"1536Mi"}"#,
            ),
            (Resources::new(0, 0), r#"{"vCPUs":0,"mem":0}"#),
            (
                Resources::new(1250, 150_589_570),
                r#"{"vCPUs":"1250m","mem":"150589570"}"#,
            ),
            (Resources::new(1000, 1023), r#"{"vCPUs":1,"mem":1023}"#),
        ];
        for (resources, text) in cases {
            assert_eq!(serde_json::to_string(&resources).expect("encodes"), text);
            assert_eq!(
                serde_json::from_str::<Resources>(text).expect("decodes"),
                resources
            );
        }
    }

    #[test]
    fn any_quantity_is_read() {
        for (cpu, milli) in [
            (json!(0.25), 250),
            (json!("0.25"), 250),
            (json!(1), 1000),
            (json!("2"), 2000),
            (json!("0.2501"), 251),
        ] {
            assert_eq!(MilliCpu::from_json(&cpu).expect("reads").0, milli);
        }
        for bad in [json!(-1), json!("x"), json!(null), json!([1]), json!(5e9)] {
            assert!(MilliCpu::from_json(&bad).is_err(), "{bad}");
        }
        assert_eq!(
            Bytes::from_json(&json!("4.5Gi")).expect("reads").0,
            4_831_838_208
        );
        assert_eq!(
            Bytes::from_json(&json!(1_073_741_824_u64)).expect("reads"),
            Bytes::gib(1)
        );
    }

    #[test]
    fn fields_are_compared_and_computed_one_by_one() {
        let (small, mixed) = (Resources::new(250, 1024), Resources::new(250, 4096));
        assert!(mixed.has_field_above(small) && !small.has_field_above(mixed));
        assert!(small.has_field_below(mixed) && !mixed.has_field_below(small));
        assert!(!small.has_field_above(small) && !small.has_field_below(small));
        let crossed = Resources::new(500, 1024);
        assert!(crossed.has_field_above(mixed) && crossed.has_field_below(mixed));
        assert_eq!(mixed.field_min(crossed), small);
        assert_eq!(mixed.field_max(crossed), Resources::new(500, 4096));
        assert_eq!(crossed.saturating_sub(mixed), Resources::new(250, 0));
        assert_eq!(small.zero_field(), None);
        assert_eq!(Resources::new(0, 0).zero_field(), Some("vCPUs"));
        assert_eq!(Resources::new(1, 0).zero_field(), Some("mem"));
    }

    #[test]
    fn size_is_counted_in_units_only_if_both_fields_are_multiples() {
        let unit = Resources::new(250, 1024);
        for (size, count) in [
            (Resources::new(750, 3072), Some(3)),
            (Resources::new(0, 0), Some(0)),
            (Resources::new(750, 2048), None),
            (Resources::new(800, 3072), None),
        ] {
            assert_eq!(size.exact_multiple_of(unit), count, "{size}");
        }
        for no_unit in [Resources::new(0, 1024), Resources::new(250, 0)] {
            assert_eq!(unit.exact_multiple_of(no_unit), None);
        }
    }

    #[test]
    fn cores_and_bytes_have_their_units() {
        let quantities = [2000, 1250].map(|milli| MilliCpu(milli).to_quantity_string());
        assert_eq!(quantities, ["2", "1250m"]);
        assert!((MilliCpu(1250).as_cores() - 1.25).abs() < f64::EPSILON);
        assert_eq!(
            (Bytes::mib(3), Bytes::gib(2)),
            (Bytes(3 << 20), Bytes(2 << 30))
        );
        assert_eq!(Resources::new(1250, 1 << 30).to_string(), "1250m CPU / 1Gi");
    }

    #[test]
    fn part_of_a_core_needs_a_whole_virtual_cpu() {
        for (milli, cores) in [
            (0, 0),
            (1, 1),
            (999, 1),
            (1000, 1),
            (1001, 2),
            (u32::MAX, 4_294_968),
        ] {
            assert_eq!(MilliCpu(milli).rounded_up_cores(), cores, "{milli}m");
        }
    }
}
