//! What the commands show, built from the answers of the API server and the components. Pure: no
//! socket, no clock.

pub(crate) mod fleet;
pub(crate) mod node;
pub(crate) mod parts;
pub(crate) mod resize;
pub(crate) mod units;
pub(crate) mod vm;
pub(crate) mod why;
