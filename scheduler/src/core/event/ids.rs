//! Numbers that join a request or call to its outcome.

/// Names one HTTP request that waits for a response. The shell chooses it and never reuses it.
pub type RequestId = u64;
/// Names one API call. The core chooses it and never reuses it.
pub type CallId = u64;
