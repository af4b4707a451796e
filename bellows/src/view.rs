//! What the commands show, made from what the API server and the parts say. Pure: no socket, no
//! clock.

pub(crate) mod node;
pub(crate) mod vm;
