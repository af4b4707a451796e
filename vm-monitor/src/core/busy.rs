//! Whether the process may be replaced now. A new program starts without the requests in hand.

use super::Monitor;
use super::jobs::{Job, Request};

impl Monitor {
    /// The work that a change of the program would cut off, if there is any.
    #[must_use]
    pub fn busy(&self) -> Option<&'static str> {
        if let Some((_, job)) = &self.job {
            return Some(job.label());
        }
        let is_shrink = |request: &Request| matches!(request, Request::Downscale { .. });
        let shrinks = self.weighing.is_some() || self.waiting.iter().any(is_shrink);
        shrinks.then_some("a shrink is being decided")
    }
}

impl Job {
    const fn label(&self) -> &'static str {
        match self {
            Self::Start | Self::Upscale { .. } => "the file cache is being set",
            Self::Downscale { .. } => "the file cache is being set for a shrink",
            Self::Squeeze { .. } => "memory is being squeezed for a shrink",
            Self::BeforeShrink { .. } => "hooks are running before a shrink",
            Self::AfterGrow { .. } => "hooks are running after a growth",
        }
    }
}
