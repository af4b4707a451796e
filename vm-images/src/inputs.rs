//! What a build uses beside its recipe.

use std::path::PathBuf;

/// What a build uses beside the recipe.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Inputs {
    /// Directory with the programs that a guest recipe lists under `guest.binaries`. Without it the
    /// image has none of them; its init says so on the console.
    pub guest_binaries: Option<PathBuf>,
    /// Ask the Debian mirror for newer packages even if the cache has some.
    pub refresh: bool,
    /// Base address of a Debian archive, instead of the one in the machine's apt configuration.
    pub mirror: Option<String>,
}
