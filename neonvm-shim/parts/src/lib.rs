//! Parts of a guest that are replaced while it runs: which program of a part runs, and how does a
//! guest take back a program that its host does not keep?
//!
//! ```text
//!  DIR/NAME/a/program, b/program   programs that were brought
//!  DIR/NAME/current                link to `a` or `b`; absent: the program of the image
//!  DIR/NAME/trial                  TOKEN END BACK: `current` is on trial until END
//!  DIR/NAME/returning              the same file, once the trial has ended badly
//!  DIR/NAME/note                   TOKEN REASON of the last return
//!  DIR/NAME/record.json            what the guest daemon remembers
//! ```
//!
//! [`core`] plans orders as lists of steps (pure), [`shell`] carries out those that change files.
//! The guest's scripts `service` and `trial` take a program back by the same files, without the
//! daemon.
//!
//! Invariants:
//! 1. One rename decides between `keep` and the return: `trial` is either removed or becomes
//!    `returning` (`tests/crashes.rs`).
//! 2. A brought program runs only after its trial is on the disk and a watcher runs.
//! 3. Stopped after any step, the order sent again has the same end, and silence ends in the
//!    former program (`tests/crashes.rs`).
//! 4. The program of the image is never written.

pub mod core;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzz;
pub mod shell;
