//! neonvm-apiserver
