//! Sums, shares and grants: the arithmetic of one resource, independent of the other.
//!
//! Source: docs/compatibility/scheduler.md §2.1 (shares), §2.3 (grants). All quantities are
//! integers: CPU in thousandths of a core, memory in bytes; sums are wide enough never to wrap.

use protocol::units::{Bytes, MilliCpu, Resources};
use serde::Serialize;

/// Over-commit factor of "none", in thousandths.
pub const NO_OVERCOMMIT_MILLI: u32 = 1000;

/// One of the two things a node runs out of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Resource {
    /// CPU, in thousandths of a core.
    Cpu,
    /// Memory, in bytes.
    Mem,
}

impl Resource {
    /// Both, in the order in which they are printed.
    pub const ALL: [Self; 2] = [Self::Cpu, Self::Mem];

    /// The word for people and metric labels.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Mem => "mem",
        }
    }
}

/// The same kind of value for CPU and for memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Hash, Serialize)]
pub struct Both<T> {
    /// CPU.
    pub cpu: T,
    /// Memory.
    pub mem: T,
}

impl<T: Copy> Both<T> {
    /// A pair.
    pub const fn new(cpu: T, mem: T) -> Self {
        Self { cpu, mem }
    }

    /// The same value twice.
    pub const fn same(value: T) -> Self {
        Self {
            cpu: value,
            mem: value,
        }
    }

    /// One of them.
    pub const fn get(&self, resource: Resource) -> T {
        match resource {
            Resource::Cpu => self.cpu,
            Resource::Mem => self.mem,
        }
    }

    /// Applies `f` to each, told which one it is.
    pub fn map<U>(self, mut f: impl FnMut(Resource, T) -> U) -> Both<U> {
        Both {
            cpu: f(Resource::Cpu, self.cpu),
            mem: f(Resource::Mem, self.mem),
        }
    }

    /// Both values of both resources, field by field.
    pub fn zip<U: Copy>(self, other: Both<U>) -> Both<(T, U)> {
        Both {
            cpu: (self.cpu, other.cpu),
            mem: (self.mem, other.mem),
        }
    }

    /// Whether `f` holds for either.
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
    /// As wire resources; CPU beyond 2^32-1 thousandths is cut to that.
    #[must_use]
    pub fn to_resources(self) -> Resources {
        Resources {
            cpu: MilliCpu(u32::try_from(self.cpu).unwrap_or(u32::MAX)),
            mem: Bytes(self.mem),
        }
    }

    /// The larger of each.
    #[must_use]
    pub fn max(self, other: Self) -> Self {
        Self {
            cpu: self.cpu.max(other.cpu),
            mem: self.mem.max(other.mem),
        }
    }
}

/// What `amount` takes of a node after over-commit, rounded down: `1000 · amount / overcommit`.
///
/// A factor of 0 is treated as 1 so that nothing divides by zero; extraction refuses it earlier.
#[must_use]
pub fn share(amount: u64, overcommit_milli: u32) -> u128 {
    1000 * u128::from(amount) / u128::from(overcommit_milli.max(1))
}

/// [`share`] of both resources.
#[must_use]
pub fn shares(amount: Both<u64>, overcommit_milli: Both<u32>) -> Both<u128> {
    amount
        .zip(overcommit_milli)
        .map(|_, (amount, milli)| share(amount, milli))
}

/// What the grant of one resource depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GrantInput {
    /// The node's total.
    pub total: u64,
    /// What is reserved on the node by all other pods, after over-commit.
    pub others: u128,
    /// What the pod holds for certain (approved, durably written).
    pub held: u64,
    /// What is asked for.
    pub asked: u64,
    /// The compute unit's part.
    pub unit: u64,
    /// Over-commit factor, thousandths.
    pub overcommit_milli: u32,
}

/// The result of [`grant`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grant {
    /// What the pod may hold from now on: between `held` and `asked` for an increase, `asked` for
    /// anything else.
    pub granted: u64,
    /// How far beyond `held` the pod could have grown.
    pub room: u64,
}

/// Why no grant could be computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum GrantError {
    /// An increase in steps of nothing.
    #[error("the compute unit is zero")]
    ZeroUnit,
}

/// Grants as much of an increase as whole units of the node's room cover, at most the wish; a
/// decrease always passes. A node that is over its total grants nothing and takes nothing back.
///
/// Room is what the others and what is held for certain leave. What else is counted for the pod
/// itself gives it none: a copy of a grant that was given back may turn up late, after the room
/// went to another pod. Invariant: no grant carries a node across its total (held by
/// `tests::no_grant_crosses_the_total`).
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
    let wish = input.asked - input.held;
    let steps = room / input.unit * input.unit;
    Ok(Grant {
        granted: input.held + steps.min(wish),
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
    fn vectors_of_grants() {
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
    fn a_zero_unit_is_an_error_only_for_an_increase() {
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
    fn vectors_of_shares() {
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
