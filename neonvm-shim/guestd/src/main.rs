//! neonvm-guestd
fn main() {}
