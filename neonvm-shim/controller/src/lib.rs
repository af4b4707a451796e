//! neonvm-controller
