//! The monitor of this machine: state of its unit, its page.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::time::Duration;

use super::output;
use crate::core::upgrade::{Health, UnitState};

/// Name of the unit.
pub const UNIT: &str = "vm-monitor.service";
/// Longest wait for each step of reading the page.
const PAGE_WITHIN: Duration = Duration::from_secs(5);
/// Most bytes of the page that are read.
const PAGE_BYTES: u64 = 1 << 20;

/// Health of the monitor. What cannot be read counts as unhealthy.
#[must_use]
pub fn health(page: Option<SocketAddr>) -> Health {
    let mut show = Command::new("systemctl");
    show.args([
        "show",
        UNIT,
        "--property=LoadState,UnitFileState,ActiveState",
    ]);
    let properties = output(&mut show).unwrap_or_default();
    let read = page.map(read_page);
    let is_answering = read.as_ref().is_none_or(Option::is_some);
    let has_agent = read.flatten().is_some_and(|page| {
        let mut lines = page.lines();
        lines.any(|line| line == "vm_monitor_agent_connected 1")
    });
    Health {
        unit: unit_state(&properties),
        is_active: properties.lines().any(|line| line == "ActiveState=active"),
        is_answering,
        has_agent,
    }
}

fn unit_state(properties: &str) -> UnitState {
    let value = |name: &str| {
        let mut lines = properties.lines();
        lines.find_map(|line| line.strip_prefix(name)?.strip_prefix('='))
    };
    match (value("LoadState"), value("UnitFileState")) {
        (Some("masked"), _) | (_, Some("masked" | "masked-runtime")) => UnitState::Masked,
        (Some("loaded"), Some("enabled" | "enabled-runtime")) => UnitState::Enabled,
        (Some("loaded"), _) => UnitState::Disabled,
        _ => UnitState::Absent,
    }
}

fn read_page(address: SocketAddr) -> Option<String> {
    let mut stream = TcpStream::connect_timeout(&address, PAGE_WITHIN).ok()?;
    stream.set_read_timeout(Some(PAGE_WITHIN)).ok()?;
    stream.set_write_timeout(Some(PAGE_WITHIN)).ok()?;
    stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").ok()?;
    let mut page = Vec::new();
    stream.take(PAGE_BYTES).read_to_end(&mut page).ok()?;
    let page = String::from_utf8(page).ok()?;
    let status = page.lines().next()?;
    status.contains(" 200 ").then_some(page)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn unit_is_enabled_disabled_masked_or_absent() {
        let rows = [
            (
                "LoadState=loaded\nUnitFileState=enabled\n",
                UnitState::Enabled,
            ),
            (
                "LoadState=loaded\nUnitFileState=disabled\n",
                UnitState::Disabled,
            ),
            (
                "LoadState=masked\nUnitFileState=masked\n",
                UnitState::Masked,
            ),
            (
                "LoadState=loaded\nUnitFileState=masked-runtime\n",
                UnitState::Masked,
            ),
            ("LoadState=not-found\nUnitFileState=\n", UnitState::Absent),
            ("", UnitState::Absent),
        ];
        for (properties, expected) in rows {
            assert_eq!(unit_state(properties), expected, "{properties}");
        }
    }

    #[test]
    fn page_that_refuses_or_answers_with_an_error_is_none() {
        for (answer, is_there) in [
            (
                "HTTP/1.0 200 OK\r\n\r\nvm_monitor_agent_connected 1\n",
                true,
            ),
            ("HTTP/1.0 503 no\r\n\r\n", false),
            ("", false),
        ] {
            let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
            let address = listener.local_addr().expect("an address");
            let server = std::thread::spawn(move || {
                let (mut stream, _) = listener.accept().expect("a caller");
                let mut request = [0; 25];
                stream.read_exact(&mut request).expect("a request");
                stream.write_all(answer.as_bytes()).expect("written");
            });
            assert_eq!(read_page(address).is_some(), is_there, "{answer}");
            server.join().expect("served");
        }
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        drop(listener);
        assert!(read_page(address).is_none());
    }
}
