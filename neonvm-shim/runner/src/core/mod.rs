//! The decisions of runner and node driver: synchronous, without clock, socket or file.

pub mod addresses;
pub mod args;
pub mod bridge;
pub mod budget;
pub mod dhcp;
pub mod disks;
pub mod exit;
pub mod forwards;
pub mod guestd_key;
pub mod host_name;
pub mod lines;
pub mod nic;
pub mod overlay;
pub mod packed;
pub mod pod;
pub mod quota;
pub mod room;
pub mod root_disk;
pub mod seats;
pub mod shape;
pub mod silence;
pub mod sizer;
pub mod stop;
pub mod traffic;
pub mod transfer;
