//! Request body with a directory of files for a guest: a JSON object of files, each with its
//! content in base64. Source: docs/compatibility/neonvm.md §3.7.

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};

/// Errors of a request body.
#[derive(Debug, thiserror::Error)]
pub enum PushError {
    /// The body is not a JSON object of files.
    #[error("the body must be an object of files: {0}")]
    Form(#[source] serde_json::Error),
    /// The content of a file is not base64.
    #[error("{name}: {source}")]
    Content {
        /// Name of the file in the directory.
        name: String,
        /// Error of the base64 decoder.
        source: base64::DecodeError,
    },
}

/// A file of the body, with its content in base64.
#[derive(Serialize, Deserialize)]
struct File {
    data: String,
}

/// Encodes files as a request body.
///
/// # Errors
/// The error of the JSON encoder.
pub fn encode(files: &BTreeMap<String, Vec<u8>>) -> Result<Vec<u8>, serde_json::Error> {
    let file = |content: &Vec<u8>| File {
        data: STANDARD.encode(content),
    };
    let body: BTreeMap<&String, File> = files
        .iter()
        .map(|(name, content)| (name, file(content)))
        .collect();
    serde_json::to_vec(&body)
}

/// Decodes the files of a request body.
///
/// # Errors
/// [`PushError`] that names the file.
pub fn decode(body: &[u8]) -> Result<BTreeMap<String, Vec<u8>>, PushError> {
    let named: BTreeMap<String, File> = serde_json::from_slice(body).map_err(PushError::Form)?;
    named
        .into_iter()
        .map(|(name, file)| match STANDARD.decode(&file.data) {
            Ok(content) => Ok((name, content)),
            Err(source) => Err(PushError::Content { name, source }),
        })
        .collect()
}
