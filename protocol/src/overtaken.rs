//! Whether an order of a size may still be taken up by a runner, or was overtaken by a newer one:
//! the rule of `PUT /v1/size?over=` ([`crate::runner`]).
//!
//! An order can lie in a connection for longer than whoever gave it waits for an answer: the node
//! stands still, or the network does. When it is read at last, a newer one may have been taken up
//! over another connection, and answered; others then count on the guest having that size. So
//! whoever orders says how many orders there had been as far as they know, and where there have
//! been more since, theirs is refused: they learn of it from the state, and order again if that is
//! still what they want.

/// Why an order is not taken up. What the caller does: reads the state and decides anew.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "given over {over} orders, and {taken} have been taken up here: a newer one has overtaken it; read the state, then order again"
)]
pub struct Overtaken {
    /// How many there had been as far as whoever ordered knew.
    pub over: u64,
    /// How many there have been.
    pub taken: u64,
}

/// Counts an order that is taken up, of `taken` before it. One that is held already (`is_held`)
/// changes nothing, whenever it comes.
///
/// # Errors
/// [`Overtaken`]; without `over`, which older controllers do not say, never.
pub fn count(taken: u64, over: Option<u64>, is_held: bool) -> Result<u64, Overtaken> {
    match over {
        _ if is_held => Ok(taken),
        Some(over) if over != taken => Err(Overtaken { over, taken }),
        _ => Ok(taken.saturating_add(1)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_two_orders_over_the_same_the_first_is_taken_up() {
        assert_eq!(count(7, Some(7), false), Ok(8));
        let refused = Overtaken { over: 7, taken: 8 };
        assert_eq!(count(8, Some(7), false), Err(refused));
        assert_eq!(
            count(0, Some(7), false),
            Err(Overtaken { over: 7, taken: 0 }),
            "another runner's"
        );
    }

    #[test]
    fn what_is_held_and_what_says_nothing_is_never_refused() {
        assert_eq!(count(8, Some(7), true), Ok(8));
        assert_eq!(count(8, None, false), Ok(9));
        assert_eq!(count(u64::MAX, None, false), Ok(u64::MAX));
    }
}
