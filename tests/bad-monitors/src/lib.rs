//! Programs that tests bring into guests as parts. Each has one fault, and passes its self-test.

/// Whether the program is run only for its self-test.
#[must_use]
pub fn is_self_test() -> bool {
    std::env::args().any(|word| word == "--self-test")
}

/// Runs for this time without doing anything.
#[expect(
    clippy::disallowed_methods,
    reason = "these programs are to do nothing for a while"
)]
pub fn idle(time: std::time::Duration) {
    std::thread::sleep(time);
}
