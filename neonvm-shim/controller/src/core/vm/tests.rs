//! The core against a world of its own making: phases by hand, then any world at all.

mod ahead;
mod certificate;
mod convergence;
mod ends;
mod failing;
mod interleavings;
mod metadata;
mod missing_pods;
mod overlay;
mod phases;
mod power;
mod quick;
mod reports;
mod requests;
mod resizing;
mod stages;
mod taken;
mod world;
