//! Sums, shares and grants: the arithmetic of each resource, independent of the other.
//!
//! Source: docs/compatibility/scheduler.md §2.1 (shares), §2.3 (grants). All quantities are
//! integers: CPU in thousandths of a core, memory in bytes. Sums are too wide to wrap.

use protocol::units::{Bytes, MilliCpu, Resources};
use serde::Serialize;

/// The over-commit factor 1, in thousandths.
pub const NO_OVERCOMMIT_MILLI: u32 = 1000;

/// A resource of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Resource {
    /// CPU, in thousandths of a core.
    Cpu,
    /// Memory, in bytes.
    Mem,
}

impl Resource {
    /// Both resources, in the order of output.
    pub const ALL: [Self; 2] = [Self::Cpu, Self::Mem];

    /// Value of metric labels, and text for people.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Mem => "mem",
        }
    }
}

/// A value per resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Hash, Serialize)]
pub struct Both<T> {
    /// The value for CPU.
    pub cpu: T,
    /// The value for memory.
    pub mem: T,
}

impl<T: Copy> Both<T> {
    /// A pair from the value for CPU and the value for memory.
    pub const fn new(cpu: T, mem: T) -> Self {
        Self { cpu, mem }
    }

    /// The same value for both resources.
    pub const fn same(value: T) -> Self {
        Self {
            cpu: value,
            mem: value,
        }
    }

    /// The value for a resource.
    pub const fn get(&self, resource: Resource) -> T {
        match resource {
            Resource::Cpu => self.cpu,
            Resource::Mem => self.mem,
        }
    }

    /// Applies `f` to the value for each resource.
    pub fn map<U>(self, mut f: impl FnMut(Resource, T) -> U) -> Both<U> {
        Both {
            cpu: f(Resource::Cpu, self.cpu),
            mem: f(Resource::Mem, self.mem),
        }
    }

    /// Pairs the values of `self` and `other` per resource.
    pub fn zip<U: Copy>(self, other: Both<U>) -> Both<(T, U)> {
        Both {
            cpu: (self.cpu, other.cpu),
            mem: (self.mem, other.mem),
        }
    }

    /// Whether `f` holds for at least one resource.
    pub fn any(self, mut f: impl FnMut(T) -> bool) -> bool {
        f(self.cpu) || f(self.mem)
    }
}

impl From<Resources> for Both<u64> {
    fn from(value: Resources) -> Self {
        Self {
            cpu: u64::from(value.cpu.0),
            mem: value.mem.0,
        }
    }
}

impl Both<u64> {
    /// Converts to wire resources. CPU is cut to 2^32-1 thousandths.
    #[must_use]
    pub fn to_resources(self) -> Resources {
        Resources {
            cpu: MilliCpu(u32::try_from(self.cpu).unwrap_or(u32::MAX)),
            mem: Bytes(self.mem),
        }
    }

    /// The larger value per resource.
    #[must_use]
    pub fn max(self, other: Self) -> Self {
        Self {
            cpu: self.cpu.max(other.cpu),
            mem: self.mem.max(other.mem),
        }
    }
}

/// The share of a node that `amount` takes after over-commit, rounded down:
/// `1000 · amount / overcommit`. A factor of 0 counts as 1. `PodView` never has such a factor.
#[must_use]
pub fn share(amount: u64, overcommit_milli: u32) -> u128 {
    1000 * u128::from(amount) / u128::from(overcommit_milli.max(1))
}

/// The [`share`] of each resource.
#[must_use]
pub fn shares(amount: Both<u64>, overcommit_milli: Both<u32>) -> Both<u128> {
    amount
        .zip(overcommit_milli)
        .map(|_, (amount, milli)| share(amount, milli))
}

/// The inputs of [`grant`] for one resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GrantInput {
    /// The node's total.
    pub total: u64,
    /// The amount that all other pods reserve on the node, after over-commit.
    pub others: u128,
    /// The amount that the pod holds durably.
    pub held: u64,
    /// The requested amount.
    pub asked: u64,
    /// The compute unit's amount of the resource.
    pub unit: u64,
    /// Over-commit factor, in thousandths.
    pub overcommit_milli: u32,
}

/// The result of [`grant`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grant {
    /// The amount that the pod may hold: between `held` and `asked` for an increase, otherwise
    /// `asked`.
    pub granted: u64,
    /// The headroom beyond `held`.
    pub room: u64,
}

/// Why no grant could be computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum GrantError {
    /// An increase with a compute unit of zero.
    #[error("the compute unit is zero")]
    ZeroUnit,
}

/// Grants as many whole units of an increase as the node has headroom for. Accepts every decrease.
/// On a node above its total it grants nothing and takes nothing back.
///
/// Headroom is the total without the other pods and without `held`. Amounts that count for the pod
/// itself beyond `held` give it no headroom. A late copy of a request may claim an amount that was
/// given back and granted to another pod. Invariant: no grant takes a node past its total
/// (`tests::no_grant_crosses_the_total`).
///
/// # Errors
/// [`GrantError::ZeroUnit`] for an increase with unit 0.
pub fn grant(input: GrantInput) -> Result<Grant, GrantError> {
    let taken = input
        .others
        .saturating_add(share(input.held, input.overcommit_milli));
    let free = u128::from(input.total).saturating_sub(taken);
    let free = free.saturating_mul(u128::from(input.overcommit_milli)) / 1000;
    let room = u64::try_from(free).unwrap_or(u64::MAX);
    if input.asked <= input.held {
        return Ok(Grant {
            granted: input.asked,
            room,
        });
    }
    if input.unit == 0 {
        return Err(GrantError::ZeroUnit);
    }
    let increase = input.asked - input.held;
    let steps = room / input.unit * input.unit;
    Ok(Grant {
        granted: input.held + steps.min(increase),
        room,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn input(row: [u64; 5], overcommit_milli: u32) -> GrantInput {
        let [total, reserved, held, asked, unit] = row;
        GrantInput {
            total,
            others: u128::from(reserved) - share(held, overcommit_milli),
            held,
            asked,
            unit,
            overcommit_milli,
        }
    }

    /// Vectors of docs/compatibility/scheduler.md §7.2: `[T, R, r, q, F]`, over-commit,
    /// `[r after, R after]`.
    const VECTORS: [([u64; 5], u32, [u64; 2]); 15] = [
        ([10_000, 3_000, 3_000, 3_000, 1_000], 1000, [3_000, 3_000]),
        ([10_000, 3_000, 3_000, 5_000, 1_000], 1000, [5_000, 5_000]),
        ([10_000, 8_000, 3_000, 5_000, 1_000], 1000, [5_000, 10_000]),
        ([10_000, 9_000, 3_000, 5_000, 1_000], 1000, [4_000, 10_000]),
        ([10_000, 10_000, 3_000, 5_000, 1_000], 1000, [3_000, 10_000]),
        ([10_500, 9_000, 3_000, 5_000, 1_000], 1000, [4_000, 10_000]),
        ([10_000, 11_000, 3_000, 3_000, 1_000], 1000, [3_000, 11_000]),
        ([10_000, 12_000, 4_000, 3_000, 1_000], 1000, [3_000, 11_000]),
        ([10_000, 8_000, 3_000, 7_000, 1_000], 2000, [7_000, 10_000]),
        ([4_000, 3_900, 250, 1_000, 250], 1000, [250, 3_900]),
        ([4_000, 3_600, 250, 1_000, 250], 1000, [500, 3_850]),
        ([4_000, 3_600, 300, 650, 250], 1000, [550, 3_850]),
        ([4_000, 3_600, 300, 690, 250], 1000, [550, 3_850]),
        ([4_000, 3_000, 300, 690, 250], 1000, [690, 3_390]),
        ([1_000, 166, 250, 1_500, 250], 1500, [1_500, 1_000]),
    ];

    #[test]
    fn grants_are_as_in_the_vectors() {
        for (row, overcommit_milli, [held_after, reserved_after]) in VECTORS {
            let given = input(row, overcommit_milli);
            let granted = grant(given).expect("the unit is not zero").granted;
            let reserved = given.others + share(granted, overcommit_milli);
            assert_eq!(granted, held_after, "{row:?}");
            assert_eq!(reserved, u128::from(reserved_after), "{row:?}");
            // Memory is the same arithmetic in other magnitudes; shares that were rounded are not
            // the same there.
            if overcommit_milli % 1000 == 0 {
                let wide = grant(input(row.map(|cell| cell << 22), overcommit_milli));
                assert_eq!(
                    wide.map(|g| g.granted),
                    Ok(held_after << 22),
                    "{row:?} in bytes"
                );
            }
        }
    }

    #[test]
    fn zero_unit_is_an_error_only_for_an_increase() {
        assert_eq!(
            grant(input([1_000, 500, 500, 2_000, 0], 1000)),
            Err(GrantError::ZeroUnit)
        );
        assert_eq!(
            grant(input([1_000, 500, 500, 400, 0], 1000)).map(|g| g.granted),
            Ok(400)
        );
    }

    #[test]
    fn shares_are_as_in_the_vectors() {
        assert_eq!(share(1000, 1500), 666);
        assert_eq!(share(250, 1500), 166);
        assert_eq!(share(1000, 2500), 400);
        assert_eq!(share(2 << 30, 1500), 1_431_655_765);
        assert_eq!(share(7, 0), 7000, "a factor of 0 must not divide");
    }

    proptest! {
        #[test]
        fn no_grant_crosses_the_total(
            total in 0_u64..1 << 40, others in 0_u128..1 << 40, held in 0_u64..1 << 38,
            asked in 0_u64..1 << 40, unit in 1_u64..1 << 34, overcommit_milli in 1_u32..20_000,
        ) {
            let before = others + share(held, overcommit_milli);
            let granted = grant(GrantInput { total, others, held, asked, unit, overcommit_milli })
                .expect("the unit is not zero").granted;
            let after = others + share(granted, overcommit_milli);
            prop_assert!(after <= before.max(u128::from(total)));
            prop_assert!(granted <= asked && (asked <= held || granted >= held));
            if asked <= held { prop_assert_eq!(granted, asked); }
            let step = granted.saturating_sub(held);
            prop_assert!(granted == asked || step % unit == 0);
        }

        #[test]
        fn never_panics_at_the_extremes(
            total: u64, others: u128, held: u64, asked: u64, unit: u64, overcommit_milli: u32,
        ) {
            let _ = grant(GrantInput { total, others, held, asked, unit, overcommit_milli });
        }
    }
}
