//! A set between an API server and guests in memory.

mod counts;
mod failing;
mod upgrades;
mod world;
