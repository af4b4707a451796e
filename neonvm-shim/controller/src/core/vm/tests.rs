//! The core against a world of its own making: phases by hand, then any world at all.

mod convergence;
mod phases;
mod quick;
mod resizing;
mod world;
