//! bellows
fn main() {}
