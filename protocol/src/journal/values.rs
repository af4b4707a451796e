//! Values of records: sizes, amounts, numbers and revisions, each in one spelling.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::canonical::MAX_INTEGER;
use crate::revision::Revision;
use crate::units::Resources;

pub(super) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// A size as `[milli-CPU, bytes]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Size(pub u32, pub u64);

impl From<Resources> for Size {
    fn from(size: Resources) -> Self {
        Self(size.cpu.0, size.mem.0)
    }
}

impl From<Size> for Resources {
    fn from(size: Size) -> Self {
        Self::new(size.0, size.1)
    }
}

/// A size in a decision: a number of compute units where it is exactly that, else as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Amount {
    /// A whole number of compute units.
    Units(u32),
    /// A size that is no number of compute units.
    Exact(Size),
}

impl Amount {
    /// A size in the shorter of its two spellings.
    #[must_use]
    pub fn of(size: Resources, unit: Resources) -> Self {
        size.exact_multiple_of(unit)
            .map_or_else(|| Self::Exact(size.into()), Self::Units)
    }

    /// The size that this amount stands for, with compute units of `unit`.
    #[must_use]
    pub fn size(self, unit: Resources) -> Resources {
        match self {
            Self::Units(count) => unit.saturating_mul(count),
            Self::Exact(size) => size.into(),
        }
    }
}

/// Compute units in thousandths, rounded half to even; NaN is 0, and what does not fit is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Milli(pub i64);

impl Milli {
    /// Thousandths of `units`, cut to the range of the canonical form.
    #[must_use]
    #[expect(
        clippy::cast_possible_truncation,
        reason = "the cast saturates, and NaN becomes 0"
    )]
    pub fn of(units: f64) -> Self {
        let bound = MAX_INTEGER;
        Self(((units * 1000.0).round_ties_even() as i64).clamp(-bound, bound))
    }

    /// The number of compute units as a float, for display.
    #[must_use]
    pub fn units(self) -> f64 {
        self.0 as f64 / 1000.0
    }
}

/// A setting: a float as the shortest decimal text that reads as the same float.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Decimal(pub f64);

impl Serialize for Decimal {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Decimal {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map(Self).map_err(serde::de::Error::custom)
    }
}

/// A revision and when it was set, on the writer's clock: `[value, flags, microseconds]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Stamped(pub i64, pub u64, pub u64);

/// A revision alone: `[value, flags]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Issued(pub i64, pub u64);

impl From<Revision> for Issued {
    fn from(revision: Revision) -> Self {
        Self(revision.value, revision.flags)
    }
}

impl From<Issued> for Revision {
    fn from(issued: Issued) -> Self {
        Self {
            value: issued.0,
            flags: issued.1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNIT: Resources = Resources::new(250, 1 << 30);

    #[test]
    fn amount_is_a_number_of_units_only_where_it_is_exact() {
        for (size, amount) in [
            (UNIT.saturating_mul(3), Amount::Units(3)),
            (
                Resources::new(700, 3 << 30),
                Amount::Exact(Size(700, 3 << 30)),
            ),
        ] {
            assert_eq!(Amount::of(size, UNIT), amount);
            assert_eq!(amount.size(UNIT), size);
        }
    }

    #[test]
    fn thousandths_are_rounded_half_to_even_and_cut() {
        for (units, milli) in [
            (1.5, 1500),
            (0.0625, 62),
            (f64::NAN, 0),
            (f64::INFINITY, MAX_INTEGER),
            (f64::NEG_INFINITY, -MAX_INTEGER),
        ] {
            assert_eq!(Milli::of(units), Milli(milli), "{units}");
        }
        assert!((Milli(1500).units() - 1.5).abs() < f64::EPSILON);
    }

    #[test]
    fn issued_revision_keeps_value_and_flags() {
        let revision = Revision { value: 7, flags: 2 };
        let issued = Issued::from(revision);
        assert_eq!(issued, Issued(7, 2));
        assert_eq!(Revision::from(issued), revision);
    }
}
