//! bellows-tests
