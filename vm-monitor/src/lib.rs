//! vm-monitor
