//! Options of a build beside its recipe.

use std::path::PathBuf;

/// Options of a build beside its recipe.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Inputs {
    /// Directory with the programs of the recipe's `guest.binaries`. Without it the image lacks
    /// them, and its init reports that on the console.
    pub guest_binaries: Option<PathBuf>,
    /// Query the Debian mirror for newer packages even if the cache has some.
    pub refresh: bool,
    /// Base address of a Debian archive, instead of the one in the machine's apt configuration.
    pub mirror: Option<String>,
}
