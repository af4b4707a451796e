//! Images: recipes, their builder, the cache of what was built, and OCI archives of it ([`oci`]).
//!
//! Two kinds of artefact are built from Debian packages. A *guest* is a kernel, an initial RAM disk
//! and a root disk that a virtual machine boots; a *runtime* is QEMU with everything it needs,
//! independent of the host.
//!
//! ```text
//! recipe ──> packages layer ──> base layer ──> guest image        recipe ──> packages layer ──> runtime image
//!            (apt, network)     (database,      (our programs,
//!                                kernel)         file system)
//! ```
//!
//! Each layer is cached by its inputs, so a new monitor repeats only the last step. Equal packages
//! and programs give equal digests. The reference of recipes and cache is
//! `docs/images.md`.

#![forbid(unsafe_code)]

mod base;
mod binary;
pub mod container;
mod debian;
pub mod digest;
mod error;
mod ext4;
mod guest;
mod host;
mod initrd;
mod inputs;
mod kernel;
mod mirror;
mod normalise;
pub mod oci;
mod paths;
mod postgres;
mod progress;
mod recipe;
mod requirements;
mod runtime;
mod sandbox;
mod search_path;
mod store;
mod tool;

pub use error::BuildError;
pub use inputs::Inputs;
pub use progress::{Amount, Progress, Step, TICK};
pub use protocol::image::{Digest, ImageContent, ImageManifest};
pub use recipe::{
    BinaryRecipe, DebianRecipe, GuestRecipe, KernelRecipe, PortRecipe, PostgresRecipe, Problem,
    Recipe, RecipeContent, RecipeError, RuntimeRecipe, ServiceRecipe, SuiteRecipe, UserRecipe,
    builtin_recipes,
};
pub use requirements::{Requirement, host_requirements};
pub use sandbox::sandbox_refused;
pub use store::{Collected, Image, Store, StoreError};

use host::preconditions;
use progress::Reporter;

/// Builds an image and sets its name. Waits for other builds in the same cache.
///
/// Blocks for seconds to a minute, and reports at least every [`TICK`]. An unfinished build leaves
/// nothing visible and no process.
///
/// # Errors
/// [`BuildError`]. The cache is then unchanged.
pub fn build(
    store: &Store,
    recipe: &Recipe,
    inputs: &Inputs,
    progress: &mut dyn FnMut(Progress),
) -> Result<Image, BuildError> {
    preconditions()?;
    // Our own programs are checked before anything slow begins.
    let programs = match recipe.guest() {
        Some(guest) => guest::programs(guest, inputs)?,
        None => guest::Programs::new(),
    };
    let reporter = &mut Reporter::new(progress);
    let guard = store.lock(reporter)?;
    let options = debian::Options {
        refresh: inputs.refresh,
        mirror: inputs.mirror.as_deref(),
    };
    let packages = debian::packages(store, &guard, recipe, &options, reporter)?;
    match &recipe.content {
        RecipeContent::Guest(guest) => {
            let base = base::base(store, &guard, recipe, guest, &packages, reporter)?;
            guest::build(store, &guard, (recipe, guest), &base, &programs, reporter)
        }
        RecipeContent::Runtime(runtime) => {
            runtime::build(store, &guard, (recipe, runtime), &packages, reporter)
        }
    }
}
