//! The user's store of images, and its failures as the command line reports them.

use vm_images::{Store, StoreError};

use crate::fail::{Fail, Outcome};
use crate::places::store_dir;

/// Opens the user's store of images. Creates it if it is missing.
pub(crate) fn store() -> Outcome<Store> {
    Store::open(store_dir()?).map_err(|error| explain_store(&error))
}

/// A store error as a failure of the command.
pub(crate) fn explain_store(error: &StoreError) -> Fail {
    let what = daemon_kit::chain(error);
    match error {
        StoreError::Name(_) => Fail::usage(what),
        _ => Fail::missing(what),
    }
}
