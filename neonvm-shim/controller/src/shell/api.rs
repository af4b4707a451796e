//! The API server, as the drivers use it.

mod client;
mod error;
mod pods;
mod secrets;

pub(super) use client::{KubeApi, as_json_patch, object, offers_resize, patch_params, post_params};
pub use error::ApiError;
pub(super) use pods::Found;

#[cfg(test)]
mod tests;
