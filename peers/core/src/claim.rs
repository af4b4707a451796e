//! Claims to lead a part, and their order.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// Name of a machine, unique among its peers.
pub type MachineId = Arc<str>;

/// A machine's claim to lead a part. A greater claim overrules a smaller one.
///
/// The order is `(majority, epoch, holder)`: the leader of a minority never overrules the leader of
/// a majority, however often it has claimed.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Claim {
    /// The holder hears more than half of the expected machines.
    pub majority: bool,
    /// One more than the greatest epoch that the holder had heard of.
    pub epoch: u64,
    /// The machine that claims.
    pub holder: MachineId,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Requirement: V21
    #[test]
    fn v21_majority_overrules_epoch_and_epoch_overrules_name() {
        let claim = |majority, epoch, holder: &str| Claim {
            majority,
            epoch,
            holder: holder.into(),
        };
        let ascending = [
            claim(false, 1, "b"),
            claim(false, 9, "a"),
            claim(true, 2, "a"),
            claim(true, 2, "b"),
            claim(true, 3, "a"),
        ];
        assert!(ascending.is_sorted());
    }
}
