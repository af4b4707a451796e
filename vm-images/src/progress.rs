//! Progress reports of a build.

use std::fmt;
use std::time::{Duration, Instant};

/// The steps of a build, in order. A step whose result is in the cache is not reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Step {
    /// Waiting for another build, which holds the cache.
    Lock,
    /// Reading the mirror's index.
    Index,
    /// Fetching the recipe's packages from the mirror.
    Download,
    /// Unpacking the downloaded packages.
    Unpack,
    /// Extracting kernel, modules and initial RAM disk.
    Kernel,
    /// Creating users and links, and removing unneeded files.
    Configure,
    /// Creating and filling the database.
    Database,
    /// Packing the base layer.
    Pack,
    /// Reading the layers of a container image.
    Layers,
    /// Writing the content of the layers.
    Extract,
    /// Running the lines of a specification.
    Merge,
    /// Unpacking the base layer and adding our programs.
    Assemble,
    /// Making the file system image.
    FileSystem,
    /// Hashing the files of the image.
    Hash,
    /// Moving the image into the cache.
    Publish,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Lock => "waiting for another build",
            Self::Index => "reading the package index",
            Self::Download => "downloading packages",
            Self::Unpack => "unpacking packages",
            Self::Kernel => "preparing kernel and initial RAM disk",
            Self::Configure => "configuring the root file system",
            Self::Database => "creating the database",
            Self::Pack => "packing the base layer",
            Self::Layers => "reading the container image",
            Self::Extract => "unpacking the container image",
            Self::Merge => "carrying out the specification",
            Self::Assemble => "adding our programs",
            Self::FileSystem => "making the file system",
            Self::Hash => "hashing",
            Self::Publish => "storing",
        })
    }
}

/// Amount of a step that is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Amount {
    /// The step has no measure.
    Unknown,
    /// A number of items.
    Items {
        /// Items finished so far, at most `total`.
        done: u64,
        /// Items in the whole step.
        total: u64,
    },
    /// Finished part of the step, in thousandths from 0 to 1000.
    Permille(u16),
    /// Bytes handled so far, of a total that is not known.
    Bytes(u64),
}

/// One report. It is sent when a step begins, when its amount changes, and at least every [`TICK`]
/// while a program runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Progress {
    /// Step that the build is in.
    pub step: Step,
    /// Object of the step, for example a package's name. May be empty.
    pub detail: String,
    /// Amount of the step that is done, if known.
    pub amount: Amount,
    /// Time since the step began.
    pub step_elapsed: Duration,
    /// Time since the build began.
    pub elapsed: Duration,
}

/// Longest time between two reports while a program runs.
pub const TICK: Duration = Duration::from_millis(200);

/// Sends reports with their times to the caller.
pub(crate) struct Reporter<'a> {
    sink: &'a mut dyn FnMut(Progress),
    begun: Instant,
    step_begun: Instant,
    last: Progress,
    last_sent: Instant,
}

impl<'a> Reporter<'a> {
    pub(crate) fn new(sink: &'a mut dyn FnMut(Progress)) -> Self {
        let now = Instant::now();
        let last = Progress {
            step: Step::Lock,
            detail: String::new(),
            amount: Amount::Unknown,
            step_elapsed: Duration::ZERO,
            elapsed: Duration::ZERO,
        };
        Self {
            sink,
            begun: now,
            step_begun: now,
            last,
            last_sent: now,
        }
    }

    pub(crate) fn begin(&mut self, step: Step, detail: &str) {
        tracing::debug!(step = ?step, detail, "image build step");
        self.step_begun = Instant::now();
        self.last.step = step;
        self.last.detail = detail.to_owned();
        self.last.amount = Amount::Unknown;
        self.send();
    }

    /// Sets the amount. A report is sent only if the last one is a [`TICK`] old, so that tight
    /// loops stay cheap.
    pub(crate) fn amount(&mut self, amount: Amount) {
        self.last.amount = amount;
        if self.last_sent.elapsed() >= TICK {
            self.send();
        }
    }

    /// Reports that the step is still running.
    pub(crate) fn tick(&mut self) {
        if self.last_sent.elapsed() >= TICK {
            self.send();
        }
    }

    fn send(&mut self) {
        self.last_sent = Instant::now();
        self.last.step_elapsed = self.step_begun.elapsed();
        self.last.elapsed = self.begun.elapsed();
        (self.sink)(self.last.clone());
    }
}
