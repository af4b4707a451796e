//! Programs that a turn needs and the host does not have, such as those of an earlier leader.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Most hashes that are remembered. A turn that is repeated adds its hash again.
const MOST: usize = 256;

/// Hashes of programs to fetch; clones share them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Wanted(Arc<Mutex<BTreeSet<String>>>);

impl Wanted {
    pub(crate) fn add(&self, sha256: &str) {
        let mut all = self.lock();
        if all.len() < MOST {
            all.insert(sha256.to_owned());
        }
    }

    /// All of them. Those that cannot be fetched are added again by their turns.
    pub(crate) fn take(&self) -> BTreeSet<String> {
        std::mem::take(&mut *self.lock())
    }

    fn lock(&self) -> MutexGuard<'_, BTreeSet<String>> {
        // An insertion and a removal are whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn number_of_remembered_hashes_is_bounded() {
        let wanted = Wanted::default();
        for number in 0..2 * MOST {
            wanted.add(&number.to_string());
        }
        assert_eq!(wanted.take().len(), MOST);
        assert!(wanted.take().is_empty());
    }
}
