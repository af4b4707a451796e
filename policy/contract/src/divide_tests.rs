use super::*;
use proptest::prelude::*;

fn claims() -> impl Strategy<Value = Vec<PlainClaim>> {
    let claim = (0_u64..60, -1_i32..2).prop_map(|(asked, priority)| PlainClaim {
        asked,
        unit: 1,
        priority,
    });
    proptest::collection::vec(claim, 0..8)
}

/// Requirement: V11
#[test]
fn v11_shares_are_whole_numbers_by_largest_remainder() {
    for (total, expected) in [(10, 1), (100, 7), (57, 4), (0, 0), (7, 0), (8, 1)] {
        assert_eq!(share(total, 100, &[7]), [expected], "7% of {total}");
    }
    assert_eq!(share(10, 100, &[33, 33, 34]), [3, 3, 4]);
    assert_eq!(share(11, 100, &[50, 50]), [6, 5]);
    assert_eq!(share(10, 0, &[0, 0]), [0, 0]);
    assert_eq!(
        share(9, 1, &[1, 1, 1]),
        [3, 3, 3],
        "weights above the whole"
    );
    assert_eq!(share(u64::MAX, 1, &[1]), [u64::MAX]);
}

/// Requirement: V14
#[test]
fn v14_higher_priority_is_served_before_the_rest() {
    let claim = |asked, priority| PlainClaim {
        asked,
        unit: 1,
        priority,
    };
    let rest = claim(u64::MAX / 4, -1);
    assert_eq!(divide(10, &[rest, claim(6, 0)]), [4, 6]);
    assert_eq!(divide(10, &[rest, claim(16, 0)]), [0, 10]);
    assert_eq!(
        divide(9, &[claim(2, 0), claim(9, 0), claim(9, 0)]),
        [2, 4, 3]
    );
}

proptest! {
    /// Requirement: V14
    #[test]
    fn v14_division_is_max_min_within_the_total(free in 0_u64..200, claims in claims()) {
        let parts = divide(u128::from(free), &claims);
        let sum: u64 = parts.iter().sum();
        let asked: u64 = claims.iter().map(|claim| claim.asked).sum();
        prop_assert_eq!(sum, free.min(asked), "nothing is wasted, nothing is over the total");
        for (part, claim) in parts.iter().zip(&claims) {
            prop_assert!(*part <= claim.asked);
            for (other, rival) in parts.iter().zip(&claims) {
                let is_short = *part < claim.asked;
                if is_short && claim.priority == rival.priority {
                    prop_assert!(*other <= part + 1, "{parts:?} of {claims:?}");
                }
                if is_short && claim.priority > rival.priority {
                    prop_assert_eq!(*other, 0, "{:?} of {:?}", parts, claims);
                }
            }
        }
    }

    /// Requirement: V14
    #[test]
    fn v14_order_of_claims_changes_no_size(free in 0_u64..200, claims in claims()) {
        let turned: Vec<PlainClaim> = claims.iter().rev().copied().collect();
        let sizes = |claims: &[PlainClaim]| {
            let parts = divide(u128::from(free), claims);
            let priorities = claims.iter().map(|claim| claim.priority);
            let mut sizes: Vec<_> = priorities.zip(parts).collect();
            // Which of two claims of one class gets the odd unit is by their order.
            sizes.sort_unstable();
            sizes
        };
        prop_assert_eq!(sizes(&claims), sizes(&turned));
    }

    /// Requirement: V11
    #[test]
    fn v11_shares_sum_to_the_rounded_whole(
        total in 0_u64..10_000,
        weights in proptest::collection::vec(0_u64..40, 0..6),
    ) {
        let sum: u64 = weights.iter().sum();
        let parts = share(total, sum, &weights);
        let expected = if sum == 0 { 0 } else { total };
        prop_assert_eq!(parts.iter().sum::<u64>(), expected);
        for (part, weight) in parts.iter().zip(&weights) {
            let floor = (total * weight).checked_div(sum).unwrap_or(0);
            prop_assert!((floor..=floor + 1).contains(part));
        }
    }
}
