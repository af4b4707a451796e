//! A shipped core as a part of a state.

use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use scheduler::core::Core;

/// A core, told apart by its digest.
#[derive(Clone)]
pub(crate) struct Brain {
    pub(crate) core: Arc<Core>,
    digest: u64,
}

impl Brain {
    pub(crate) fn new(core: Core) -> Self {
        let mut brain = Self {
            core: Arc::new(core),
            digest: 0,
        };
        brain.settle();
        brain
    }

    /// Takes the digest anew, after the core was told something.
    pub(crate) fn settle(&mut self) {
        let mut hasher = DefaultHasher::new();
        self.core.digest(&mut hasher);
        self.digest = hasher.finish();
    }
}

impl fmt::Debug for Brain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "core {:016x}", self.digest)
    }
}

impl PartialEq for Brain {
    fn eq(&self, other: &Self) -> bool {
        self.digest == other.digest
    }
}

impl Hash for Brain {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        self.digest.hash(hasher);
    }
}
