//! neonvm-runner
