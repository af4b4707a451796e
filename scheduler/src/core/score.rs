//! The score of a pod on a node, 0 to 100. A pure function.
//!
//! Source: docs/compatibility/scheduler.md §1.3, vectors §7.5. Nodes are filled up to a peak and
//! avoided above it. Of two nodes with equal use, the larger one has the higher score.

use serde::Serialize;

use super::amount::Both;

/// The scoring curve.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Curve {
    /// Score of an empty node, 0 to 1.
    pub min_usage_score: f64,
    /// Score of a full node, 0 to 1.
    pub max_usage_score: f64,
    /// The fraction in use that scores 1, 0 to 1.
    pub score_peak: f64,
}

/// The score of a node with these reserved sums, which include the pod, and totals. `max_seen` is
/// the largest total of each resource over all nodes. 0 if a sum is above its total or a total is
/// 0.
#[must_use]
pub fn score(curve: Curve, reserved: Both<u128>, total: Both<u64>, max_seen: Both<u64>) -> u8 {
    let parts = reserved
        .zip(total)
        .zip(max_seen)
        .map(|_, ((reserved, total), seen)| {
            if reserved > u128::from(total) {
                return 0.0;
            }
            of_resource(
                curve,
                to_float(reserved),
                to_float(u128::from(total)),
                to_float(u128::from(seen)),
            )
        });
    let worst = parts.cpu.min(parts.mem);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "clamped to 0..=100 before; truncating is the definition"
    )]
    let score = (100.0 * worst).clamp(0.0, 100.0) as u8;
    score
}

#[expect(
    clippy::cast_precision_loss,
    reason = "a score of 0 to 100 needs no 53 bits"
)]
fn to_float(amount: u128) -> f64 {
    amount as f64
}

fn of_resource(curve: Curve, reserved: f64, total: f64, max_seen: f64) -> f64 {
    if total <= 0.0 || max_seen <= 0.0 {
        return 0.0;
    }
    let fraction = reserved / total;
    let size = (total / max_seen).min(1.0);
    let Curve {
        min_usage_score: low,
        max_usage_score: high,
        score_peak: peak,
    } = curve;
    let shape = if fraction < peak {
        low + fraction * (1.0 - low) / peak
    } else if fraction > peak {
        high + (1.0 - fraction) * (1.0 - high) / (1.0 - peak)
    } else {
        1.0
    };
    shape * size
}

#[cfg(test)]
mod tests {
    use super::*;

    const CURVE: Curve = Curve {
        min_usage_score: 0.5,
        max_usage_score: 0.0,
        score_peak: 0.8,
    };
    const GIB: u64 = 1 << 30;

    /// One resource varies (`reserved`, `total`, `max_seen` in tenths); the other sits at its peak
    /// on the largest node.
    fn one(reserved_tenths: u64, total: u64, max_seen: u64) -> (u8, u8) {
        let cpu = score(
            CURVE,
            Both::new(u128::from(reserved_tenths * 100), u128::from(8 * GIB)),
            Both::new(total * 1000, 10 * GIB),
            Both::new(max_seen * 1000, 10 * GIB),
        );
        let mem = score(
            CURVE,
            Both::new(8_000, u128::from(reserved_tenths * 100)),
            Both::new(10_000, total * 1000),
            Both::new(10_000, max_seen * 1000),
        );
        (cpu, mem)
    }

    #[test]
    fn scores_are_as_in_the_vectors() {
        for (tenths, expected) in [
            (0, 50),
            (10, 56),
            (25, 65),
            (40, 75),
            (50, 81),
            (75, 96),
            (80, 100),
            (85, 75),
            (90, 50),
            (95, 25),
            (100, 0),
        ] {
            assert_eq!(
                one(tenths, 10, 10),
                (expected, expected),
                "{tenths} tenths of 10"
            );
        }
        assert_eq!(one(80, 10, 20).0, 50);
        assert_eq!(one(40, 10, 20).0, 37);
        assert_eq!(one(160, 20, 20).0, 100);
        assert_eq!(one(20, 4, 8).0, 40);
        assert_eq!(one(101, 10, 10), (0, 0), "over budget");
    }

    #[test]
    fn the_worse_resource_decides_and_zero_totals_score_zero() {
        let total = Both::new(10_000, 10 * GIB);
        let both = score(CURVE, Both::new(7_500, u128::from(5 * GIB)), total, total);
        assert_eq!(both, 81);
        assert_eq!(score(CURVE, Both::same(0), Both::same(0), Both::same(0)), 0);
        assert_eq!(
            score(CURVE, Both::same(0), Both::new(10, 0), Both::new(10, 10)),
            0
        );
    }

    #[test]
    fn a_peak_at_either_end_is_no_division_by_zero() {
        for peak in [0.0, 1.0] {
            let curve = Curve {
                score_peak: peak,
                ..CURVE
            };
            for reserved in [0, 5, 10] {
                let got = score(curve, Both::same(reserved), Both::same(10), Both::same(10));
                assert!(got <= 100);
            }
        }
    }
}
