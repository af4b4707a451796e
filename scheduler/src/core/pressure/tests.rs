//! What counts as a wish, and for how long.

use super::*;

fn both(logical: u128, capacity: u128, accounted: u128) -> Pressure {
    Pressure {
        logical: Both::new(logical, 0),
        capacity: Both::new(capacity, 0),
        accounted: Both::new(accounted, 0),
    }
}

#[test]
fn n24_what_is_unmet_is_the_sum_of_both_less_what_is_accounted_for() {
    for (pressure, ours, deployed) in [
        (both(0, 0, 0), 0, 0),
        (both(3, 0, 0), 3, 3),
        (both(3, 2, 0), 5, 3),
        (both(3, 2, 4), 1, 0),
        (both(3, 2, 5), 0, 0),
        (both(0, 2, 9), 0, 0),
        (both(u128::MAX, u128::MAX, 1), u128::MAX - 1, u128::MAX - 1),
    ] {
        assert_eq!(pressure.unmet(true), Both::new(ours, 0), "{pressure:?}");
        assert_eq!(
            pressure.unmet(false),
            Both::new(deployed, 0),
            "{pressure:?}"
        );
    }
}
